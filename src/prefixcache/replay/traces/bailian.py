"""Bailian JSONL (Alibaba's Qwen service): whole prompts as ids of 16-token blocks, turns linked by chats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from prefixcache.replay.traces.base import NOTHING, Format, Numbering, TraceRequest, block_pieces, wrong_length
from prefixcache.replay.traces.lines import Lines

_BLOCK_SIZE = 16
_EXPECTED = (
    'a Bailian line such as {"chat_id": 1, "parent_chat_id": -1, "timestamp": 0.5, "input_length": 20, '
    '"output_length": 7, "type": "text", "turn": 1, "hash_ids": [0, 1]}'
)


class _Line(msgspec.Struct):
    chat_id: int
    timestamp: float
    input_length: int
    hash_ids: list[int]
    parent_chat_id: int = -1
    output_length: int = 0


def _recognises(first: Mapping[str, Any]) -> bool:
    """Whether a file with this first object is of this format."""
    return "chat_id" in first and isinstance(first.get("hash_ids"), list)


def _read(lines: Lines, block_size: int | None) -> tuple[list[TraceRequest], int]:
    """The requests of a file and the block size of its ids. A session is named by its first chat."""
    size = block_size or _BLOCK_SIZE
    numbering = Numbering()
    first_chat: dict[int, int] = {}
    requests = []
    for number, line in lines.decode(_Line, _EXPECTED):
        prompt = block_pieces(line.hash_ids, line.input_length, size, numbering)
        wrong = prompt.wrong or wrong_length("an output", line.output_length)
        if wrong:
            lines.fault(number, wrong)
            continue
        session = first_chat.get(line.parent_chat_id, line.chat_id)
        first_chat[line.chat_id] = session
        requests.append(
            TraceRequest(
                timestamp=line.timestamp,
                session=session,
                position=number,
                pieces=prompt.pieces,
                lengths=None,
                length=line.input_length,
                output=numbering.private() if line.output_length else NOTHING,
                output_length=line.output_length,
                unnamed_tail=prompt.unnamed_tail,
            )
        )
    return requests, size


FORMAT = Format(
    name="bailian",
    keys="chat_id, parent_chat_id, hash_ids (a list), input_length, timestamp",
    block_size=_BLOCK_SIZE,
    recognises=_recognises,
    read=_read,
)
