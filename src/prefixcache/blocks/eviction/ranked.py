"""Any policy that can be written as a rank: one heap, corrected lazily.

An item that is re-ranked (touched, hit, released with another priority) is pushed again with a new ticket;
entries with an old ticket are skipped when they come up. That is right whether the new rank is later or
*earlier* than the old one (mru needs the latter), and costs O(log n) per operation, amortised.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeAlias

from prefixcache.blocks.eviction.base import Facts, Item, Owner

Rank: TypeAlias = Callable[[Facts], tuple[Any, ...]]


class RankedQueue(Generic[Item]):
    """Idle leaves, the smallest rank leaves first; equal ranks in order of being added.

    Args:
        rank: the policy, from facts to a tuple.
        owner: the design, asked for the facts of an item when it is added.
    """

    takes_all = False

    def __init__(self, rank: Rank, owner: Owner[Item]) -> None:
        self._rank = rank
        self._owner = owner
        self._heap: list[tuple[tuple[Any, ...], int, Item]] = []
        self._tickets: dict[Item, int] = {}
        self._next = 0

    def __len__(self) -> int:
        return len(self._tickets)

    def __contains__(self, item: Item) -> bool:
        return item in self._tickets

    def __iter__(self) -> Iterator[Item]:
        return iter(self._tickets)

    def add(self, item: Item) -> None:
        self._next += 1
        self._tickets[item] = self._next
        heapq.heappush(self._heap, (self._rank(self._owner.facts(item)), self._next, item))
        if len(self._heap) > 2 * len(self._tickets) + 64:
            tickets = self._tickets
            self._heap = [entry for entry in self._heap if tickets.get(entry[2]) == entry[1]]
            heapq.heapify(self._heap)

    def discard(self, item: Item) -> None:
        self._tickets.pop(item, None)

    def peek(self) -> Item:
        heap, tickets = self._heap, self._tickets
        while heap:
            _, ticket, item = heap[0]
            if tickets.get(item) == ticket:
                return item
            heapq.heappop(heap)
        raise LookupError("no idle leaf")

    def pop(self) -> Item:
        item = self.peek()
        heapq.heappop(self._heap)
        del self._tickets[item]
        return item
