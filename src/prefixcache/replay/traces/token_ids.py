"""Token-id JSONL: one request a line with the ids themselves, from a tokenizer or an engine's log.

    {"tokens": [1, 2, 3], "timestamp": 0.5, "session": "a", "output_tokens": [4], "adapter": "x", "salt": "t"}

Only `tokens` is needed (`prompt_token_ids`, `input_ids` and `token_ids` are taken for it). Timestamps are
seconds; without them the order of the file counts. `output_length` stands in for unknown output tokens.
`model`, `adapter` and `salt` make the scope.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from prefixcache.errors import TokenError
from prefixcache.keys import Scope, as_tokens
from prefixcache.replay.traces.base import NO_SCOPE, NOTHING, Format, TraceRequest, UInt32s, wrong_length
from prefixcache.replay.traces.expand import expand_blocks
from prefixcache.replay.traces.lines import Lines

_PROMPT_KEYS = ("tokens", "prompt_token_ids", "input_ids", "token_ids")
_EXPECTED = (
    'a request such as {"tokens": [1, 2, 3], "timestamp": 0.5, "session": "a", "output_tokens": [4]}, '
    "where a token is an integer from 0 to 4294967295"
)


class _Line(msgspec.Struct):
    tokens: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    input_ids: list[int] | None = None
    token_ids: list[int] | None = None
    timestamp: float = 0.0
    session: str | int | None = None
    session_id: str | int | None = None
    output_tokens: list[int] | None = None
    output_token_ids: list[int] | None = None
    output_length: int = 0
    model: str = ""
    adapter: str | int | None = None
    salt: str | int | None = None


def _recognises(first: Mapping[str, Any]) -> bool:
    """Whether a file with this first object is of this format."""
    return any(isinstance(first.get(key), list) for key in _PROMPT_KEYS)


def _read(lines: Lines, block_size: int | None) -> tuple[list[TraceRequest], int]:
    """The requests of a file; every token boundary is visible."""
    requests = []
    scopes: dict[tuple[str, str | int | None, str | int | None], Scope] = {}
    for number, line in lines.decode(_Line, _EXPECTED):
        try:
            prompt, output = _prompt(line), _output(line, number)
        except (TokenError, ValueError) as error:
            lines.fault(number, str(error))
            continue
        names = (line.model, line.adapter, line.salt)
        if names not in scopes:
            plain = names == ("", None, None)
            scopes[names] = NO_SCOPE if plain else Scope(line.model, adapter=line.adapter, salt=line.salt)
        session = line.session if line.session is not None else line.session_id
        requests.append(
            TraceRequest(
                timestamp=line.timestamp,
                session="" if session is None else str(session),
                position=number,
                pieces=prompt,
                lengths=None,
                length=prompt.size,
                output=output,
                output_length=output.size,
                scope=scopes[names],
            )
        )
    return requests, 1


def _prompt(line: _Line) -> UInt32s:
    given = [ids for key in _PROMPT_KEYS if (ids := getattr(line, key)) is not None]
    if len(given) != 1:
        raise ValueError(f"{len(given)} lists of prompt tokens; one is needed")
    if not given[0]:
        raise ValueError("a prompt of 0 tokens; at least 1 is needed")
    return np.frombuffer(as_tokens(given[0]), dtype="<u4").astype(np.uint32, copy=False)


def _output(line: _Line, number: int) -> UInt32s:
    given = line.output_tokens if line.output_tokens is not None else line.output_token_ids
    if given is not None:
        return np.frombuffer(as_tokens(given), dtype="<u4").astype(np.uint32, copy=False)
    wrong = wrong_length("an output", line.output_length)
    if wrong:
        raise ValueError(wrong)
    if line.output_length == 0:
        return NOTHING
    return expand_blocks(np.array([number], dtype=np.uint32), line.output_length, line.output_length)


FORMAT = Format(
    name="token_ids",
    keys="tokens (a list; or prompt_token_ids, input_ids, token_ids)",
    block_size=None,
    recognises=_recognises,
    read=_read,
    holds_tokens=True,
)
