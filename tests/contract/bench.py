"""A cache on a test bench: requests are computed against a KV oracle, time is moved by hand."""

from __future__ import annotations

from typing import Any

from prefixcache import PrefixCache, Scope
from prefixcache.scenario.oracle import KVOracle
from tests.model.setup import Clock, Setup

FRESH = 4_000_000_000  # a token that ends every match


class Bench:
    def __init__(self, design: str, *, block_size: int = 4, capacity: int = 16, **options: Any) -> None:
        self.clock = Clock()
        self.setup = Setup(design, block_size, capacity, options)
        self.cache: PrefixCache = self.setup.cache(self.clock)
        self.oracle = KVOracle(block_size)
        self.capacity = capacity

    def open(self, tokens: Any, scope: Scope | None = None, **keywords: Any) -> Any:
        return self.cache.open(tokens, scope, **keywords)

    def step(self, request: Any, length: int | None = None) -> Any:
        """Make the copies, write the KV up to `length` (all), say so, and check what is read."""
        length = request.length if length is None else length
        self.oracle.copy(request.copies)
        request.copied()
        self.oracle.write(request, request.computed_tokens, length)
        request.computed(length)
        self.verify(request)
        return request

    def run(self, tokens: Any, scope: Scope | None = None, **keywords: Any) -> int:
        """Open, compute, close; the hit."""
        request = self.step(self.open(tokens, scope, **keywords))
        request.close()
        self.cache.check()
        return int(request.cached)

    def verify(self, request: Any) -> None:
        self.oracle.verify(request, request.computed_tokens)
        self.cache.check()

    def found(self, tokens: Any, scope: Scope | None = None, **keywords: Any) -> int:
        """How many of exactly these tokens are findable (a fresh token makes all of them reusable)."""
        return int(self.cache.probe([*tokens, FRESH], scope, **keywords).cached)

    def books(self) -> tuple[int, int, int, int]:
        books = self.cache.books()
        return books.free, books.idle, books.pinned, books.quarantined

    def floor(self, length: int) -> int:
        """What a hit of `length` tokens is rounded down to, where it ends inside a cached block."""
        size = self.setup.block_size
        return length if self.setup.partial else length - length % size

    def tail(self, length: int) -> int:
        """What stays findable of `length` computed tokens after the end of their request."""
        size = self.setup.block_size
        return length if self.setup.stores_tails else length - length % size

    def drain(self) -> None:
        """Evict all: everything is free again."""
        self.cache.evict(self.capacity)
        self.cache.check()
        assert self.books() == (self.capacity, 0, 0, 0)
