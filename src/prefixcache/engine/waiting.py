"""Who is admitted next: the longest cached prefix first, and nobody waits for ever.

An engine asks at every step. So the ranking is kept between passes and only a few items are probed in each, where
`prefixcache.longest_prefix_first` ranks a whole queue anew.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

Item = TypeVar("Item")

AGING = 100
PROBES = 16


@dataclass(slots=True, eq=False)
class _Entry(Generic[Item]):
    item: Item
    number: int  # order of arrival
    since: int  # the pass at which it came
    worth: int | None = None  # from its last probe; None before the first, and when it waits no longer


class WaitingQueue(Generic[Item]):
    """Items that wait, each worth `cached tokens + aging * passes waited`; a pass is one call of `first`.

    The bound that aging gives: an item passes a stream of newcomers with c more cached tokens than its own
    after c / aging passes. With `aging=0` there is none; items of equal worth leave in the order they came.
    A pass costs `probes` lookups and O(probes log n), however many wait.

    Args:
        probe: cached tokens of an item now.
        aging: tokens that one pass of waiting is worth.
        probes: items probed per pass at most: newcomers first, then those probed longest ago.
    """

    def __init__(self, probe: Callable[[Item], int], *, aging: int = AGING, probes: int = PROBES) -> None:
        self._probe = probe
        self._aging = aging
        self._probes = probes
        self._pass = 0
        self._arrivals = 0
        self._entries: dict[int, _Entry[Item]] = {}  # by the identity of the item
        self._new: deque[_Entry[Item]] = deque()  # never probed
        self._old: deque[_Entry[Item]] = deque()  # the longest ago first
        # Worth grows equally for all who wait, so that what it would have been at pass 0 ranks them for good.
        self._ranked: list[tuple[int, int, _Entry[Item]]] = []  # (-worth, number, entry), those out of date included

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, item: Item) -> None:
        """Let one more wait."""
        entry = _Entry(item, self._arrivals, self._pass)
        self._arrivals += 1
        self._entries[id(item)] = entry
        self._new.append(entry)

    def remove(self, item: Item) -> bool:
        """Let it wait no longer; False when it did not."""
        entry = self._entries.pop(id(item), None)
        if entry is None:
            return False
        entry.worth = None
        return True

    def first(self) -> Item | None:
        """The item to admit now, which stays in the queue; None when nobody waits."""
        for _ in range(min(self._probes, len(self._entries))):
            entry = self._next_to_probe()
            entry.worth = self._probe(entry.item) - self._aging * entry.since
            heapq.heappush(self._ranked, (-entry.worth, entry.number, entry))
            self._old.append(entry)
        self._pass += 1
        while self._ranked:
            worth, _, entry = self._ranked[0]
            if entry.worth == -worth:
                return entry.item
            heapq.heappop(self._ranked)
        return None

    def _next_to_probe(self) -> _Entry[Item]:
        """Of those who still wait, whose worth is the most out of date."""
        while True:
            entry = self._new.popleft() if self._new else self._old.popleft()
            if self._entries.get(id(entry.item)) is entry:
                return entry
