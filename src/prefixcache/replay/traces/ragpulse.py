"""RAGPulse: requests as ids of their components, and beside them one file per component with its lengths.

A prompt is its system prompt, passages, history, web search results and user input, in this order. The
lengths of the components differ from `input_length` by a few tokens on every line (what a chat template
adds); what is known of each component wins, so a prompt is as long as its components.

The published file is several recordings one after the other, each with a clock that starts at 0. A
timestamp that falls back therefore begins a recording that comes after all that stands before it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from prefixcache.replay.traces.base import NOTHING, Format, Numbering, TraceRequest, wrong_length
from prefixcache.replay.traces.lines import Lines, TraceError, opened

_EXPECTED = (
    'a RAGPulse line such as {"timestamp": "82", "input_length": 600, "output_length": 90, "hash_ids": '
    '{"sys_prompt": [1], "passages_ids": [7, 9], "history": [], "web_search": [], "user_input": [3]}, '
    '"session_id": "s1"}'
)
_LENGTH_EXPECTED = 'a component line such as {"passage_id": 7, "token_length": 84}'
_TRACE_FILE = "0_trace"
# Component of a request -> (the file that has its lengths, the key of its ids there).
_COMPONENTS = {
    "sys_prompt": ("1_sys_prompt", "sys_prompt_id"),
    "passages_ids": ("2_passages", "passage_id"),
    "history": ("3_history", "history_id"),
    "web_search": ("5_web_search", "web_search_id"),
    "user_input": ("4_user_input", "user_input_id"),
}


class _Components(msgspec.Struct):
    sys_prompt: list[int] = []
    passages_ids: list[int] = []
    history: list[int] = []
    web_search: list[int] = []
    user_input: list[int] = []


class _Line(msgspec.Struct):
    timestamp: float | str
    hash_ids: _Components
    output_length: int = 0
    session_id: str = ""


def _recognises(first: Mapping[str, Any]) -> bool:
    """Whether a file with this first object is of this format."""
    return isinstance(first.get("hash_ids"), dict)


def is_component(first: Mapping[str, Any]) -> bool:
    """Whether a file with this first object holds the lengths of a component and no requests."""
    return "token_length" in first and any(key in first for _, key in _COMPONENTS.values())


def _read(lines: Lines, block_size: int | None) -> tuple[list[TraceRequest], int]:
    """The requests of a file, with the lengths from the files beside it; every grain is visible."""
    lengths = {component: _lengths(lines.path, *where) for component, where in _COMPONENTS.items()}
    numbering = Numbering()
    requests: list[TraceRequest] = []
    before = clock = 0.0
    for number, line in lines.decode(_Line, _EXPECTED):
        ids = [(c, i) for c in _COMPONENTS for i in getattr(line.hash_ids, c)]
        wrong = _wrong(line, ids, lengths)
        if wrong:
            lines.fault(number, wrong)
            continue
        now = before + float(line.timestamp)
        if now < clock:
            before, now = clock, clock + float(line.timestamp)
        clock = now
        sizes = np.array([lengths[component][i] for component, i in ids], dtype=np.uint32)
        requests.append(
            TraceRequest(
                timestamp=now,
                session=line.session_id,
                position=number,
                pieces=numbering.of(ids),
                lengths=sizes,
                length=int(sizes.sum()),
                output=numbering.private() if line.output_length else NOTHING,
                output_length=line.output_length,
            )
        )
    return requests, 1


def _wrong(line: _Line, ids: list[tuple[str, int]], lengths: dict[str, dict[int, int]]) -> str:
    if not _is_number(line.timestamp):
        return f"a timestamp of {line.timestamp!r}"
    for component, i in ids:
        if i not in lengths[component]:
            return f"{component} has the id {i}; {_COMPONENTS[component][0]} does not give its length"
    prompt = sum(lengths[component][i] for component, i in ids)
    return wrong_length("a prompt", prompt, least=1) or wrong_length("an output", line.output_length)


def _is_number(value: float | str) -> bool:
    try:
        return math.isfinite(float(value))
    except ValueError:
        return False


def _lengths(path: Path, stem: str, key: str) -> dict[int, int]:
    """Token length by id, from the component file beside the trace; damage there is never passed over."""
    beside = _beside(path, stem)
    found: dict[int, int] = {}
    with opened(beside) as (stream, _):
        lines = Lines(stream, beside)
        for number, line in lines.decode(dict[str, int], _LENGTH_EXPECTED):
            if key not in line or "token_length" not in line:
                lines.fault(number, f"no {key} or no token_length")
            wrong = wrong_length("a component", line["token_length"], least=1)
            if wrong:
                lines.fault(number, wrong)
            found[line[key]] = line["token_length"]
    return found


def _beside(path: Path, stem: str) -> Path:
    if _TRACE_FILE not in path.name:
        raise TraceError(
            f"{path}: a RAGPulse trace; expected '{_TRACE_FILE}' in its name, so that the lengths of its "
            f"components can be found beside it ('{stem}' and so on)"
        )
    prefix = path.name[: path.name.index(_TRACE_FILE)]
    matches = sorted(p for p in path.parent.iterdir() if p.name.startswith(f"{prefix}{stem}.jsonl"))
    if not matches:
        raise TraceError(
            f"{path}: a RAGPulse trace; expected the token lengths of a component beside it in "
            f"{prefix}{stem}.jsonl (or .jsonl.gz, .jsonl.zst)"
        )
    return matches[0]


FORMAT = Format(
    name="ragpulse",
    keys="hash_ids (an object of lists per component), input_length, timestamp",
    block_size=None,
    recognises=_recognises,
    read=_read,
)
