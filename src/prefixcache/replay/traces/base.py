"""What every reader makes of its file: a `Trace` of requests, in replay order, not yet as tokens.

A prompt is a row of *pieces*. A piece is a number that stands for some text, and its length in tokens:
a block id of a trace that was hashed before it was published, a document of a RAG trace, an output. Equal
numbers mean equal text. So 145 million tokens are a few megabytes until the replay expands one prompt at
a time. A trace that carries real token ids has no pieces: its numbers are the tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, TypeAlias

import numpy as np

from prefixcache.keys import Scope
from prefixcache.replay.traces.expand import MAX_PIECES, expand_blocks, expand_pieces
from prefixcache.replay.traces.lines import Lines, TraceError

UInt32s: TypeAlias = np.ndarray[Any, np.dtype[np.uint32]]
# Far beyond any context window: a length above it is a mistake, and would cost the memory of its tokens.
MAX_TOKENS = 2**26
NO_SCOPE = Scope()
NOTHING: UInt32s = np.empty(0, dtype=np.uint32)


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request of a trace.

    Attributes:
        timestamp: arrival in seconds; only the order counts.
        session: who sent it, the first tie-break between equal timestamps.
        position: place in the file, the second one.
        pieces: uint32 array, the numbers of the prompt's pieces; the tokens themselves in a token trace.
        lengths: uint32 array, tokens of each piece; None where every piece but the last is one block of
            the trace, and the last one is what is left of `length`.
        length: tokens of the prompt, at least 1.
        output: uint32 array: the piece that is generated, one or none; its tokens in a token trace.
        output_length: tokens generated.
        scope: what the KV depends on besides the tokens.
        unnamed_tail: the last piece has no id in the trace: text that nothing repeats, smaller than a block.
    """

    timestamp: float
    session: str | int
    position: int
    pieces: UInt32s
    lengths: UInt32s | None
    length: int
    output: UInt32s
    output_length: int
    scope: Scope = NO_SCOPE
    unnamed_tail: bool = False


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in replay order: by timestamp, ties by session, then by place in the file.

    Attributes:
        name: what tables call it.
        path: where it came from, as the user wrote it; None for built-in traffic.
        format: name of the reader.
        block_size: tokens that one id of the trace stands for: the finest grain it can show. 1 where
            any token boundary is visible.
        holds_tokens: the pieces are the tokens.
        requests: the requests.
        skipped: malformed lines that were passed over.
        seed: what built-in traffic was made from.
    """

    name: str
    path: str | None
    format: str
    block_size: int
    holds_tokens: bool
    requests: tuple[TraceRequest, ...]
    skipped: int = 0
    seed: int | None = None

    def tokens(self, request: TraceRequest) -> UInt32s:
        """The prompt as tokens, the same in every process. O(length); nothing is kept."""
        if self.holds_tokens:
            return request.pieces
        if request.lengths is not None:
            return expand_pieces(request.pieces, request.lengths)
        return expand_blocks(request.pieces, self.block_size, request.length)

    def output_tokens(self, request: TraceRequest) -> UInt32s:
        """The generated tokens, which a later turn of the session may repeat in its prompt."""
        if self.holds_tokens or not request.output_length:
            return request.output
        return expand_blocks(request.output, request.output_length, request.output_length)


@dataclass(frozen=True, slots=True)
class Format:
    """A reader.

    Attributes:
        name: the format.
        keys: by which a user recognises it, for messages.
        block_size: tokens per id, unless the user says otherwise; None where the trace itself says it.
        recognises: whether a file whose first JSON object is this one is of this format.
        read: (lines, block size or None) to the requests, and the finest grain they show in tokens.
        holds_tokens: its requests are tokens, not ids that stand for many.
    """

    name: str
    keys: str
    block_size: int | None
    recognises: Callable[[Mapping[str, Any]], bool]
    read: Callable[[Lines, int | None], tuple[list[TraceRequest], int]]
    holds_tokens: bool = False


@dataclass(slots=True)
class Numbering:
    """Numbers for pieces: 0, 1, 2... in the order of first sight, so that any id of any type fits 32 bits."""

    _next: Iterator[int] = field(default_factory=count)
    _numbers: dict[Hashable, int] = field(default_factory=dict)

    def of(self, ids: Iterable[Hashable]) -> UInt32s:
        """The numbers of these ids, new ones where an id is new. O(ids)."""
        numbers = self._numbers
        following = self._next
        found = [numbers[i] if i in numbers else numbers.setdefault(i, next(following)) for i in ids]
        return self._checked(found)

    def private(self) -> UInt32s:
        """A number that no id has or will have: text that nothing else in the trace repeats."""
        return self._checked([next(self._next)])

    def forget_ids(self) -> None:
        """The ids that follow mean other text, even where they are equal. Numbers given out stay taken."""
        self._numbers.clear()

    @staticmethod
    def _checked(numbers: list[int]) -> UInt32s:
        if numbers and max(numbers) >= MAX_PIECES:
            raise TraceError(f"the trace has more than {MAX_PIECES} different ids; split it")
        return np.array(numbers, dtype=np.uint32)


@dataclass(frozen=True, slots=True)
class BlockPieces:
    """A prompt given by block ids: its pieces, or `wrong`, why the ids do not fit its length."""

    pieces: UInt32s = field(default_factory=lambda: NOTHING)
    unnamed_tail: bool = False
    wrong: str = ""


def wrong_length(what: str, tokens: int, least: int = 0) -> str:
    """What is wrong with a length in tokens that a trace states; nothing for a sane one."""
    if least <= tokens <= MAX_TOKENS:
        return ""
    return f"{what} of {tokens} tokens; from {least} to {MAX_TOKENS} are possible"


def block_pieces(ids: list[int], length: int, block_size: int, numbering: Numbering) -> BlockPieces:
    """The pieces of a prompt of `length` tokens.

    Either the last id stands for what is left of the prompt, or the ids are full blocks and what is left
    has none: then it is a piece of its own, which nothing repeats.
    """
    full, rest = divmod(length, block_size)
    wrong = wrong_length("a prompt", length, least=1)
    if wrong:
        return BlockPieces(wrong=wrong)
    if len(ids) == full + (rest > 0):
        return BlockPieces(numbering.of(ids))
    if len(ids) == full:
        return BlockPieces(np.concatenate([numbering.of(ids), numbering.private()]), unnamed_tail=True)
    needed = full + (rest > 0)
    return BlockPieces(
        wrong=f"{len(ids)} block ids for {length} tokens, which make {needed} blocks of {block_size} "
        "(if the trace has blocks of another size, say so with --trace-block-size)"
    )


def in_replay_order(requests: Iterable[TraceRequest]) -> tuple[TraceRequest, ...]:
    """By timestamp, ties by session, then by place in the file."""
    return tuple(sorted(requests, key=lambda r: (r.timestamp, r.session, r.position)))
