"""Each format, by a small file that shows all it has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from prefixcache.keys import Scope
from prefixcache.replay.traces import Trace, read_trace
from tests.replay.writing import COMPRESSIONS, as_lines, write, write_tar

MOONCAKE = [
    {"timestamp": 2000, "input_length": 1030, "output_length": 5, "hash_ids": [10, 11, 12]},
    {"timestamp": 1000, "input_length": 1024, "output_length": 0, "hash_ids": [10, 11]},
    {"timestamp": 2000, "input_length": 600, "output_length": 7, "hash_ids": [10, 99]},
]


def _shared(trace: Trace, a: int, b: int) -> int:
    """Tokens that two prompts begin with in common, by place in the replay."""
    first, second = (trace.tokens(trace.requests[i]).tolist() for i in (a, b))
    return next(
        (i for i, (x, y) in enumerate(zip(first, second, strict=False)) if x != y), min(len(first), len(second))
    )


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_mooncake_in_every_compression(tmp_path: Path, compression: str) -> None:
    trace = read_trace(write(tmp_path / f"chat.jsonl{compression}", MOONCAKE, compression))
    assert (trace.format, trace.block_size, trace.skipped) == ("mooncake", 512, 0)
    assert [r.length for r in trace.requests] == [1024, 1030, 600]
    assert [r.output_length for r in trace.requests] == [0, 5, 7]
    assert [trace.output_tokens(r).size for r in trace.requests] == [0, 5, 7]
    assert [trace.tokens(r).size for r in trace.requests] == [1024, 1030, 600]
    assert (_shared(trace, 0, 1), _shared(trace, 1, 2)) == (1024, 512)


def test_names_lose_their_suffixes(tmp_path: Path) -> None:
    assert read_trace(write(tmp_path / "a.b.jsonl.zst", MOONCAKE, ".zst")).name == "a.b"


def test_mooncake_blocks_of_another_size(tmp_path: Path) -> None:
    rows = [{"timestamp": 0, "input_length": 70, "output_length": 1, "hash_ids": [1, 2, 3]}]
    trace = read_trace(write(tmp_path / "t.jsonl", rows), block_size=32)
    assert (trace.block_size, trace.requests[0].length) == (32, 70)


def _session(row: dict[str, Any], session: str, **more: Any) -> dict[str, Any]:
    return {"session_id": session, **row, **more}


INCREMENTAL = [
    _session({"input_length": 600, "output_length": 20, "hash_ids": [1, 2]}, "a", timestamp=0),
    _session({"input_length": 512, "output_length": 9, "hash_ids": [1]}, "b", timestamp=500),
    _session({"input_length": 30, "output_length": 4, "hash_ids": [3]}, "a", delay=1000),
    _session({"input_length": 10, "output_length": 1, "hash_ids": [4]}, "a", delay=1000),
]


def test_mooncake_turns_that_hold_only_what_is_new_are_put_behind_their_session(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path / "t.jsonl", INCREMENTAL))
    assert trace.block_size == 1
    assert [r.length for r in trace.requests] == [600, 512, 600 + 20 + 30, 600 + 20 + 30 + 4 + 10]
    assert [r.timestamp for r in trace.requests] == [0, 0.5, 1.0, 2.0]
    assert _shared(trace, 0, 2) == 600
    assert _shared(trace, 2, 3) == 650
    assert _shared(trace, 0, 1) == 512
    # What was generated is what the next turn repeats.
    first, second = trace.requests[0], trace.requests[2]
    assert trace.tokens(second)[600:620].tolist() == trace.output_tokens(first).tolist()


def test_mooncake_turns_that_hold_the_whole_prompt_are_left_alone(tmp_path: Path) -> None:
    rows = [
        _session({"input_length": 600, "output_length": 20, "hash_ids": [1, 2]}, "a", timestamp=0),
        _session({"input_length": 1100, "output_length": 4, "hash_ids": [1, 5, 6]}, "a", delay=1000),
        _session({"input_length": 1600, "output_length": 4, "hash_ids": [1, 5, 7, 8]}, "a", delay=1000),
        _session({"input_length": 500, "output_length": 4, "hash_ids": [9]}, "a", delay=1000),
    ]
    trace = read_trace(write(tmp_path / "t.jsonl", rows))
    assert trace.block_size == 512
    assert [r.length for r in trace.requests] == [600, 1100, 1600, 500]
    assert [r.timestamp for r in trace.requests] == [0, 1, 2, 3]
    assert _shared(trace, 1, 2) == 1024


def test_bailian_turns_belong_to_the_session_of_their_first_chat(tmp_path: Path) -> None:
    def chat(chat: int, parent: int, time: float, length: int, ids: list[int]) -> dict[str, Any]:
        return {
            "chat_id": chat,
            "parent_chat_id": parent,
            "timestamp": time,
            "input_length": length,
            "output_length": 3,
            "type": "text",
            "turn": 1,
            "hash_ids": ids,
        }

    rows = [
        chat(7, -1, 0.5, 20, [1, 2]),
        chat(4, -1, 0.5, 16, [1]),
        chat(9, 7, 0.5, 33, [1, 3, 4]),
        chat(8, 9, 0.25, 40, [1, 3]),
    ]
    trace = read_trace(write(tmp_path / "t.jsonl", rows))
    assert (trace.format, trace.block_size) == ("bailian", 16)
    assert [r.session for r in trace.requests] == [7, 4, 7, 7]
    assert [r.length for r in trace.requests] == [40, 16, 20, 33]
    assert (_shared(trace, 0, 1), _shared(trace, 0, 3)) == (16, 32)


def _calls(*calls: tuple[float, int, list[int]]) -> list[dict[str, Any]]:
    return [{"t": t, "type": "n", "in": n, "out": 2, "hash_ids": ids} for t, n, ids in calls]


SESSION = {
    "id": "s1",
    "block_size": 64,
    "hash_id_scope": "local",
    "requests": [
        *_calls((0.0, 130, [1, 2])),
        {
            "t": 5.0,
            "type": "subagent",
            "requests": [
                *_calls((1.0, 64, [1])),
                {"t": 4.0, "type": "subagent", "requests": _calls((5.0, 70, [3]))},
            ],
        },
        *_calls((6.5, 200, [1, 2, 4])),
    ],
}
OTHER = SESSION | {"id": "s0", "requests": _calls((6.0, 130, [1, 2]))}


def test_claude_code_sub_agents_count_their_time_from_their_parent(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path / "s.json", [SESSION]))
    assert (trace.format, trace.block_size) == ("claude_code", 64)
    assert [(r.timestamp, r.length) for r in trace.requests] == [(0, 130), (6, 64), (6.5, 200), (14, 70)]
    assert (_shared(trace, 0, 1), _shared(trace, 0, 2)) == (64, 128)  # what has no id is shared by nobody


def test_claude_code_ids_are_local_to_their_session(tmp_path: Path) -> None:
    data = {"a/s1.json": json.dumps(SESSION).encode(), "a/notes.txt": b"?", "a/s0.json": as_lines([OTHER])}
    trace = read_trace(write_tar(tmp_path / "all.tar.zst", data, ".zst"))
    assert [(r.timestamp, r.session) for r in trace.requests] == [
        *((0, "s1"), (6, "s0"), (6, "s1"), (6.5, "s1"), (14, "s1"))
    ]
    assert _shared(trace, 0, 1) == 0
    world = [json.dumps(s | {"hash_id_scope": "global"}).encode() for s in (SESSION, OTHER)]
    trace = read_trace(write_tar(tmp_path / "all.tar", {"1.json": world[0], "2.json": world[1]}))
    assert _shared(trace, 0, 1) == 128


def test_claude_code_written_over_many_lines(tmp_path: Path) -> None:
    path = tmp_path / "pretty.json"
    path.write_text(json.dumps(SESSION, indent=2))
    assert len(read_trace(path).requests) == 4


def _ragpulse(folder: Path, rows: list[dict[str, Any]]) -> Path:
    for name, key, lengths in (
        ("1_sys_prompt", "sys_prompt_id", {1: 10}),
        ("2_passages", "passage_id", {1: 7, 2: 30}),
        ("3_history", "history_id", {}),
        ("4_user_input", "user_input_id", {5: 3, 6: 4}),
        ("5_web_search", "web_search_id", {8: 100}),
    ):
        write(folder / f"x_{name}.jsonl.gz", [{key: i, "token_length": n} for i, n in lengths.items()], ".gz")
    return write(folder / "x_0_trace.jsonl", rows)


def _question(time: str, passages: list[int], user: int, **more: list[int]) -> dict[str, Any]:
    ids = {"sys_prompt": [1], "passages_ids": passages, "history": [], "web_search": [], "user_input": [user]}
    return {"timestamp": time, "input_length": 50, "output_length": 2, "hash_ids": ids | more, "session_id": "s"}


def test_ragpulse_prompts_are_as_long_as_their_components(tmp_path: Path) -> None:
    rows = [_question("3", [1, 2], 5), _question("9", [2, 1], 5), _question("10", [1, 2], 6, web_search=[8])]
    trace = read_trace(_ragpulse(tmp_path, rows))
    assert (trace.format, trace.block_size) == ("ragpulse", 1)
    assert [r.length for r in trace.requests] == [50, 50, 151]
    assert _shared(trace, 0, 1) == 10  # the same passages in another order are another prompt
    assert _shared(trace, 0, 2) == 47


def test_ragpulse_recordings_follow_each_other(tmp_path: Path) -> None:
    rows = [_question("3", [1], 5), _question("9", [2], 5), _question("1", [], 5), _question("4", [], 6)]
    trace = read_trace(_ragpulse(tmp_path, rows))
    assert [r.timestamp for r in trace.requests] == [3, 9, 10, 13]


@pytest.mark.parametrize("key", ["tokens", "prompt_token_ids", "input_ids", "token_ids"])
def test_token_ids(tmp_path: Path, key: str) -> None:
    rows = [
        {key: [1, 2, 3], "timestamp": 4, "session": "b", "output_tokens": [9]},
        {key: [1, 2, 4294967295], "timestamp": 4.0, "session": "a", "output_length": 3},
        {key: [7], "timestamp": 1, "session_id": 3, "adapter": "x", "salt": "t", "model": "m"},
    ]
    trace = read_trace(write(tmp_path / "t.jsonl", rows))
    assert (trace.format, trace.block_size, trace.holds_tokens) == ("token_ids", 1, True)
    assert [trace.tokens(r).tolist() for r in trace.requests] == [[7], [1, 2, 4294967295], [1, 2, 3]]
    assert [trace.output_tokens(r).size for r in trace.requests] == [0, 3, 1]
    assert trace.requests[0].scope == Scope("m", adapter="x", salt="t")
    assert trace.requests[1].scope == Scope()


def test_without_timestamps_the_order_of_the_file_counts(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path / "t.jsonl", [{"tokens": [i]} for i in (5, 3, 9, 1)]))
    assert [int(r.pieces[0]) for r in trace.requests] == [5, 3, 9, 1]


def test_a_pipe_can_be_read(tmp_path: Path) -> None:
    import os
    import threading

    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    data = COMPRESSIONS[".zst"](as_lines(MOONCAKE))
    writer = threading.Thread(target=pipe.write_bytes, args=(data,))
    writer.start()
    trace = read_trace(pipe)
    writer.join()
    assert len(trace.requests) == 3
