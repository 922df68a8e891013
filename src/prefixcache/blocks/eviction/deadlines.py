"""When the retention of idle items ends: one heap, corrected lazily."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Generic

from prefixcache.blocks.eviction.base import Item

_SLACK = 64  # entries with old tickets that are not worth a clean-up


class Deadlines(Generic[Item]):
    """Items by the time at which their priority falls back to the default. O(log items) per operation, amortised."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, int, int, Item]] = []
        self._tickets: dict[Item, int] = {}
        self._next = 0

    def __len__(self) -> int:
        return len(self._tickets)

    def __contains__(self, item: Item) -> bool:
        return item in self._tickets

    def add(self, item: Item, deadline: float, released: int, depth: int) -> None:
        """The item is idle and keeps its priority until `deadline`.

        Of equal deadlines the one released earlier (a smaller number) ends first, and of one release the
        one that is deeper in its prompt.
        """
        self._next += 1
        self._tickets[item] = self._next
        heappush(self._heap, (deadline, released, -depth, self._next, item))
        if len(self._heap) > 2 * len(self._tickets) + _SLACK:
            self._heap = [entry for entry in self._heap if self._tickets.get(entry[-1]) == entry[-2]]
            heapify(self._heap)

    def discard(self, item: Item) -> None:
        """The item is in use again, or gone. No error when it has no deadline."""
        self._tickets.pop(item, None)

    def due(self, now: float) -> Iterator[Item]:
        """Take out the items whose deadline has come, in order."""
        heap, tickets = self._heap, self._tickets
        while heap and heap[0][0] <= now:
            *_, ticket, item = heappop(heap)
            if tickets.get(item) == ticket:
                del tickets[item]
                yield item
