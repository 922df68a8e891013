"""Any policy that can be written as a rank: one heap, corrected lazily.

An item that is re-ranked (touched, hit, released with another priority) is pushed again with a new ticket;
entries with an old ticket are skipped when they come up. That is right whether the new rank is later or
*earlier* than the old one (mru needs the latter), and costs O(log n) per operation, amortised.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Generic

from prefixcache.blocks.eviction.base import Item, Owner, Policy

_SLACK = 64  # entries with old tickets that are not worth a clean-up
_BITS = 64  # of each part of a key
_MASK = (1 << _BITS) - 1


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
        # A key is one integer: rank, place, ticket, one behind the other. The place among equal ranks stays when an
        # item is ranked anew; the ticket makes keys unique. Tuples would say the same, but comparing them visits
        # twice as many objects all over memory, which is most of the cost of a heap of 50,000.
        self._heap: list[int] = []
        self._items: dict[int, Item] = {}
        self._keys: dict[Item, int] = {}
        self._next = 0

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, item: Item) -> bool:
        return item in self._keys

    def __iter__(self) -> Iterator[Item]:
        return iter(self._keys)

    def add(self, item: Item) -> None:
        self._push(item, self._next + 1)

    def _push(self, item: Item, place: int) -> None:
        self._next += 1
        key = 0
        for value in self._rank(self._owner.facts(item)):
            key = (key << _BITS) + value
        key = (((key << _BITS) + place) << _BITS) + self._next
        self.discard(item)
        self._keys[item] = key
        self._items[key] = item
        heappush(self._heap, key)
        if len(self._heap) > 2 * len(self._keys) + _SLACK:
            self._heap = list(self._items)  # at most once per n additions
            heapify(self._heap)

    def discard(self, item: Item) -> None:
        key = self._keys.pop(item, None)
        if key is not None:
            del self._items[key]

    def rerank(self, item: Item) -> None:
        key = self._keys.get(item)
        if key is not None:
            self._push(item, key >> _BITS & _MASK)

    def peek(self) -> Item:
        heap, items = self._heap, self._items
        while heap:
            item = items.get(heap[0])
            if item is not None:
                return item
            heappop(heap)
        raise LookupError("no idle item")

    def pop(self) -> Item:
        heap, items = self._heap, self._items
        while heap:
            item = items.pop(heappop(heap), None)
            if item is not None:
                del self._keys[item]
                return item
        raise LookupError("no idle item")
