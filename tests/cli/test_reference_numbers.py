"""Published traces give the published numbers: ceilings to the token, plain LRU to four decimals.

They come from programs that are not ours; see REFERENCE.md beside the traces.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.running import Command

MOONCAKE, CLAUDE_CODE = "mooncake_conversation.jsonl.zst", "claude_code_first100.tar.zst"
RAGPULSE = "ragpulse_0_trace.jsonl.zst"


def _rows(command: Command, trace: Path, *arguments: object) -> list[dict[str, Any]]:
    # One cheap design: the yardsticks do not depend on it, but a table has a design.
    cheap = ("--design", "radix", "--block-size", 4096)
    outcome = command("compare", trace, "--reference", *cheap, *arguments, "--json", "-")
    assert outcome.status == 0, outcome.err
    rows: list[dict[str, Any]] = json.loads(outcome.out)["rows"]
    return rows


def _ceiling(rows: list[dict[str, Any]]) -> tuple[int, int]:
    (row,) = (row for row in rows if row["design"] == "ceiling")
    assert row["ideal_tokens"] == row["hit_tokens"]
    return row["hit_tokens"], row["prompt_tokens"]


def _lru(rows: list[dict[str, Any]]) -> dict[int, str]:
    return {
        row["capacity_tokens"]: f"{row['hit_tokens'] / row['prompt_tokens']:.4f}"
        for row in rows
        if row["design"] == "plain_lru"
    }


def _capacities(*tokens: object) -> list[object]:
    return [argument for count in tokens for argument in ("--capacity", count)]


def test_mooncake(command: Command, shared_dir: Path) -> None:
    blocks = {1_000: "0.0454", 10_000: "0.2157", 30_000: "0.3322", 50_000: "0.3615", 100_000: "0.3708"}
    in_tokens = {1_000_000: "0.0543", 4_000_000: "0.1783", 16_000_000: "0.3360", 50_000_000: "0.3707"}
    expected = in_tokens | {512 * count: ratio for count, ratio in blocks.items()}
    rows = _rows(command, shared_dir / "traces" / MOONCAKE, *_capacities(*expected))
    assert _ceiling(rows) == (54_098_411, 144_793_823)
    assert _lru(rows) == expected


def test_the_last_half_of_mooncake(command: Command, shared_dir: Path) -> None:
    expected = {1_000_000: "0.0554", 4_000_000: "0.1806", 16_000_000: "0.3496"}
    rows = _rows(command, shared_dir / "traces" / MOONCAKE, "--warm-up", 0.5, *_capacities(*expected))
    assert _ceiling(rows) == (27_038_068, 67_915_607)
    assert _lru(rows) == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("warm_up", "lru"),
    [
        (0.0, {1_000_000: "0.4760", 4_000_000: "0.8178", 16_000_000: "0.9491"}),
        (0.5, {1_000_000: "0.7629", 4_000_000: "0.9520", 16_000_000: "0.9601"}),
    ],
)
def test_claude_code(command: Command, shared_dir: Path, warm_up: float, lru: dict[int, str]) -> None:
    rows = _rows(command, shared_dir / "traces" / CLAUDE_CODE, "--warm-up", warm_up, *_capacities(*lru))
    hit, prompt = _ceiling(rows)
    if warm_up:
        assert f"{hit / prompt:.6f}" == "0.961324"
    else:
        assert (hit, prompt) == (699_073_280, 735_194_018)
    assert _lru(rows) == lru


@pytest.mark.parametrize(("warm_up", "ratio"), [(0.0, "0.3153"), (0.5, "0.3158")])
def test_ragpulse(command: Command, shared_dir: Path, warm_up: float, ratio: str) -> None:
    rows = _rows(command, shared_dir / "traces" / RAGPULSE, "--warm-up", warm_up)
    hit, prompt = _ceiling(rows)
    assert f"{hit / prompt:.4f}" == ratio


@pytest.mark.parametrize(("block_size", "ratio"), [(16, 0.3153), (64, 0.3153), (512, 0.3144)])
def test_the_grain_of_ragpulse(command: Command, shared_dir: Path, block_size: int, ratio: float) -> None:
    row = _unbounded(command, shared_dir / "traces" / RAGPULSE, "radix", block_size)
    # A plain block cache counts a little more than full blocks up to the last token but one.
    assert row["hit_tokens"] / row["prompt_tokens"] == pytest.approx(ratio, abs=1.5e-4)


def _unbounded(command: Command, trace: Path, design: str, block_size: int) -> dict[str, Any]:
    arguments = ("--design", design, "--block-size", block_size, "--capacity", "unbounded", "--json", "-")
    (row,) = json.loads(command("compare", trace, *arguments).out)["rows"]
    assert row["lost_eviction_tokens"] == row["lost_refused_tokens"] == row["evicted_blocks"] == 0
    result: dict[str, Any] = row
    return result


@pytest.mark.parametrize(
    ("design", "block_size", "ratio"), [("hash_chain", 512, "0.373380"), ("radix", 16, "0.373617")]
)
def test_unbounded_designs_on_mooncake(
    command: Command, shared_dir: Path, design: str, block_size: int, ratio: str
) -> None:
    row = _unbounded(command, shared_dir / "traces" / MOONCAKE, design, block_size)
    assert f"{row['hit_tokens'] / row['prompt_tokens']:.6f}" == ratio
