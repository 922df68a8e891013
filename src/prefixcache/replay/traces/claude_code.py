"""Claude Code sessions (JSON, or a tar of them): prompts as ids of FULL 64-token blocks, local to a session.

What is left of a prompt after its full blocks has no id: nothing repeats it. Sub-agents are nested; their
times count from the entry that started them, their ids are those of the session.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import msgspec

from prefixcache.replay.traces.base import NOTHING, Format, Numbering, TraceRequest, block_pieces, wrong_length
from prefixcache.replay.traces.lines import Lines

_EXPECTED = (
    'a session such as {"id": "s1", "block_size": 64, "hash_id_scope": "local", "requests": '
    '[{"t": 0.0, "type": "n", "in": 150, "out": 20, "hash_ids": [1, 2]}]}'
)


class _Call(msgspec.Struct, rename={"length": "in", "output_length": "out"}):
    """A call of the model, or a sub-agent with calls of its own."""

    t: float
    type: str
    length: int = 0
    output_length: int = 0
    hash_ids: list[int] = []
    requests: list[_Call] = []


class _Session(msgspec.Struct):
    id: str | int
    block_size: int
    requests: list[_Call]
    hash_id_scope: Literal["local", "global"] = "local"


def _recognises(first: Mapping[str, Any]) -> bool:
    """Whether a file with this first object is of this format."""
    return isinstance(first.get("requests"), list) and "block_size" in first


class SessionReader:
    """Reads session after session; ids that are local to a session never meet those of another."""

    def __init__(self) -> None:
        self._numbering = Numbering()
        self._requests: list[TraceRequest] = []
        self._block_size = 0

    def read(self, lines: Lines) -> None:
        """Read all sessions of a file."""
        for number, session in lines.decode(_Session, _EXPECTED):
            wrong = wrong_length("a block", session.block_size, least=1)
            if self._block_size not in (0, session.block_size):
                wrong = f"blocks of {session.block_size} tokens after blocks of {self._block_size}"
            if wrong:
                lines.fault(number, wrong)
                continue
            self._block_size = session.block_size
            if session.hash_id_scope == "local":
                self._numbering.forget_ids()
            for time, call in _calls(session.requests, 0.0):
                self._add(session, time, call, lines, number)

    def result(self) -> tuple[list[TraceRequest], int]:
        """The requests read so far and the block size of their ids."""
        return self._requests, self._block_size

    def _add(self, session: _Session, time: float, call: _Call, lines: Lines, number: int) -> None:
        prompt = block_pieces(call.hash_ids, call.length, session.block_size, self._numbering)
        wrong = prompt.wrong or wrong_length("an output", call.output_length)
        if wrong:
            lines.fault(number, f"session {session.id}, request at t={call.t}: {wrong}")
            return
        self._requests.append(
            TraceRequest(
                timestamp=time,
                session=str(session.id),
                position=len(self._requests),
                pieces=prompt.pieces,
                lengths=None,
                length=call.length,
                output=self._numbering.private() if call.output_length else NOTHING,
                output_length=call.output_length,
                unnamed_tail=prompt.unnamed_tail,
            )
        )


def _read(lines: Lines, block_size: int | None) -> tuple[list[TraceRequest], int]:
    """The requests of a file and the block size of its ids, which each session states itself."""
    reader = SessionReader()
    reader.read(lines)
    return reader.result()


def _calls(calls: list[_Call], start: float) -> Iterator[tuple[float, _Call]]:
    """Every model call with its time since the start of the session, sub-agents where they stand.

    A stack and not recursion: how deep agents start agents is the trace's choice.
    """
    waiting = [(start, iter(calls))]
    while waiting:
        base, entries = waiting[-1]
        call = next(entries, None)
        if call is None:
            waiting.pop()
        elif call.type == "subagent":
            waiting.append((base + call.t, iter(call.requests)))
        else:
            yield base + call.t, call


FORMAT = Format(
    name="claude_code",
    keys="id, block_size, hash_id_scope, requests",
    block_size=None,
    recognises=_recognises,
    read=_read,
)
