"""Any policy that can be written as a rank: one heap, corrected lazily.

An item that is re-ranked (touched, hit, released with another priority) is pushed again with a new ticket;
entries with an old ticket are skipped when they come up. That is right whether the new rank is later or
*earlier* than the old one (mru needs the latter), and costs O(log n) per operation, amortised.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Any, Generic

from prefixcache.blocks.eviction.base import Item, Owner, Policy

_SLACK = 64  # entries with old tickets that are not worth a clean-up


class RankedQueue(Generic[Item]):
    """Idle items, the smallest rank leaves first; equal ranks in order of being added.

    Args:
        policy: what ranks them.
        owner: the design, asked for the facts of an item when it is added.
        takes_all: every idle item is ranked, so that one may leave before what hangs on it; else leaves alone.
    """

    def __init__(self, policy: Policy, owner: Owner[Item], takes_all: bool = False) -> None:
        self.takes_all = takes_all
        self._rank = policy.rank
        self._owner = owner
        # (*rank, place, ticket, item) in one flat tuple: comparing nested ones is half of the cost of a heap.
        # The place among equal ranks stays when an item is ranked anew; the ticket tells old entries from new.
        self._heap: list[tuple[Any, ...]] = []
        self._entries: dict[Item, tuple[Any, ...]] = {}
        self._next = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, item: Item) -> bool:
        return item in self._entries

    def __iter__(self) -> Iterator[Item]:
        return iter(self._entries)

    def add(self, item: Item) -> None:
        self._push(item, self._next + 1)

    def _push(self, item: Item, place: int) -> None:
        self._next += 1
        entry = (*self._rank(self._owner.facts(item)), place, self._next, item)
        self._entries[item] = entry
        heappush(self._heap, entry)
        if len(self._heap) > 2 * len(self._entries) + _SLACK:
            self._heap = list(self._entries.values())  # at most once per n additions
            heapify(self._heap)

    def discard(self, item: Item) -> None:
        self._entries.pop(item, None)

    def rerank(self, item: Item) -> None:
        entry = self._entries.get(item)
        if entry is not None:
            self._push(item, entry[-3])

    def peek(self) -> Item:
        heap, entries = self._heap, self._entries
        while heap:
            entry = heap[0]
            item: Item = entry[-1]
            if entries.get(item) is entry:
                return item
            heappop(heap)
        raise LookupError("no idle item")

    def pop(self) -> Item:
        item = self.peek()
        heappop(self._heap)
        del self._entries[item]
        return item
