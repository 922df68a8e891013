"""The rules of vLLM's two allocators, written down once more: plain lists and scans, nothing of the library.

`V1` is the block pool of its v1 engine, `V0` the allocator of 0.8.5. Both count as the contract demands where
the originals are unsafe: at most n-1 of n tokens are reused, a block is registered when it is computed, and
0.8.5 never evicts a block before the blocks behind it. Tokens alone make a prefix here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

Prefix: TypeAlias = tuple[int, ...]


class Refused(Exception):
    def __init__(self, need: int, available: int) -> None:
        super().__init__(need, available)
        self.need, self.available = need, available


@dataclass(eq=False)
class Sequence:
    tokens: list[int]
    table: list[int] = field(default_factory=list)
    registered: int = 0  # blocks at the front of the table that are cached
    computed: int = 0
    cached: int = 0
    step: int = 0  # in which it was last opened, computed or appended to


class Allocator:
    """What both have in common."""

    def __init__(self, block_size: int, capacity: int) -> None:
        self.size, self.capacity = block_size, capacity
        self.empty: list[int] = list(range(capacity))  # the next one to be used stands first
        self.users: dict[int, int] = {}  # by cached block
        self.prefix: dict[int, Prefix] = {}  # by cached block
        self.blocks_of: dict[Prefix, list[int]] = {}  # the oldest first
        self.idle: list[int] = []  # in order of release
        self.step = 0

    # What can be asked

    @property
    def available(self) -> int:
        return len(self.empty) + len(self.idle)

    def match(self, tokens: list[int]) -> list[int]:
        found = []
        for end in range(self.size, len(tokens), self.size):
            blocks = self.blocks_of.get(tuple(tokens[:end]))
            if blocks is None or not self.is_seen(tuple(tokens[:end])):
                break
            found.append(blocks[0])
        return found

    def is_seen(self, prefix: Prefix) -> bool:
        return True

    # The life of a request

    def open(self, sequence: Sequence, reserve: int | None = None) -> None:
        matched = self.match(sequence.tokens)
        idle = sum(block in self.idle for block in matched)
        new = max(self._blocks(len(sequence.tokens) if reserve is None else reserve) - len(matched), 0)
        self._require(self.gate(sequence, matched, new) + idle)
        for block in matched:
            self._use(block)
        sequence.table = matched + self._take(new)
        sequence.registered = len(matched)
        sequence.cached = sequence.computed = len(matched) * self.size
        sequence.step = self.step

    def gate(self, sequence: Sequence, matched: list[int], new: int) -> int:
        """New blocks that there must be room for."""
        return new

    def append(self, sequence: Sequence, tokens: list[int]) -> None:
        self.reserve(sequence, len(sequence.tokens) + len(tokens))
        sequence.tokens += tokens
        sequence.step = self.step

    def reserve(self, sequence: Sequence, length: int) -> None:
        new = max(self._blocks(length) - len(sequence.table), 0)
        self._require(new)
        sequence.table += self._take(new)

    def compute(self, sequence: Sequence, length: int) -> None:
        sequence.computed, sequence.step = length, self.step
        while (sequence.registered + 1) * self.size <= length:
            at = sequence.registered
            self.register(sequence, at, tuple(sequence.tokens[: (at + 1) * self.size]))
            sequence.registered += 1

    def register(self, sequence: Sequence, at: int, prefix: Prefix) -> None:
        block = sequence.table[at]
        self.blocks_of.setdefault(prefix, []).append(block)
        self.prefix[block] = prefix
        self.users[block] = 1

    def close(self, sequence: Sequence) -> None:
        for block in reversed(sequence.table[: sequence.registered]):
            self._drop(block, sequence)
        self.empty[:0] = reversed(sequence.table[sequence.registered :])
        sequence.table = []
        sequence.registered = 0

    # What the owner of the cache does

    def end_step(self) -> None:
        self.step += 1

    def evict(self, count: int) -> int:
        victims = [self._evict_one() for _ in range(min(count, len(self.idle)))]
        self.empty[:0] = victims
        return len(victims)

    def reset(self) -> bool:
        if len(self.idle) + len(self.empty) < self.capacity:
            return False
        self.end_step()
        while self.idle:
            self.empty.insert(0, self._evict_one())
        return True

    # Blocks

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.size)

    def _require(self, need: int) -> None:
        if need > self.available:
            raise Refused(need, self.available)

    def _take(self, count: int) -> list[int]:
        return [self.empty.pop(0) if self.empty else self._evict_one() for _ in range(count)]

    def _use(self, block: int) -> None:
        self.users[block] += 1
        if block in self.idle:
            self.idle.remove(block)

    def _drop(self, block: int, sequence: Sequence) -> None:
        self.users[block] -= 1
        if not self.users[block]:
            self.idle.append(block)

    def _evict_one(self) -> int:
        block = self.victim()
        self.idle.remove(block)
        del self.users[block]
        prefix = self.prefix.pop(block)
        self.blocks_of[prefix].remove(block)
        if not self.blocks_of[prefix]:
            del self.blocks_of[prefix]
        return block

    def victim(self) -> int:
        raise NotImplementedError


class V1(Allocator):
    """Tables are append-only, so equal blocks stay; the queue is that of release, a table's tail first."""

    def gate(self, sequence: Sequence, matched: list[int], new: int) -> int:
        return max(new, self._blocks(len(sequence.tokens)) - len(matched))  # the whole prompt must fit

    def victim(self) -> int:
        return self.idle[0]


class V0(Allocator):
    """Equal blocks become one; recency is that of scheduling steps; what a step registers is seen after it."""

    def __init__(self, block_size: int, capacity: int) -> None:
        super().__init__(block_size, capacity)
        self.unseen: set[Prefix] = set()
        self.used_in: dict[int, int] = {}  # by block, as the last one to let go of it said

    def is_seen(self, prefix: Prefix) -> bool:
        return prefix not in self.unseen

    def register(self, sequence: Sequence, at: int, prefix: Prefix) -> None:
        if prefix in self.blocks_of:
            self.empty.insert(0, sequence.table[at])
            sequence.table[at] = self.blocks_of[prefix][0]
            self._use(sequence.table[at])
        else:
            super().register(sequence, at, prefix)
            self.unseen.add(prefix)

    def close(self, sequence: Sequence) -> None:
        self.end_step()
        super().close(sequence)

    def end_step(self) -> None:
        super().end_step()
        self.unseen.clear()

    def _drop(self, block: int, sequence: Sequence) -> None:
        super()._drop(block, sequence)
        self.used_in[block] = sequence.step

    def victim(self) -> int:
        parents = {prefix[: -self.size] for prefix in self.blocks_of}
        leaves = [block for block in self.idle if self.prefix[block] not in parents]
        return min(leaves, key=lambda block: (self.used_in[block], -len(self.prefix[block]), block))
