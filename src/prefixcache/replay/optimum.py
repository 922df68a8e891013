"""What no design can beat, and a plain yardstick: neither is a design, both read the trace's own pieces.

`Ceiling` is an unbounded cache that reuses any number of tokens. `PlainLru` is a cache that knows nothing
but the pieces of the trace and their order of use.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from prefixcache.replay.traces import Trace, TraceRequest

_UInt64s: TypeAlias = np.ndarray[Any, np.dtype[np.uint64]]
_Symbols: TypeAlias = np.ndarray[Any, Any]

_LENGTH_BITS = 32
_LENGTH_MASK = (1 << _LENGTH_BITS) - 1


class Ceiling:
    """How much of each prompt any earlier one began with: the exact longest common prefix, in tokens.

    Works on pieces, not on tokens: two prompts share a piece whole, or, where one was cut short, the
    shorter of its two lengths, which is what the expanded tokens share. Memory grows with the pieces
    that are new.
    """

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._all = _Tree(trace)
        self._scoped: dict[Hashable, _Tree] | None = (
            {} if len({request.scope for request in trace.requests}) > 1 else None
        )

    def observe(self, request: TraceRequest, *, output: bool = False) -> tuple[int, int]:
        """(tokens shared with any earlier request, with one of the same scope); then it is known too.

        With `output` the generated tokens become reusable but the last, which is never computed.
        O(pieces) comparisons in a few numpy calls.
        """
        symbols = _symbols(self._trace, request)
        known = _with_output(self._trace, request, symbols) if output else symbols
        shared = self._all.observe(symbols, known, request)
        if self._scoped is None:
            return shared, shared
        own = self._scoped.setdefault(request.scope, _Tree(self._trace))
        return shared, own.observe(symbols, known, request)


def _symbols(trace: Trace, request: TraceRequest) -> _Symbols:
    """A prompt as numbers that are equal where the text is: tokens, or piece and length in one number."""
    if trace.holds_tokens:
        return request.pieces
    lengths: Any = request.lengths
    if lengths is None:
        lengths = np.full(request.pieces.size, trace.block_size, dtype=np.uint64)
        lengths[-1] = request.length - trace.block_size * (request.pieces.size - 1)
    shifted = request.pieces.astype(np.uint64) << np.uint64(_LENGTH_BITS)
    return shifted | np.asarray(lengths, dtype=np.uint64)


def _with_output(trace: Trace, request: TraceRequest, symbols: _Symbols) -> _Symbols:
    computed = request.output_length - 1
    if computed < 1:
        return symbols
    if trace.holds_tokens:
        return np.concatenate([symbols, request.output[:computed]])
    piece = np.array([(int(request.output[0]) << _LENGTH_BITS) | computed], dtype=np.uint64)
    return np.concatenate([symbols, piece])


@dataclass(slots=True)
class _Node:
    """The text between two branching points, and how it goes on: by piece, then by piece and length."""

    edge: _Symbols
    children: dict[int, list[_Node]] = field(default_factory=dict)


class _Tree:
    """A compressed prefix tree over symbols: insert and longest match in one walk."""

    def __init__(self, trace: Trace) -> None:
        self._holds_tokens = trace.holds_tokens
        self._root = _Node(np.empty(0, dtype=np.uint64))

    def observe(self, symbols: _Symbols, known: _Symbols, request: TraceRequest) -> int:
        """Tokens of `symbols` that something stored begins with; then `known`, its extension, is stored."""
        node, at, cut = self._root, 0, 0
        while at < known.size:
            siblings = node.children.setdefault(self._piece(known[at]), [])
            child = next((child for child in siblings if child.edge[0] == known[at]), None)
            if child is None:
                cut = max((self._overlap(child.edge[0], known[at]) for child in siblings), default=0)
                siblings.append(_Node(known[at:]))
                break
            same = _common(child.edge, known[at:])
            at += same
            if same < child.edge.size:
                if at < known.size:
                    cut = self._overlap(child.edge[same], known[at])
                self._split(child, same)
                if at < known.size:
                    child.children.setdefault(self._piece(known[at]), []).append(_Node(known[at:]))
                break
            node = child
        if at >= symbols.size:
            return request.length
        return self._length(symbols[:at]) + cut

    def _split(self, node: _Node, at: int) -> None:
        below = _Node(node.edge[at:], node.children)
        node.edge = node.edge[:at]
        node.children = {self._piece(below.edge[0]): [below]}

    def _piece(self, symbol: Any) -> int:
        return int(symbol) if self._holds_tokens else int(symbol) >> _LENGTH_BITS

    def _overlap(self, a: Any, b: Any) -> int:
        """Tokens that two different symbols begin with: the shorter length, when they are one piece."""
        if self._holds_tokens or self._piece(a) != self._piece(b):
            return 0
        return min(int(a) & _LENGTH_MASK, int(b) & _LENGTH_MASK)

    def _length(self, symbols: _Symbols) -> int:
        if self._holds_tokens:
            return int(symbols.size)
        return int((symbols & np.uint64(_LENGTH_MASK)).sum())


def _common(a: _Symbols, b: _Symbols) -> int:
    """How many symbols two rows begin with in common."""
    most = min(a.size, b.size)
    differs = a[:most] != b[:most]
    first = int(differs.argmax()) if most else 0
    return first if most and differs[first] else most


class PlainLru:
    """A cache of the trace's own pieces: the longest run of cached ones counts, then all of them are cached.

    A piece is known by all that stands before it. The pieces of a prompt are touched deepest first, so
    what is least recently used is a leaf. Every piece takes the room of a whole block, or its own length
    in a trace of pieces of many lengths; outputs and tails without an id take none.

    Args:
        trace: a trace that has pieces.
        capacities: tokens, one cache each. A trace of blocks gets as many whole blocks as fit.
    """

    def __init__(self, trace: Trace, capacities: Sequence[int]) -> None:
        self._trace = trace
        self._nodes: dict[tuple[int, int], int] = {}
        self._caches = [_Recency(capacity) for capacity in capacities]

    def hits(self, request: TraceRequest) -> list[int]:
        """Tokens of the prompt that each cache has; then they have all of it. O(pieces) per cache."""
        path, sizes = self._path(request), self._sizes(request)
        if request.unnamed_tail:
            path.pop()
            sizes.pop()
        tokens = []
        for cache in self._caches:
            found = cache.run(path)
            if request.lengths is None:
                tokens.append(min(found * self._trace.block_size, request.length))
            else:
                tokens.append(sum(sizes[:found]))
            cache.touch(path, sizes)
        return tokens

    def _path(self, request: TraceRequest) -> list[int]:
        nodes, parent, path = self._nodes, -1, []
        for piece in request.pieces.tolist():
            parent = nodes.setdefault((parent, piece), len(nodes))
            path.append(parent)
        return path

    def _sizes(self, request: TraceRequest) -> list[int]:
        if request.lengths is None:
            return [self._trace.block_size] * request.pieces.size
        sizes: list[int] = request.lengths.tolist()
        return sizes


class _Recency:
    """Pieces in the order of their last use, up to a capacity in tokens."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._sizes: OrderedDict[int, int] = OrderedDict()
        self._used = 0

    def run(self, path: list[int]) -> int:
        """How many pieces from the beginning are cached."""
        for found, piece in enumerate(path):
            if piece not in self._sizes:
                return found
        return len(path)

    def touch(self, path: list[int], sizes: list[int]) -> None:
        """Cache all of these, deepest first, and let go of the oldest."""
        cached = self._sizes
        for piece, size in zip(reversed(path), reversed(sizes), strict=True):
            if piece in cached:
                cached.move_to_end(piece)
            else:
                cached[piece] = size
                self._used += size
        while self._used > self._capacity:
            self._used -= cached.popitem(last=False)[1]
