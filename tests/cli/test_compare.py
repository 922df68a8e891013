"""`prefixcache compare`: what people and programs read, and what happens to a mistake."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from prefixcache import __version__
from prefixcache.replay.setups import plan
from tests.cli.running import Command
from tests.replay.writing import write

ROW_FIELDS = {
    *("host_tokens", "host_hit_tokens"),
    *("trace", "design", "block_size", "capacity_tokens", "requests", "prompt_tokens", "hit_tokens"),
    *("ideal_tokens", "lost_last_token_tokens", "lost_scope_tokens", "lost_limit_tokens"),
    *("lost_boundary_tokens", "lost_eviction_tokens", "lost_refused_tokens", "evicted_blocks", "us_p50", "us_p99"),
}
SHARED = list(range(100))


def _turns(count: int = 4, **more: Any) -> list[dict[str, Any]]:
    return [{"tokens": [*SHARED, 1000 + i, 2000 + i], "timestamp": i, **more} for i in range(count)]


def _mooncake(count: int = 4) -> list[dict[str, Any]]:
    return [{"timestamp": i, "input_length": 1000, "output_length": 3, "hash_ids": [0, 100 + i]} for i in range(count)]


def _document(command: Command, *arguments: object) -> dict[str, Any]:
    outcome = command("compare", *arguments, "--json", "-")
    assert (outcome.status, outcome.err) == (0, "")
    document: dict[str, Any] = json.loads(outcome.out)
    return document


def test_the_demo_prints_one_table_and_what_to_do_next(command: Command) -> None:
    outcome = command("compare")
    lines = outcome.out.splitlines()
    assert (outcome.status, outcome.err) == (0, "")
    what = r"built-in mixed traffic: 2,000 requests, [\d.]+ M tokens, seed 7, capacity 200k tokens, LRU"
    assert re.fullmatch(what + r"; ceiling [\d.]+%", lines[0])
    assert lines[1].split()[:3] == ["design", "block", "reused"]
    planned = [[setup.design, str(setup.block_size)] for setup in plan([], [], [200_000])]
    assert planned[:3] == [["radix", "1"], ["hash_chain", "16"], ["hash_chain", "128"]]
    assert [line.split()[:2] for line in lines[2 : 2 + len(planned)]] == planned
    example = next(line for line in lines if line.startswith("Request "))
    numbers = [int(number.replace(",", "")) for number in re.findall(r"[\d,]*\d", example)]
    shared, reused, only, partial = numbers[1], numbers[2], numbers[-2], numbers[-1]
    assert (reused, shared - only) == (shared, partial) and 0 < partial < 128
    assert lines[-1] == "Next: prefixcache compare YOUR_TRACE.jsonl"


def test_every_row_has_the_fields_that_programs_rely_on(command: Command) -> None:
    arguments = ("--requests", 60, "--capacity", "20k", "--capacity", "unbounded", "--reference")
    rows = _document(command, *arguments)["rows"]
    assert {row["capacity_tokens"] for row in rows} == {20_000, None}
    for row in rows:
        assert row.keys() >= ROW_FIELDS
        lost = sum(row[field] for field in row if field.startswith("lost_"))
        assert row["hit_tokens"] + lost == row["ideal_tokens"] <= row["prompt_tokens"]
        assert row["is_reference"] == (row["design"] in ("ceiling", "plain_lru"))
        assert row["is_reference"] or 0 < row["us_p50"] <= row["us_p99"]


def test_json_goes_to_a_file_beside_the_table(command: Command, tmp_path: Path) -> None:
    target = tmp_path / "out.json"
    outcome = command("compare", "--requests", 30, "--json", target)
    assert outcome.out.startswith("built-in mixed traffic: 30 requests")
    assert json.loads(target.read_text())["traces"][0]["seed"] == 7


def test_a_bad_trace_behind_a_good_one_takes_nothing_of_it_along(command: Command, tmp_path: Path) -> None:
    good, bad, target = write(tmp_path / "good.jsonl", _turns()), tmp_path / "bad.jsonl", tmp_path / "out.json"
    bad.write_text("no trace\n")
    outcome = command("compare", good, bad, "--json", target)
    assert outcome.status == 2 and "bad.jsonl" in outcome.err
    whole = command("compare", good, "--json", tmp_path / "alone.json")
    assert whole.status == 0
    traces = [json.loads(path.read_text())["traces"] for path in (target, tmp_path / "alone.json")]
    assert len(traces[0]) == 1 and traces[0] == traces[1]


def test_the_same_seed_gives_the_same_rows(command: Command) -> None:
    def rows(seed: int) -> list[dict[str, Any]]:
        found = _document(command, "--requests", 60, "--seed", seed)["rows"]
        return [{k: v for k, v in row.items() if not k.startswith("us_")} for row in found]

    assert rows(3) == rows(3) != rows(4)


def test_designs_block_sizes_and_capacities_are_combined(command: Command, tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", _turns())
    rows = _document(
        *(command, path, "--design", "radix", "--design", "hash_chain", "--block-size", 4, "--block-size", 8),
        *("--capacity", "1k", "--capacity", "unbounded"),
    )["rows"]
    assert [(row["design"], row["block_size"], row["capacity_tokens"]) for row in rows] == [
        (design, size, capacity) for capacity in (1000, None) for design in ("radix", "hash_chain") for size in (4, 8)
    ]
    assert {row["hit_tokens"] for row in rows if row["block_size"] == 8} == {3 * 96}


def test_a_design_may_bring_its_block_size(command: Command, tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", _turns())
    designs = ("--design", "radix@2", "--design", "hash_chain@64", "--design", "radix@2", "--design", "radix")
    found = [(row["design"], row["block_size"]) for row in _document(command, path, *designs)["rows"]]
    assert found == [("radix", 2), ("hash_chain", 64), ("radix", 1)]
    found = [row["block_size"] for row in _document(command, path, *designs, "--block-size", 8)["rows"]]
    assert found == [2, 64, 8]


@pytest.mark.parametrize(
    ("given", "tokens"),
    [
        (["400k"], 400_000),
        (["1.5M"], 1_500_000),
        (["2G"], 2 * 10**9),
        (["12345"], 12345),
        (["UNBOUNDED"], None),
        (["1GiB", "--kv-bytes-per-token", "131072"], 8192),
        (["0.5 gib", "--kv-bytes-per-token", "131073"], 4095),
    ],
)
def test_capacities(command: Command, given: list[str], tokens: int | None) -> None:
    rows = _document(command, "--requests", 3, "--design", "radix", "--capacity", *given)["rows"]
    assert [row["capacity_tokens"] for row in rows] == [tokens]


def test_a_host_tier_has_a_column_and_a_place_in_the_title(command: Command, tmp_path: Path) -> None:
    lines = [{"tokens": [i % 5] * 64, "timestamp": i} for i in range(20)]
    file = write(tmp_path / "a.jsonl", lines)
    arguments = (file, "--design", "hash_chain@16", "--capacity", 128)
    table = command("compare", *arguments, "--host", "1k").out
    assert "capacity 128 tokens, host 1k tokens" in table and "from host" in table
    assert "from host" not in command("compare", *arguments).out
    (row,) = _document(command, *arguments, "--host", "1k")["rows"]
    (without,) = _document(command, *arguments)["rows"]
    assert (without["host_tokens"], without["host_hit_tokens"]) == (0, 0)
    assert row["host_tokens"] == 1000 and 0 < row["host_hit_tokens"] <= row["hit_tokens"]
    assert row["hit_tokens"] > without["hit_tokens"]


def test_losses_have_a_column_where_they_are_not_zero(command: Command, tmp_path: Path) -> None:
    plain = write(tmp_path / "plain.jsonl", _turns())
    table = command("compare", plain, "--design", "radix").out.splitlines()
    assert table[0].startswith("plain: 4 requests, 408 tokens, capacity 200k tokens, LRU; ceiling 73.5%")
    assert table[1].split() == ["design", "block", "reused", "us", "p50", "us", "p99"]
    assert table[-1] == "Nothing is lost: every design here reuses all that repeats."

    rows = [*_turns(2), *_turns(2), *_turns(3, adapter="x"), {"tokens": list(range(300))}]
    path = write(tmp_path / "all.jsonl", rows)
    table = command("compare", path, "--design", "hash_chain", "--block-size", 16, "--capacity", 200).out
    heading = re.sub(r"  +", "|", table.splitlines()[1].strip())
    assert heading == "design|block|reused|last token|scope|boundary|evicted|refused|us p50|us p99"


def test_two_sentences_say_what_is_lost_where(command: Command, tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", _turns(10))
    outcome = command("compare", path, "--design", "hash_chain", "--block-size", 64)
    assert outcome.out.splitlines()[3:] == [
        "88.2% of the prompt tokens begin as an earlier request did; hash_chain reuses the most, 56.5%.",
        "Most is lost at block boundaries, up to 31.8% (hash_chain: 32 tokens a request).",
    ]
    outcome = command("compare", path, "--design", "radix", "--capacity", 120, "--capacity", 99)
    assert "to refused requests, which found no room, up to 88.2% (radix with 99: 10 requests)" in outcome.out


def test_blocks_finer_than_the_trace_are_marked(command: Command, tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", _mooncake())
    arguments = ("compare", path, "--design", "hash_chain", "--block-size")
    lines = command(*arguments, 16, "--block-size", 512).out.splitlines()
    assert [line.split()[1] for line in lines[2:4]] == ["16*", "512"]
    assert lines[-1].startswith("* Grain not visible in this trace: it is written in blocks of 512 tokens")
    assert "*" not in command(*arguments, 512).out


def test_one_table_for_each_trace(command: Command, tmp_path: Path) -> None:
    paths = [write(tmp_path / "a.jsonl", _turns()), write(tmp_path / "b.jsonl.gz", _mooncake(), ".gz")]
    outcome = command("compare", *paths, "--json", tmp_path / "out.json")
    assert [line[:3] for line in outcome.out.splitlines() if "ceiling" in line] == ["a: ", "b: "]
    document = json.loads((tmp_path / "out.json").read_text())
    assert [(trace["trace"], trace["format"]) for trace in document["traces"]] == [
        *(("a", "token_ids"), ("b", "mooncake"))
    ]
    per_trace = len(plan([], [], [200_000]))
    assert [row["trace"] for row in document["rows"]] == ["a"] * per_trace + ["b"] * per_trace
    assert "Next:" not in outcome.out


def test_reference_rows_stand_under_the_designs(command: Command, tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", _mooncake())
    lines = command("compare", path, "--reference", "--design", "radix", "--capacity", "1024").out.splitlines()
    assert [re.split("  +", line)[0] for line in lines[2:5]] == ["radix", "ceiling", "plain LRU"]
    assert all(re.search(r"\d\d\.\d\d%", line) for line in lines[2:5])
    tokens = command("compare", write(tmp_path / "u.jsonl", _turns()), "--reference").out
    assert "plain LRU  " not in tokens
    assert "has no ids of its own" in tokens


def test_limit_and_warm_up(command: Command, tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", _turns(10))
    rows = _document(command, path, "--design", "radix", "--limit", 6, "--warm-up", 0.5)["rows"]
    assert (rows[0]["requests"], rows[0]["hit_tokens"]) == (3, 300)
    outcome = command("compare", path, "--warm-up", 0.5)
    assert "The first 5 requests filled the caches and are not counted." in outcome.out


def test_outputs_count_when_asked(command: Command, tmp_path: Path) -> None:
    rows = [{"tokens": [1, 2], "output_tokens": [3, 4]}, {"tokens": [1, 2, 3, 4, 5]}]
    path = write(tmp_path / "t.jsonl", rows)
    plain = _document(command, path, "--design", "radix")
    counted = _document(command, path, "--design", "radix", "--count-output")
    assert [d["rows"][0]["hit_tokens"] for d in (plain, counted)] == [2, 3]
    assert "Generated tokens went through" in command("compare", path, "--count-output").out


def test_bad_lines_are_counted_when_asked(command: Command, tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", [*_turns(3), "{oops", {"tokens": []}])
    outcome = command("compare", path)
    assert outcome.status == 2
    assert outcome.err.startswith(f"error: {path}, line 4: not valid JSON")
    assert outcome.out == ""
    outcome = command("compare", path, "--skip-bad")
    assert outcome.status == 0
    assert "2 malformed lines were skipped." in outcome.out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["no-such-file.jsonl"], "no-such-file.jsonl: cannot be read: No such file"),
        (["{dir}"], "is a folder"),
        (["{empty}"], "is empty. Expected a trace in one of these formats"),
        (["{unknown}"], "line 1: an object of no known format (with question)"),
        (["--design", "btree"], "design is 'btree': expected one of radix, hash_chain"),
        (["--design", "radix@"], "design is 'radix@': expected a number of tokens from 1 on after the @"),
        (["--design", "radix@-1"], "expected a number of tokens from 1 on after the @"),
        (["--design", "radix@0"], "expected a number of tokens from 1 on"),
        (["--capacity", "lots"], "capacity is 'lots': expected tokens such as 400k"),
        (["--capacity", "4KiB"], "capacity is '4KiB': expected tokens"),
        (["--capacity", "-4"], "capacity is '-4': expected tokens"),
        (["--capacity", "0"], "capacity is '0': that is no token"),
        (["--capacity", "40GiB"], "memory needs --kv-bytes-per-token"),
        (["--capacity", "10"], "a capacity of 10 tokens holds no block of 16"),
        (["--host", "unbounded"], "host is 'unbounded': expected tokens such as 4M"),
        (["--host", "10"], "a host tier of 10 tokens holds no block of 16"),
        (["--host", "4k", "--design", "token_trie"], "token_trie has no tiers below the device"),
        (["--block-size", "0"], "--block-size"),
        (["--warm-up", "1"], "warm-up is 1.0: expected a share"),
        (["--traffic", "video"], "traffic is 'video': expected mixed, chat, agent, rag"),
        (["--json", "{dir}/none/out.json"], "expected a file in a folder that exists"),
        (["--json", "{dir}"], "cannot be written: Is a directory"),
        (["--capacity", "3000M", "--design", "radix"], "makes 3000000000 blocks of 1: expected at most 2147483647"),
        (["{unknown}", "--seed", "3"], "--requests, --seed: shape built-in traffic, not a trace"),
        (["--trace-block-size", "16"], "--trace-block-size: is about a trace; none is given"),
        (["--limit", "0"], "--limit"),
        (["--no-such-option"], "No such option"),
    ],
)
def test_a_mistake_is_one_message_and_status_2(
    command: Command, tmp_path: Path, arguments: list[str], says: str
) -> None:
    names = {
        "dir": str(tmp_path),
        "empty": str(write(tmp_path / "empty.jsonl", [])),
        "unknown": str(write(tmp_path / "unknown.jsonl", [{"question": "?"}])),
    }
    given = [argument.format(**names) for argument in arguments]
    built_in = given[0].startswith("--") or "--seed" in given
    outcome = command("compare", *given, *(["--requests", 9] if built_in else []))
    assert outcome.status == 2
    assert outcome.out == "", "before any work"
    assert says in " ".join(outcome.err.split())
    assert "Traceback" not in outcome.err


@pytest.mark.parametrize("arguments", [["compare", "--requests", "9"], ["--version"]], ids=" ".join)
def test_an_output_that_cannot_be_written_is_one_message(arguments: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        run = [sys.executable, "-m", "prefixcache", *arguments]
        done = subprocess.run(run, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert done.stderr == "error: standard output cannot be written: No space left on device\n"


def test_a_trace_may_come_from_standard_input(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl.gz", _turns(), ".gz")
    run = [sys.executable, "-m", "prefixcache", "compare", "-"]
    with path.open("rb") as file:
        done = subprocess.run(run, stdin=file, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("stdin: ")


def test_the_version(command: Command) -> None:
    assert command("--version").out == f"prefixcache {__version__}\n"
    run = [sys.executable, "-m", "prefixcache", "--version"]
    assert subprocess.run(run, capture_output=True, text=True, check=True).stdout == f"prefixcache {__version__}\n"


def test_help_has_examples(command: Command) -> None:
    assert "compare" in command("--help").out
    text = command("compare", "--help").out
    assert "Examples" in text
    assert "prefixcache compare TRACE.jsonl.zst --capacity 4M" in text
    assert "Traceback" not in text


@pytest.mark.parametrize("on_a_terminal", [False, True])
def test_progress_shows_on_a_terminal_only(on_a_terminal: bool) -> None:
    run = [sys.executable, "-m", "prefixcache", "compare", "--requests", "300", "--design", "radix"]
    terminal, child = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "100"}
    process = subprocess.Popen(
        run, stdout=subprocess.PIPE, stderr=child if on_a_terminal else subprocess.PIPE, env=environment
    )
    os.close(child)
    out, err = process.communicate()
    if on_a_terminal:
        err = b""
        try:
            while chunk := os.read(terminal, 4096):
                err += chunk
        except OSError:  # Linux says so when the other end is closed
            pass
    os.close(terminal)
    assert process.returncode == 0
    assert out.startswith(b"built-in mixed traffic: 300 requests")
    assert (b"built-in mixed traffic" in err) == on_a_terminal
    assert on_a_terminal or err == b""
