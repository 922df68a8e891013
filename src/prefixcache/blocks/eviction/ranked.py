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
        # (*rank, ticket, item) in one flat tuple: comparing nested ones is half of the cost of a heap.
        self._heap: list[tuple[Any, ...]] = []
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
        heappush(self._heap, (*self._rank(self._owner.facts(item)), self._next, item))
        if len(self._heap) > 2 * len(self._tickets) + _SLACK:
            self._clean_up()

    def _clean_up(self) -> None:
        """Drop the entries with old tickets. O(n), at most once per n additions."""
        tickets = self._tickets
        self._heap = [entry for entry in self._heap if tickets.get(entry[-1]) == entry[-2]]
        heapify(self._heap)

    def discard(self, item: Item) -> None:
        self._tickets.pop(item, None)

    def rerank(self, item: Item) -> None:
        if item in self._tickets:
            self.add(item)

    def peek(self) -> Item:
        heap, tickets = self._heap, self._tickets
        while heap:
            entry = heap[0]
            item: Item = entry[-1]
            if tickets.get(item) == entry[-2]:
                return item
            heappop(heap)
        raise LookupError("no idle item")

    def pop(self) -> Item:
        item = self.peek()
        heappop(self._heap)
        del self._tickets[item]
        return item
