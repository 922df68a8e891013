"""Every claim of the article has a test and a verdict; what is the same on every machine is written down here."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from prefixcache.article import CLAIMS, CONDITION, HOLDS, NUMBERS, WRONG, Finding, Measured, report

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reproducing-the-article.md"
AT_ANY_TOKEN = ("block_trie", "digest_chain", "trtllm", "trtllm-v2")
IN_FULL_BLOCKS = ("radix", "hash_chain", "sglang", "vllm-0.8.5", "vllm-1")


def _grain(name: str, size: int, length: int) -> int:
    return length if name in AT_ANY_TOKEN else length // size * size


def _around_a_boundary() -> list[tuple[Any, ...]]:
    order = (
        "radix",
        "hash_chain",
        "block_trie",
        "digest_chain",
        "sglang",
        "vllm-0.8.5",
        "vllm-1",
        "trtllm",
        "trtllm-v2",
    )
    setups = [("radix", 1), ("sglang", 1), *((name, size) for size in (16, 32, 64, 128) for name in order)]
    lengths = (2047, 2048, 2049, 2050)
    return [
        (name, size, *(_grain(name, size, n) for n in lengths), *(_grain(name, size, n - 1) for n in lengths))
        for name, size in setups
    ]


def _saved(prefix: int, *new: int) -> list[tuple[Any, ...]]:
    return [(n, prefix + n, n, f"{(prefix + n) / n:.1f}") for n in new]


def _lookups(blocks: int, hit: int, bisected: int, galloping: int) -> list[tuple[Any, ...]]:
    scanned = min(hit + 1, blocks)
    return [
        (blocks, hit, name, count)
        for name, count in (("binary", bisected), ("linear", scanned), ("galloping", galloping))
    ]


# Verdict, figures, rows of the table; measured figures and columns left out.
FOUND: dict[str, tuple[str, list[Any], list[tuple[Any, ...]]]] = {
    "C1": (CONDITION, [], _saved(2048, 8, 32, 128, 548, 2048)),
    "C2": (HOLDS, [], _around_a_boundary()),
    "C3": (
        HOLDS,
        [],
        [
            ("token_trie", 1, 32768),
            ("radix", 1, 1),
            ("hash_chain", 16, 2048),
            ("block_trie", 32, 1),
            ("digest_chain", 32, 1),
        ],
    ),
    "C4": (
        WRONG,
        [],
        [
            ("16 over four binary choices", 16, 31, 31),
            ("10 turns of one chat, radix", 1, 2, 1),
            ("10 turns of one chat, preset sglang", 1, 11, 1),
        ],
    ),
    "C5": (HOLDS, [], [(1, 1, 3, 7), (4, 1, 3, 4)]),
    "C6": (HOLDS, [[0, 16, 16, 80, 96, 96]], []),
    "C7": (HOLDS, [1000, 10], []),
    "C8": (CONDITION, [20, [4], 0, 1], []),
    "C9": (CONDITION, [], [(page, 32768 // page, nodes, nodes) for page in (1, 16) for nodes in (1, 64, 256)]),
    "C10": (HOLDS, [600], []),
    "C11": (CONDITION, [1500, 8466, 0], []),
    "C12": (CONDITION, ["parent", 0, 2], [(128, 8, 8), (512, 10, 10), (2048, 12, 12), (8192, 14, 14)]),
    "C13": (WRONG, [], [("10^6", "2.7e-08", "1.5e-27", "4.3e-66"), ("10^9", "2.7e-02", "1.5e-21", "4.3e-60")]),
    "C14": (CONDITION, [300, 203, 0], []),
    "C15": (HOLDS, [], [("vllm-0.8.5", 0, 0, 8), ("vllm-1", 0, 8, 8), ("hash_chain", 0, 8, 8)]),
    "C16": (HOLDS, [32, 32, 40, 40], []),
    "C17": (
        HOLDS,
        [],
        [
            (what, 8, 0)
            for what in ("adapter", "salt", "picture over the first block", "extra ids", "whether extra ids are used")
        ],
    ),
    "C18": (HOLDS, [-(2**31) + 1, [6, 6, 4], 24, 16], []),
    "C19": (CONDITION, [], [(1,), (31,), (32,), (1024,)]),
    "C20": (WRONG, [6, 6], []),
    "C21": (CONDITION, [[7, 8], [7, 8], [32, 0]], []),
    "C22": (CONDITION, [8], []),
    "C23": (WRONG, [8], []),
    "C24": (
        HOLDS,
        [],
        [
            ("three partial matches of an unused leaf", 1, 5, "1 of block 1 to 3", [0, 3]),
            ("three partial matches of an unused leaf", 2, 5, "1 of block 1 to 4", [0, 4]),
            ("three partial matches of an unused leaf", 3, 5, "none", [0, 1]),
            ("the same, and a full match", 1, 5, "1 of block 1 to 3", [0, 3]),
            ("the same, and a full match", 2, 8, "none", [0, 1, 4]),
            ("the same, and a full match", 3, 5, "1 of block 1 to 5", [0, 5]),
        ],
    ),
    "C25": (CONDITION, [False, True, "answered"], []),
    "C26": (HOLDS, [5, 5], []),
    "C27": (CONDITION, [], []),
    "C28": (HOLDS, [620, 4980], [(31, 3, 3), (32, 0, 3), (250, 0, 3)]),
    "C29": (WRONG, [4, 0], []),
    "C30": (CONDITION, [], _saved(3072, 8, 32, 128, 391, 2048)),
    "C31": (
        CONDITION,
        [],
        [
            (200, "50%", 4, "37.5%", "36.3%", "28.1%", "9.4%", "48"),
            (200, "50%", 32, "48.4%", "46.9%", "36.3%", "12.1%", "62"),
            (200, "90%", 4, "67.5%", "65.4%", "50.6%", "16.9%", "48"),
            (200, "90%", 32, "87.2%", "84.4%", "65.4%", "21.8%", "62"),
            (1000, "50%", 4, "37.5%", "37.2%", "35.2%", "2.3%", "48"),
            (1000, "50%", 32, "48.4%", "48.1%", "45.5%", "2.9%", "62"),
            (1000, "90%", 4, "67.5%", "67.0%", "63.4%", "4.1%", "48"),
            (1000, "90%", 32, "87.2%", "86.5%", "81.9%", "5.3%", "62"),
            (4000, "50%", 4, "37.5%", "37.5%", "37.0%", "0.5%", "42"),
            (4000, "50%", 32, "48.4%", "48.4%", "47.8%", "0.7%", "54"),
            (4000, "90%", 4, "67.5%", "67.5%", "66.6%", "0.9%", "42"),
            (4000, "90%", 32, "87.2%", "87.2%", "86.0%", "1.2%", "54"),
        ],
    ),
    "C32": (
        CONDITION,
        [],
        [
            row
            for counts in (
                *((128, 8, 7, 7), (128, 128, 7, 8), (512, 32, 9, 11), (512, 512, 9, 10)),
                *((2048, 128, 11, 15), (2048, 2048, 11, 12), (8192, 512, 13, 19), (8192, 8192, 13, 14)),
            )
            for row in _lookups(*counts)
        ],
    ),
    "C33": (
        CONDITION,
        [],
        [
            ("radix", 1, 2100, 0, True, True, True),
            ("hash_chain", 128, 2048, 0, True, True, True),
            ("block_trie", 32, 2100, 1, True, True, True),
            ("digest_chain", 32, 2100, 1, True, True, True),
        ],
    ),
    "C34": (
        HOLDS,
        [],
        [
            (1, "0, 0", "0, 0", "0, 0", "0, 0"),
            (2, "0, 1", "0, 4", "0, 1", "0, 1"),
            (3, "16, 1", "16, 5", "16, 2", "16, 2"),
            (4, "10, 3", "8, 7", "10, 5", "10, 5"),
            (5, "16, 3", "16, 14", "16, 4", "16, 4"),
            (6, "0, 3", "0, 14", "0, 3", "0, 3"),
            (7, "20, 6", "16, 14", "20, 7", "20, 7"),
            (8, "10, 5", "8, 14", "10, 6", "10, 6"),
            (9, "12, 8", "12, 14", "12, 8", "12, 8"),
        ],
    ),
}


def _same_everywhere(finding: Finding) -> tuple[str, list[Any], list[tuple[Any, ...]]]:
    figures = [value for _, value in finding.figures if not isinstance(value, Measured)]
    rows = [tuple(cell for cell in row if not isinstance(cell, Measured)) for row in finding.table[1:]]
    return finding.verdict, figures, rows


def _masked(lines: list[str]) -> str:
    return re.sub(r"\*[\d,.]+\*", "*measured*", "\n".join(lines))


@pytest.mark.parametrize("number", NUMBERS)
def test_a_claim_is_found_as_its_verdict_says_and_as_the_page_shows(number: str) -> None:
    finding = CLAIMS[number].test()
    assert _same_everywhere(finding) == FOUND[number]
    assert all(len(row) == len(finding.table[0]) for row in finding.table)
    assert finding.because and not finding.because.endswith(".")
    assert all(value > 0 for _, value in finding.figures if isinstance(value, Measured))
    shown = _masked(report.section(number, finding))
    again = "run: prefixcache article --markdown docs/reproducing-the-article.md"
    assert f"\n\n{shown}\n" in _masked(PAGE.read_text(encoding="utf-8").splitlines()) + "\n", again


def test_every_number_of_the_list_has_a_claim_and_a_verdict_on_the_page() -> None:
    assert list(NUMBERS) == [f"C{number}" for number in range(1, 35)]
    assert CLAIMS.keys() == set(NUMBERS)
    assert FOUND.keys() == set(NUMBERS)
    rows = re.findall(
        r"^\| \[(C\d+)\]\(#c\d+\) \| (.+) \(.+\) \| (.+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE
    )
    assert rows == [(number, CLAIMS[number].text, FOUND[number][0]) for number in NUMBERS]


def test_the_list_is_the_one_that_the_article_was_cut_into(shared_dir: Path) -> None:
    listed = re.findall(
        r"^\| (C\d+) \|", (shared_dir / "source" / "claims.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert tuple(listed) == NUMBERS
