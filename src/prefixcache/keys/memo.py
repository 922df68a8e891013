"""Hash a chain once per distinct prefix, not once per request.

Requests share system prompts and turns, so most blocks of a new prompt were hashed before. The memo keeps
recent prompts in byte order; the remembered prompt with the longest common prefix is then always a
neighbour of the new one, found by one bisection, and the shared part is one memcmp.

A prompt with media is cut where the media begin and end: plain pieces are found as above, each behind the
key that it continues from, and the blocks that media touch are known by their exact content.

    | plain | plain | media | media | plain |        three pieces
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import TypeAlias

from prefixcache.keys.chain import ChainHash
from prefixcache.keys.extras import Extras
from prefixcache.keys.scope import Scope
from prefixcache.keys.tokens import TOKEN_BYTES, Buffer, common_tokens

Place: TypeAlias = tuple[bytes, bytes]  # where a piece begins: its encoded scope, and the key it continues from
Piece: TypeAlias = tuple[Place, bytes, Extras | None]  # and its tokens, and what these carry

_KEY_COST = 100  # bytes that a remembered key may cost: the key itself and what points to it
_PIECE_COST = 400
_MOST_ROOTS = 4096


class ChainMemo:
    """Block keys of prompts, with a bounded memory of the most recent ones.

    Args:
        chain: how keys are made.
        most_bytes: memory of all that is remembered together; the least recently used is forgotten.
        most_pieces: the same as a count, which bounds the cost of keeping them in order.

    A new prompt of n tokens costs O(log m) comparisons with the m remembered ones and hashes only the
    blocks behind the longest prefix it shares with any of them.
    """

    def __init__(self, chain: ChainHash, most_bytes: int = 32 * 2**20, most_pieces: int = 4096) -> None:
        self.chain = chain
        self.most_bytes, self.most_pieces = most_bytes, most_pieces
        self.bytes = 0
        self._sorted: dict[Place, list[bytes]] = {}  # plain pieces, by where they begin
        self._keys: OrderedDict[Piece, list[bytes]] = OrderedDict()
        self._roots: dict[bytes, bytes] = {}

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def scopes(self) -> Iterable[bytes]:
        """Encoded scopes that were asked for, the most recent ones at least."""
        return self._roots

    def root(self, scope: bytes) -> bytes:
        """What the first block of an encoded scope continues from."""
        key = self._roots.get(scope)
        if key is None:
            if len(self._roots) >= _MOST_ROOTS:  # tenants come and go; a root is cheap to make again
                self._roots.clear()
            key = self._roots[scope] = self.chain.root(scope)
        return key

    def keys(
        self, root: bytes, tokens: Buffer, blocks: int, extras: Extras | None = None, scope: Scope | None = None
    ) -> list[bytes]:
        """Keys of the first `blocks` keyed blocks of a prompt. The list is the caller's own.

        Args:
            root: the encoded scope.
            scope: the same as a value, for layouts that name parts of it.
        """
        parent = self.root(root)
        if extras is None:
            return self._plain((root, parent), tokens, 0, blocks, scope)
        keys: list[bytes] = []
        for start, end, touched in self._pieces(extras, blocks):
            place = (root, keys[-1] if keys else parent)
            if touched:
                keys += self._touched(place, tokens, start, end, extras, scope)
            else:
                keys += self._plain(place, tokens, start, end, scope)
        return keys

    def _pieces(self, extras: Extras, blocks: int) -> Iterator[tuple[int, int, bool]]:
        """The blocks [0, blocks) cut into (first block, end, whether media or extra ids touch it)."""
        size, ahead = self.chain.block_size, self.chain.lookahead
        at = 0
        if extras.ids and blocks:
            yield 0, blocks, True
            at = blocks
        for begin, end, _, _ in extras.runs:
            first, last = max((begin - ahead) // size, at), min(-(-end // size), blocks)
            if at < min(first, blocks):
                yield at, min(first, blocks), False
            if first < last:
                yield first, last, True
            at = max(at, last)
        if at < blocks:
            yield at, blocks, False

    def _text(self, tokens: Buffer, start: int, end: int) -> bytes:
        """The tokens that the keys of the blocks [start, end) cover."""
        size = self.chain.block_size
        return bytes(tokens[start * size * TOKEN_BYTES : (end * size + self.chain.lookahead) * TOKEN_BYTES])

    def _plain(self, place: Place, tokens: Buffer, start: int, end: int, scope: Scope | None) -> list[bytes]:
        if start >= end:
            return []
        text = self._text(tokens, start, end)
        keys = self._longest(place, text, end - start)
        if len(keys) < end - start:
            parent = keys[-1] if keys else place[1]
            keys += self.chain.blocks(parent, tokens, start + len(keys), end, None, scope)
            self._remember(place, text, keys)
        return keys

    def _longest(self, place: Place, text: bytes, blocks: int) -> list[bytes]:
        """Keys of the longest run of leading blocks shared with a remembered piece from the same place."""
        pieces = self._sorted.get(place)
        if not pieces:
            return []
        at = bisect_left(pieces, text)
        best, owner = 0, None
        for other in pieces[max(at - 1, 0) : at + 1]:
            most = min(len(other), len(text)) // TOKEN_BYTES
            shared = self.chain.keyed(common_tokens(other, 0, text, 0, most))
            if shared > best:
                best, owner = min(shared, blocks), other
        if owner is None:
            return []
        piece = (place, owner, None)
        self._keys.move_to_end(piece)
        return self._keys[piece][:best]

    def _touched(
        self, place: Place, tokens: Buffer, start: int, end: int, extras: Extras, scope: Scope | None
    ) -> list[bytes]:
        size = self.chain.block_size
        carried = extras.cut(start * size, end * size + self.chain.lookahead)
        piece = (place, self._text(tokens, start, end), carried)
        keys = self._keys.get(piece)
        if keys is None:
            keys = self.chain.blocks(place[1], tokens, start, end, extras, scope)
            self._add(piece, keys)
        else:
            self._keys.move_to_end(piece)
        return keys

    def _remember(self, place: Place, text: bytes, keys: list[bytes]) -> None:
        pieces = self._sorted.setdefault(place, [])
        at = bisect_left(pieces, text)
        # The next turn of a chat contains the turn before: the longer prompt answers for both.
        if at and text.startswith(pieces[at - 1]):
            del self._keys[(place, pieces[at - 1], None)]
            self.bytes -= self._cost(pieces[at - 1])
            pieces[at - 1] = text
        else:
            insort(pieces, text)
        self._add((place, text, None), keys[:])

    def _add(self, piece: Piece, keys: list[bytes]) -> None:
        self._keys[piece] = keys
        self.bytes += self._cost(piece[1])
        while (self.bytes > self.most_bytes or len(self._keys) > self.most_pieces) and len(self._keys) > 1:
            (place, text, carried), _ = self._keys.popitem(last=False)
            self.bytes -= self._cost(text)
            if carried is None:
                pieces = self._sorted[place]
                del pieces[bisect_left(pieces, text)]
                if not pieces:
                    del self._sorted[place]

    def _cost(self, text: bytes) -> int:
        return len(text) + len(text) // (self.chain.block_size * TOKEN_BYTES) * _KEY_COST + _PIECE_COST
