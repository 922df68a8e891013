"""An independent simulation of a block cache with LRU: what every design here does, in the plainest words.

A prompt uses the longest run of cached full blocks that leaves one token to compute. For the rest of its
blocks empty ones are taken first, then those least recently used that it does not use itself. When it is
finished its full blocks are cached, the deepest as the least recent; a partly filled block is empty again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from prefixcache.replay.traces import Trace


@dataclass
class BlockLru:
    block_size: int
    capacity: int
    names: dict[tuple[object, tuple[int, ...]], int] = field(default_factory=dict)
    cached: dict[int, None] = field(default_factory=dict)
    evicted: int = 0

    def play(self, prompt: list[int], scope: object, output: list[int]) -> int | None:
        """Tokens reused; None when the prompt does not fit."""
        size = self.block_size
        blocks = -(-len(prompt) // size)
        if blocks > self.capacity:
            return None
        full = self._full_blocks(prompt, scope)
        usable = full[: (len(prompt) - 1) // size]
        run = next((i for i, block in enumerate(usable) if block not in self.cached), len(usable))
        self._make_room(blocks - run, set(full[:run]))
        more = -(-(len(prompt) + len(output)) // size) - blocks
        if output and blocks + more <= self.capacity:
            for block in full:  # the prompt is computed: its full blocks are cached, and in use
                self.cached.setdefault(block)
            self._make_room(more + blocks - len(full), set(full))
            full = self._full_blocks(prompt + output[:-1], scope)
        for block in reversed(full):
            self.cached.pop(block, None)
            self.cached[block] = None
        return run * size

    def _full_blocks(self, text: list[int], scope: object) -> list[int]:
        """A name per full block: the same for the same tokens behind the same block before it."""
        names: list[int] = []
        for at in range(0, len(text) // self.block_size * self.block_size, self.block_size):
            before = names[-1] if names else scope
            key = (before, tuple(text[at : at + self.block_size]))
            names.append(self.names.setdefault(key, len(self.names)))
        return names

    def _make_room(self, blocks: int, in_use: set[int]) -> None:
        """Evict until this many blocks are empty; not those in use."""
        shortfall = blocks + len(self.cached) - self.capacity
        for block in [block for block in self.cached if block not in in_use][: max(0, shortfall)]:
            del self.cached[block]
            self.evicted += 1


def simulate(trace: Trace, block_size: int, capacity: int, *, outputs: bool = False) -> tuple[list[int | None], int]:
    """(tokens reused of each request, blocks evicted)."""
    cache = BlockLru(block_size, capacity)
    hits = [
        cache.play(
            trace.tokens(request).tolist(),
            request.scope,
            trace.output_tokens(request).tolist() if outputs else [],
        )
        for request in trace.requests
    ]
    return hits, cache.evicted
