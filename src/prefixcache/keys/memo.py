"""Hash a chain once per distinct prefix, not once per request.

Requests share system prompts and turns, so most blocks of a new prompt were hashed before. The memo keeps the
chains of recent prompts in pieces; a piece is found by the key that it continues from and its first block, and
the rest of it is one memcmp. Where a prompt parts from a piece in the middle, the piece is cut there.

    prompts      | system ......... | question 1 |      pieces    (root, first block of system)      128 keys
                 | system ......... | question 2 |                (last key of system, question 1)     4 keys
                                                                  (last key of system, question 2)     5 keys

Blocks that media or extra ids touch are pieces of their own, found by their exact content.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from prefixcache.keys.chain import ChainHash
from prefixcache.keys.extras import Extras
from prefixcache.keys.scope import Scope
from prefixcache.keys.tokens import TOKEN_BYTES, Buffer, common_tokens

# The encoded scope, the key that the piece continues from, the tokens of its first block (of all its blocks,
# where they carry something), and what they carry.
Place: TypeAlias = tuple[bytes, bytes, bytes, Extras | None]

_KEY_COST = 100  # bytes that a remembered key may cost: the key itself and what points to it
_RUN_COST = 400  # of media
_PIECE_COST = 1200
_EXTRAS_COST = 1200
_MOST_ROOTS = 4096


@dataclass(slots=True)
class Piece:
    """Some consecutive blocks of a chain: the tokens that their keys cover, and the keys."""

    text: bytes
    keys: list[bytes]


def _cost(place: Place, piece: Piece) -> int:
    """Bytes of memory of a piece and its place, estimated from above."""
    root, _, first, carried = place
    cost = len(root) + len(first) + len(piece.text) + len(piece.keys) * _KEY_COST + _PIECE_COST
    if carried is not None:
        cost += _EXTRAS_COST + len(carried.ids) + len(carried.runs) * _RUN_COST
    return cost


class ChainMemo:
    """Block keys of prompts, with a bounded memory of the most recent ones.

    Args:
        chain: how keys are made.
        most_bytes: memory of all that is remembered together; the least recently used is forgotten.

    A new prompt costs O(pieces on its path) lookups and a memcmp of what it shares, and hashes only the blocks
    behind the longest prefix that it shares with any remembered prompt.
    """

    def __init__(self, chain: ChainHash, most_bytes: int = 32 * 2**20) -> None:
        self.chain = chain
        self.most_bytes = most_bytes
        self.bytes = 0
        self._step = chain.block_size * TOKEN_BYTES
        self._ahead = chain.lookahead * TOKEN_BYTES
        self._pieces: OrderedDict[Place, Piece] = OrderedDict()
        self._roots: dict[bytes, bytes] = {}

    def __len__(self) -> int:
        return len(self._pieces)

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
        keys: list[bytes] = []
        if extras is None:
            self._plain(keys, root, tokens, blocks, scope)
            return keys
        for end, touched in self._stretches(extras, blocks):
            if touched:
                self._touched(keys, root, tokens, end, extras, scope)
            else:
                self._plain(keys, root, tokens, end, scope)
        return keys

    def _stretches(self, extras: Extras, blocks: int) -> Iterator[tuple[int, bool]]:
        """The blocks [0, blocks) cut into (end of a stretch, whether media or extra ids touch it)."""
        size, ahead = self.chain.block_size, self.chain.lookahead
        at = 0
        if extras.ids and blocks:
            yield blocks, True
            at = blocks
        for begin, end, _, _ in extras.runs:
            first, last = max((begin - ahead) // size, at), min(-(-end // size), blocks)
            if at < min(first, blocks):
                yield min(first, blocks), False
            if first < last:
                yield last, True
            at = max(at, last)
        if at < blocks:
            yield blocks, False

    def _plain(self, keys: list[bytes], root: bytes, tokens: Buffer, end: int, scope: Scope | None) -> None:
        """Add the keys of the blocks [len(keys), end), which carry nothing but their tokens."""
        step, ahead = self._step, self._ahead
        width = step + ahead
        stop = end * step + ahead  # bytes that these keys cover
        used: list[Place] = []
        while len(keys) < end:
            at = len(keys) * step
            parent = keys[-1] if keys else self.root(root)
            place: Place = (root, parent, bytes(tokens[at : at + width]), None)
            piece = self._pieces.get(place)
            if piece is None:
                new = self.chain.blocks(parent, tokens, len(keys), end, None, scope)
                keys += new
                self._remember(place, Piece(bytes(tokens[at:stop]), new))
                break
            used.append(place)
            if at + len(piece.text) > stop or not tokens.startswith(piece.text, at):
                shared = self._shared(piece, tokens, at, stop)
                if len(keys) + shared == end:  # the prompt ends within the piece
                    keys += piece.keys[:shared]
                    break
                piece = self._cut(place, piece, shared)
            keys += piece.keys
        for place in reversed(used):  # the beginning last: it is needed to find the rest
            if place in self._pieces:
                self._pieces.move_to_end(place)

    def _shared(self, piece: Piece, tokens: Buffer, at: int, stop: int) -> int:
        """How many leading blocks of the piece are those of the tokens from byte `at` on; at least one."""
        most = min(len(piece.text), stop - at) // TOKEN_BYTES
        return self.chain.keyed(common_tokens(piece.text, 0, tokens, at // TOKEN_BYTES, most))

    def _cut(self, place: Place, piece: Piece, blocks: int) -> Piece:
        """Cut a piece behind its first blocks; returns these as a piece."""
        at = blocks * self._step
        first = Piece(piece.text[: at + self._ahead], piece.keys[:blocks])
        rest = Piece(piece.text[at:], piece.keys[blocks:])
        self._remember(place, first)
        if rest.keys:
            width = self._step + self._ahead
            self._remember((place[0], first.keys[-1], rest.text[:width], None), rest)
        return first

    def _touched(
        self, keys: list[bytes], root: bytes, tokens: Buffer, end: int, extras: Extras, scope: Scope | None
    ) -> None:
        """Add the keys of the blocks [len(keys), end), all of which carry something."""
        start, size = len(keys), self.chain.block_size
        text = bytes(tokens[start * self._step : end * self._step + self._ahead])
        carried = extras.cut(start * size, end * size + self.chain.lookahead)
        place = (root, keys[-1] if keys else self.root(root), text, carried)
        piece = self._pieces.get(place)
        if piece is None:
            piece = Piece(text, self.chain.blocks(place[1], tokens, start, end, extras, scope))
            self._remember(place, piece)
        else:
            self._pieces.move_to_end(place)
        keys += piece.keys

    def _remember(self, place: Place, piece: Piece) -> None:
        pieces = self._pieces
        known = pieces.pop(place, None)
        if known is not None:
            self.bytes -= _cost(place, known)
        pieces[place] = piece
        self.bytes += _cost(place, piece)
        while self.bytes > self.most_bytes and len(pieces) > 1:
            self.bytes -= _cost(*pieces.popitem(last=False))
