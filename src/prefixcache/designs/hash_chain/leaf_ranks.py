"""Idle blocks under any policy: the leaves are ranked, and a parent follows when its last child has left.

A leaf is an idle block whose key no cached key continues, or whose key has another copy (then what hangs on
the key stays reachable without this block).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from prefixcache.blocks.eviction import Facts, IdleItems, Policy, RankedQueue
from prefixcache.blocks.retention import DEFAULT_PRIORITY
from prefixcache.designs.base import Holding
from prefixcache.designs.hash_chain.index import Ids, Index


@dataclass(slots=True)
class Use:
    """What is known of one cached block. Attributes as in `Facts`."""

    created: int
    depth: int
    last_access: int
    history: int
    step: int = 0
    hits: int = 1
    priority: int = DEFAULT_PRIORITY
    until: float | None = None  # the priority holds until then


class LeafRanks:
    """See the module. O(log leaves) per victim, O(1) per block otherwise.

    Args:
        index: the cached blocks.
        policy: what ranks the leaves.
        block_size: tokens per block.
        now: tells the time, for times to live.
    """

    def __init__(self, index: Index, policy: Policy, block_size: int) -> None:
        self._index = index
        self._block_size = block_size
        self._uses_history = "history" in policy.uses
        self._items: IdleItems[int] = IdleItems(RankedQueue(policy, self))
        self._use: dict[int, Use] = {}
        self._children: dict[bytes, int] = {}  # by key, how many cached keys continue it; never 0
        self._deadlines: list[tuple[float, int]] = []
        self._tick = 0
        self._now = 0.0

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, block: int) -> bool:
        return block in self._items

    def __iter__(self) -> Iterator[int]:
        return iter(self._items)

    def facts(self, item: int) -> Facts:
        """What the policy may know of a block."""
        use = self._use[item]
        size = self._block_size
        return Facts(use.last_access, use.created, use.hits, use.priority, use.depth, size, use.history, use.step, item)

    def queued(self, block: int) -> bool:
        """Whether an idle block must be in the order: leaves are."""
        key = self._index.key[block]
        assert key is not None
        return key not in self._children or key in self._index.copies

    def stale(self, block: int) -> bool:
        """Whether the block is of an old generation."""
        return block in self._items.stale

    def grow(self, ids: int) -> None:
        """Nothing to do: what is known of blocks is kept in dicts."""

    def stored(self, ids: Ids, holding: Holding, start: int, known: int) -> None:
        """These became cached, pinned, as blocks `start`.. of the holding; the first `known` as further copies."""
        self._tick += 1
        index, children, size = self._index, self._children, self._block_size
        blocks = ids.tolist()
        for number, block in enumerate(blocks):
            depth = (start + number + 1) * size
            self._use[block] = Use(self._tick, depth, self._tick, depth)
            key, parent = index.key[block], index.parent[block]
            assert key is not None
            if number >= known and parent is not None:
                children[parent] = children.get(parent, 0) + 1
            elif number < known:
                self._queue_idle(index.copies[key])
        self._set_terms(blocks, holding, start)

    def passed(self, ids: Ids, holding: Holding) -> None:
        """A request uses these blocks, the beginning of its prompt. They are pinned."""
        blocks = ids.tolist()
        for block in blocks:
            self._use[block].hits += 1
        self._set_terms(blocks, holding, 0)

    def _set_terms(self, blocks: list[int], holding: Holding, start: int) -> None:
        """The last request that uses a block and asks for a priority says how long the block stays."""
        if self._uses_history:
            deepest = (start + len(blocks)) * self._block_size
            for block in (*holding.table[:start], *blocks):
                use = self._use[block]
                use.history = max(use.history, deepest)
        retention = holding.retention
        if not retention.ranges and retention.decode_priority is None:
            return
        for number, block in enumerate(blocks, start):
            priority, ttl = retention.at(number * self._block_size, holding.prompt_length)
            if priority is None:
                continue
            use = self._use[block]
            use.priority, use.until = priority, None
            if ttl is not None:
                use.until = self._now + ttl
                heappush(self._deadlines, (use.until, block))

    def released(self, ids: Ids, step: int) -> None:
        """A request lets go of these blocks, tail first, last scheduled in this step."""
        self._tick += 1
        for block in ids.tolist():
            use = self._use[block]
            use.last_access, use.step = self._tick, step

    def expire(self, now: float) -> None:
        """Priorities whose time is over fall back to the default. O(log blocks) each."""
        self._now = now
        while self._deadlines and self._deadlines[0][0] <= now:
            until, block = heappop(self._deadlines)
            use = self._use.get(block)
            if use is not None and use.until == until:
                use.priority, use.until = DEFAULT_PRIORITY, None
                self._items.rerank(block)

    def add(self, ids: Ids) -> None:
        """These became idle, in this order; leaves are queued."""
        self._queue_idle(ids.tolist())

    def _queue_idle(self, blocks: list[int]) -> None:
        """Queue those of these blocks that are idle leaves and not queued yet."""
        pins, items = self._index.pins, self._items
        for block in blocks:
            if not pins[block] and block not in items and self.queued(block):
                items.add(block)

    def discard(self, ids: Ids) -> None:
        """These idle blocks are in use again."""
        for block in ids.tolist():
            self._items.discard(block)

    def evict(self, n: int) -> tuple[Ids, list[bytes]]:
        """Take the next n to leave, fewer when there are fewer, out of the index.

        Returns them, and the keys that can be found no more since then.
        """
        index, items = self._index, self._items
        evicted: list[int] = []
        gone: list[bytes] = []
        while len(evicted) < n and len(items):
            block = items.pop()
            evicted.append(block)
            key, parent = index.key[block], index.parent[block]
            assert key is not None
            found_until_now = block not in items.stale
            items.forget(block)
            del self._use[block]
            if not index.remove_one(block):
                self._dequeue_last_copy(key)
                continue
            if found_until_now:
                gone.append(key)
            if parent is not None:
                self._lose_child(parent)
        return np.array(evicted, np.int32), gone

    def _dequeue_last_copy(self, key: bytes) -> None:
        """A key has lost a copy: the only one left is no leaf because of the others any more."""
        for block in self._index.copies_of(key):
            if not self.queued(block):
                self._items.discard(block)

    def _lose_child(self, parent: bytes) -> None:
        left = self._children[parent] - 1
        if left:
            self._children[parent] = left
        else:
            del self._children[parent]
            self._queue_idle(list(self._index.copies_of(parent)))

    def retire(self) -> None:
        """All that is cached, idle or not, is stale from now on. O(cached blocks)."""
        self._items.retire(self._index)
