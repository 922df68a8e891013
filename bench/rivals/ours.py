"""This library, through its front door: every call takes the lock, checks its arguments and keeps the books."""

from __future__ import annotations

from typing import Any

from bench.rivals.side import Tokens

from prefixcache import PrefixCache

SETUPS = (("radix", 1), ("hash_chain", 16), ("block_trie", 32), ("digest_chain", 32))


class Ours:
    """A cache of one design with its own defaults, events off.

    Args:
        capacity: tokens.
    """

    def __init__(self, design: str, block_size: int, capacity: int) -> None:
        self.name = f"{design} at {block_size}"
        self.block_size = block_size
        self._cache = PrefixCache(design, block_size=block_size, capacity=capacity // block_size, events=False)

    def prompt(self, tokens: Tokens | list[int]) -> Any:
        return tokens

    def store(self, prompt: Any) -> None:
        self.serve(prompt)

    def find(self, prompt: Any) -> int:
        return self._cache.probe(prompt).cached

    def serve(self, prompt: Any) -> int:
        request = self._cache.open(prompt)
        request.copied()
        request.computed(request.length)
        request.close()
        return request.cached
