"""Mooncake JSONL: prompts as ids of 512-token blocks, one request a line, and its multi-turn variant.

The published traces hold whole prompts. The variant that load generators use for conversations has a
`session_id`, a `delay` since the session's previous request, and from the second turn on only what is
NEW: the prompt is then all earlier prompts and outputs of the session and the new part. Lines with whole
prompts may carry `session_id` and `delay` too, so the two are told apart by what later lines of a session
hold: a whole prompt begins with the first block of its session, a new part does not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np

from prefixcache.replay.traces.base import NOTHING, Format, Numbering, TraceRequest, UInt32s, block_pieces, wrong_length
from prefixcache.replay.traces.lines import Lines

_BLOCK_SIZE = 512
_EXPECTED = 'a Mooncake line such as {"timestamp": 0, "input_length": 1000, "output_length": 50, "hash_ids": [0, 1]}'
_MS = 1000.0


class _Line(msgspec.Struct):
    input_length: int
    hash_ids: list[int]
    output_length: int = 0
    timestamp: float | None = None
    delay: float | None = None
    session_id: str | int | None = None


@dataclass(frozen=True, slots=True)
class _Turn:
    """A line as a request of its own."""

    request: TraceRequest
    has_timestamp: bool
    delay: float | None


def _recognises(first: Mapping[str, Any]) -> bool:
    """Whether a file with this first object is of this format."""
    return isinstance(first.get("hash_ids"), list) and "input_length" in first and "chat_id" not in first


def _read(lines: Lines, block_size: int | None) -> tuple[list[TraceRequest], int]:
    """The requests of a file, and the finest grain it shows.

    In an incremental trace outputs of any length stand between the blocks, so every grain is visible.
    """
    size = block_size or _BLOCK_SIZE
    turns = list(_turns(lines, size, Numbering()))
    requests = _timed(turns)
    if _later_turns_hold_only_news(turns):
        return _accumulated(requests, size), 1
    return requests, size


def _turns(lines: Lines, size: int, numbering: Numbering) -> Iterator[_Turn]:
    for number, line in lines.decode(_Line, _EXPECTED):
        prompt = block_pieces(line.hash_ids, line.input_length, size, numbering)
        wrong = prompt.wrong or wrong_length("an output", line.output_length)
        if wrong:
            lines.fault(number, wrong)
            continue
        request = TraceRequest(
            timestamp=(line.timestamp or 0.0) / _MS,
            session="" if line.session_id is None else str(line.session_id),
            position=number,
            pieces=prompt.pieces,
            lengths=None,
            length=line.input_length,
            output=numbering.private() if line.output_length else NOTHING,
            output_length=line.output_length,
            unnamed_tail=prompt.unnamed_tail,
        )
        yield _Turn(request, line.timestamp is not None, line.delay)


def _timed(turns: list[_Turn]) -> list[TraceRequest]:
    """The requests; one that has a delay alone comes so long after its session's previous one.

    The delay really runs from the end of the previous output; how long that took a trace cannot know.
    """
    clock: dict[str | int, float] = {}
    requests = []
    for turn in turns:
        request = turn.request
        if not turn.has_timestamp and turn.delay is not None:
            now = clock.get(request.session, 0.0) + turn.delay / _MS
            request = replace(request, timestamp=now)
        clock[request.session] = request.timestamp
        requests.append(request)
    return requests


def _later_turns_hold_only_news(turns: list[_Turn]) -> bool:
    """Whether the trace is incremental.

    By majority: a summarised conversation may begin anew in the one kind of trace, and a document may
    come back in the other.
    """
    first_block: dict[str | int, int] = {}
    whole = news = 0
    for turn in turns:
        session, block = turn.request.session, int(turn.request.pieces[0])
        if session == "":
            continue
        if session not in first_block:
            first_block[session] = block
        elif turn.delay is not None:
            whole += block == first_block[session]
            news += block != first_block[session]
    return news > whole


def _accumulated(requests: list[TraceRequest], size: int) -> list[TraceRequest]:
    """The requests with all that their session said before in front of what is new."""
    said: dict[str | int, tuple[UInt32s, UInt32s]] = {}
    whole = []
    for request in requests:
        new_lengths = np.full(request.pieces.size, size, dtype=np.uint32)
        new_lengths[-1] = request.length - size * (request.pieces.size - 1)
        before, before_lengths = said.get(request.session, (NOTHING, NOTHING))
        pieces = np.concatenate([before, request.pieces])
        lengths = np.concatenate([before_lengths, new_lengths])
        whole.append(replace(request, pieces=pieces, lengths=lengths, length=int(lengths.sum())))
        if request.session != "":
            output_lengths = np.full(request.output.size, request.output_length, dtype=np.uint32)
            said[request.session] = (
                np.concatenate([pieces, request.output]),
                np.concatenate([lengths, output_lengths]),
            )
    return whole


FORMAT = Format(
    name="mooncake",
    keys="hash_ids (a list), input_length, output_length, timestamp",
    block_size=_BLOCK_SIZE,
    recognises=_recognises,
    read=_read,
)
