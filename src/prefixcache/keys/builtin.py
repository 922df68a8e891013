"""The hash of vLLM 0.8.5 for study: Python's own `hash` of a tuple, 64 bits.

    key[i] = hash((i == 0, key[i-1], *tokens of block i, extra)),   key[-1] = hash("None")

It is seeded per process, is no cryptographic hash, and 64 bits are few (docs/collisions.md gives the odds).
Where it is used, hits are confirmed by comparing tokens, and what collides is not published.
"""

from __future__ import annotations

import warnings

import numpy as np

from prefixcache.keys.chain import ChainHash
from prefixcache.keys.extras import Extras
from prefixcache.keys.scope import Scope
from prefixcache.keys.tokens import Buffer

_KEY_BYTES = 8


class BuiltinChain(ChainHash):
    """See the module. Warns when it is made.

    Args:
        block_size: tokens per block.
        lookahead: tokens behind a block that its key covers as well.
    """

    def __init__(self, block_size: int, lookahead: int = 0) -> None:
        super().__init__("xxh3-128", block_size, lookahead)
        self.name = "builtin"
        self._plain_scopes: dict[bytes, int] = {}
        warnings.warn(
            'hash="builtin" is the 64-bit hash of vLLM 0.8.5, kept for study: keys collide by chance and on purpose, '
            "and differ between processes. Hits are confirmed by tokens. For anything else use sha256.",
            UserWarning,
            stacklevel=2,
        )

    def root(self, scope: bytes) -> bytes:
        return _key(hash("None"))

    def blocks(
        self,
        parent: bytes,
        tokens: Buffer,
        start: int,
        end: int,
        extras: Extras | None,
        scope: Scope | None = None,
    ) -> list[bytes]:
        size, covered = self.block_size, self.block_size + self.lookahead
        self.hashed += end - start
        values = np.frombuffer(tokens, "<u4").tolist()
        named = None if scope in (None, Scope(), Scope(generation=0)) else hash(scope)
        previous = int.from_bytes(parent, "big", signed=True)
        keys = []
        for index in range(start, end):
            at = index * size
            carried = extras.cut(at, at + covered) if extras is not None else None
            extra = named if carried is None else hash((named, carried))
            previous = hash((index == 0, previous, *values[at : at + covered], extra))
            keys.append(_key(previous))
        return keys


def _key(value: int) -> bytes:
    return value.to_bytes(_KEY_BYTES, "big", signed=True)
