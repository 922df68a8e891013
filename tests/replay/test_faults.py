"""What is wrong with a file is said with file, line and what was expected, and never as a traceback."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from prefixcache.replay.traces import TraceError, read_trace
from tests.replay.writing import write, write_tar

GOOD: dict[str, dict[str, Any]] = {
    "mooncake": {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]},
    "bailian": {"chat_id": 1, "timestamp": 0, "input_length": 20, "output_length": 5, "hash_ids": [1, 2]},
    "claude_code": {
        "id": "s",
        "block_size": 64,
        "requests": [{"t": 0, "type": "n", "in": 65, "out": 1, "hash_ids": [1]}],
    },
    "token_ids": {"tokens": [1, 2, 3]},
}

# (a good line of this format first, then this bad one, what the message says of it)
BAD_LINES: list[tuple[str, Any, str]] = [
    ("mooncake", "{not json", "not valid JSON"),
    ("mooncake", '{"timestamp": 0', "not valid JSON"),
    ("mooncake", [1, 2], "expected 'object', got 'array'"),
    ("mooncake", GOOD["mooncake"] | {"input_length": "600"}, "got 'str' - at '$.input_length'"),
    ("mooncake", GOOD["mooncake"] | {"hash_ids": [1, 2.5]}, "got 'float' - at '$.hash_ids[1]'"),
    ("mooncake", {"timestamp": 0, "hash_ids": [1]}, "missing required field 'input_length'"),
    ("mooncake", GOOD["mooncake"] | {"hash_ids": [1]} | {"input_length": 1100}, "1 block ids for 1100 tokens"),
    ("mooncake", GOOD["mooncake"] | {"hash_ids": [1, 2, 3]}, "which make 2 blocks of 512"),
    ("mooncake", GOOD["mooncake"] | {"input_length": 0, "hash_ids": []}, "a prompt of 0 tokens"),
    ("mooncake", GOOD["mooncake"] | {"output_length": -1}, "an output of -1 tokens"),
    ("mooncake", GOOD["mooncake"] | {"output_length": 10**12}, "an output of 1000000000000 tokens; from 0 to 67108864"),
    ("bailian", GOOD["bailian"] | {"hash_ids": [1, 2, 3, 4]}, "4 block ids for 20 tokens"),
    ("bailian", GOOD["bailian"] | {"output_length": -3}, "an output of -3 tokens"),
    ("bailian", GOOD["bailian"] | {"timestamp": None}, "at '$.timestamp'"),
    ("claude_code", GOOD["claude_code"] | {"block_size": 32}, "blocks of 32 tokens after blocks of 64"),
    ("claude_code", GOOD["claude_code"] | {"block_size": 0}, "blocks of 0 tokens after"),
    ("claude_code", GOOD["claude_code"] | {"requests": [{"t": 0}]}, "missing required field 'type'"),
    (
        "claude_code",
        GOOD["claude_code"] | {"requests": [{"t": 3, "type": "s", "in": 65, "out": 1, "hash_ids": [1, 2, 3]}]},
        "session s, request at t=3.0: 3 block ids for 65 tokens",
    ),
    ("token_ids", {"tokens": []}, "a prompt of 0 tokens"),
    ("token_ids", {"tokens": [1, -1]}, "tokens[1] is -1"),
    ("token_ids", {"tokens": [1, 4294967296]}, "tokens[1] is 4294967296"),
    ("token_ids", {"tokens": [1, True]}, "got 'bool' - at '$.tokens[1]'"),
    ("token_ids", {"tokens": [1], "input_ids": [1]}, "2 lists of prompt tokens"),
    ("token_ids", {"timestamp": 3}, "0 lists of prompt tokens"),
    ("token_ids", {"tokens": [1], "output_length": -1}, "an output of -1 tokens"),
]


@pytest.mark.parametrize(("kind", "bad", "says"), BAD_LINES)
def test_a_bad_line_is_named_or_counted(tmp_path: Path, kind: str, bad: Any, says: str) -> None:
    path = write(tmp_path / "t.jsonl", [GOOD[kind], "", bad, GOOD[kind]])
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    message = str(caught.value)
    assert message.startswith(f"{path}, line 3: ")
    assert says in message
    assert ". Expected " in message
    trace = read_trace(path, skip_bad=True)
    assert (len(trace.requests), trace.skipped) == (2, 1)


def test_the_first_line_may_be_the_bad_one(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", ["# made by hand", GOOD["mooncake"]])
    with pytest.raises(TraceError, match="line 1: not valid JSON"):
        read_trace(path)
    trace = read_trace(path, skip_bad=True)
    assert (trace.format, len(trace.requests), trace.skipped) == ("mooncake", 1, 1)


@pytest.mark.parametrize("data", [b"", b" \n\n", gzip.compress(b"", mtime=0)])
def test_an_empty_file(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(data)
    with pytest.raises(TraceError, match="is empty"):
        read_trace(path)


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"question": "who?", "answers": []}, "an object of no known format (with question, answers)"),
        ([1, 2], "a list where an object should be"),
        ("7", "int where an object should be"),
        ("\x00\x01\x02", "not valid JSON"),
        ({"passage_id": 1, "token_length": 2}, "name the file with '0_trace'"),
    ],
)
def test_an_unknown_file(tmp_path: Path, row: Any, says: str) -> None:
    path = write(tmp_path / "t.jsonl", [row])
    for skip_bad in (False, True):
        with pytest.raises(TraceError) as caught:
            read_trace(path, skip_bad=skip_bad)
        message = str(caught.value)
        assert message.startswith(f"{path}, line 1: ")
        assert says in message
        assert "Text is not read: tokenize it" in message
        assert all(name in message for name in ("mooncake", "bailian", "claude_code", "ragpulse", "token_ids"))


def test_a_file_of_bad_lines_only(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", [{"tokens": []}, {"tokens": [-1]}])
    with pytest.raises(TraceError, match="no usable request; 2 malformed lines"):
        read_trace(path, skip_bad=True)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"none\.jsonl: cannot be read: No such file"):
        read_trace(tmp_path / "none.jsonl")
    with pytest.raises(TraceError, match="is a folder"):
        read_trace(tmp_path)


@pytest.mark.parametrize("compression", [".gz", ".zst"])
def test_compressed_data_that_is_cut_off(tmp_path: Path, compression: str) -> None:
    rows = [GOOD["mooncake"] | {"timestamp": i, "hash_ids": [i * 7, i * 7919]} for i in range(3000)]
    path = write(tmp_path / f"t.jsonl{compression}", rows, compression)
    whole = path.read_bytes()
    for kept in (len(whole) - 1, len(whole) - 1000, len(whole) // 2):
        path.write_bytes(whole[:kept])
        with pytest.raises(TraceError, match="damaged or cut off"):
            read_trace(path)


def test_a_tar_holds_sessions_only(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "t.tar", {"a.json": json.dumps(GOOD["mooncake"]).encode()})
    with pytest.raises(TraceError, match=r"t\.tar!a\.json, line 1: an object of no known format"):
        read_trace(path)
    with pytest.raises(TraceError, match="no usable request"):
        read_trace(write_tar(tmp_path / "e.tar", {"a.txt": b"x"}))


def test_a_bad_session_in_a_tar_is_named_or_counted(tmp_path: Path) -> None:
    good = json.dumps(GOOD["claude_code"]).encode()
    bad = json.dumps(GOOD["claude_code"] | {"requests": [{"t": 0, "type": "n", "in": 0}]}).encode()
    path = write_tar(tmp_path / "t.tar", {"a.json": good, "b.json": bad})
    with pytest.raises(TraceError, match=r"t\.tar!b\.json, line 1: session s, request at t=0.0: a prompt of 0"):
        read_trace(path)
    trace = read_trace(path, skip_bad=True)
    assert (len(trace.requests), trace.skipped) == (1, 1)


@pytest.mark.parametrize("kind", ["claude_code", "token_ids"])
def test_a_block_size_where_none_fits(tmp_path: Path, kind: str) -> None:
    with pytest.raises(TraceError, match="says itself how long its parts are"):
        read_trace(write(tmp_path / "t.jsonl", [GOOD[kind]]), block_size=16)


RAGPULSE = {
    "timestamp": "1",
    "output_length": 2,
    "hash_ids": {"sys_prompt": [1], "passages_ids": [], "history": [], "web_search": [], "user_input": []},
    "session_id": "s",
}
_COMPONENT_FILES = {
    "1_sys_prompt": "sys_prompt_id",
    "2_passages": "passage_id",
    "3_history": "history_id",
    "4_user_input": "user_input_id",
    "5_web_search": "web_search_id",
}


def test_ragpulse_needs_its_component_files(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="expected '0_trace' in its name"):
        read_trace(write(tmp_path / "t.jsonl", [RAGPULSE]))
    path = write(tmp_path / "p_0_trace.jsonl", [RAGPULSE])
    with pytest.raises(TraceError, match=r"beside it in p_1_sys_prompt\.jsonl"):
        read_trace(path)
    for name, key in _COMPONENT_FILES.items():
        write(tmp_path / f"p_{name}.jsonl", [{key: 1, "token_length": 2}])
    assert read_trace(path).requests[0].length == 2
    write(tmp_path / "p_2_passages.jsonl", [{"passage_id": 1}])
    with pytest.raises(TraceError, match=r"p_2_passages\.jsonl, line 1: no passage_id or no token_length"):
        read_trace(path)
    write(tmp_path / "p_2_passages.jsonl", [{"passage_id": 1, "token_length": 0}])
    with pytest.raises(TraceError, match=r"p_2_passages\.jsonl, line 1: a component of 0 tokens"):
        read_trace(path)


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (RAGPULSE | {"timestamp": "soon"}, "a timestamp of 'soon'"),
        (RAGPULSE | {"timestamp": "nan"}, "a timestamp of 'nan'"),
        (RAGPULSE | {"output_length": -2}, "an output of -2 tokens"),
        (RAGPULSE | {"hash_ids": {"sys_prompt": [4]}}, "1_sys_prompt does not give its length"),
        (RAGPULSE | {"hash_ids": {}}, "a prompt of 0 tokens"),
    ],
)
def test_a_bad_ragpulse_line(tmp_path: Path, bad: Any, says: str) -> None:
    for name, key in _COMPONENT_FILES.items():
        write(tmp_path / f"p_{name}.jsonl", [{key: 1, "token_length": 2}])
    path = write(tmp_path / "p_0_trace.jsonl", [RAGPULSE, bad])
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    assert says in str(caught.value)
    assert read_trace(path, skip_bad=True).skipped == 1
