"""Cached blocks by what they hold without the token behind them (`lookahead_by="key"`).

With that token in the key, a prompt that goes on differently behind a block misses the block, and the keys alone
cannot say why. Here they are found by their content, so that the miss can be put down to the draft model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from prefixcache.designs.base import Prompt
from prefixcache.designs.hash_chain.search import IsCached
from prefixcache.errors import InvariantError
from prefixcache.keys.extras import Extras
from prefixcache.keys.tokens import TOKEN_BYTES

# The encoded scope, the key before the block (b"" at the beginning), its tokens, and what these carry.
Edge: TypeAlias = tuple[bytes, bytes, bytes, Extras | None]


class Edges:
    """See the module. Every call is O(tokens of the blocks); memory is that of the cached tokens.

    Args:
        block_size: tokens per block.
    """

    def __init__(self, block_size: int) -> None:
        self._size = block_size
        self._keys: dict[Edge, list[bytes]] = {}  # of cached blocks, one for each token behind them
        self._edges: dict[bytes, Edge] = {}

    def add(self, prompt: Prompt, keys: list[bytes], start: int, end: int) -> None:
        """The blocks [start, end) of a prompt became cached."""
        for at in range(start, end):
            edge = self._edges[keys[at]] = self._edge(prompt, keys, at)
            self._keys.setdefault(edge, []).append(keys[at])

    def remove(self, keys: list[bytes]) -> None:
        """No block has these keys any more."""
        for key in keys:
            edge = self._edges.pop(key)
            siblings = self._keys[edge]
            siblings.remove(key)
            if not siblings:
                del self._keys[edge]

    def lacks_next_token(self, prompt: Prompt, keys: list[bytes], at: int, is_cached: IsCached) -> bool:
        """Whether this block of a prompt, whose key is not cached, is there with another token behind it."""
        return any(map(is_cached, self._keys.get(self._edge(prompt, keys, at), ())))

    def _edge(self, prompt: Prompt, keys: list[bytes], at: int) -> Edge:
        start, end = at * self._size, (at + 1) * self._size
        text = bytes(prompt.tokens[start * TOKEN_BYTES : end * TOKEN_BYTES])
        carried = prompt.extras.cut(start, end) if prompt.extras is not None else None
        return prompt.root, keys[at - 1] if at else b"", text, carried

    def check(self, cached: Mapping[bytes, object]) -> None:
        """Assert that exactly the cached keys are known, each under its content."""
        if self._edges.keys() != cached.keys() or sum(map(len, self._keys.values())) != len(self._edges):
            raise InvariantError(f"{len(self._edges)} keys have an edge, {len(cached)} are cached")
