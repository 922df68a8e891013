"""Who is admitted next: the longest cached prefix first, and nobody waits for ever."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

Item = TypeVar("Item")

AGING = 100
PROBES = 16


@dataclass(slots=True)
class _Entry(Generic[Item]):
    item: Item
    number: int  # order of arrival
    since: int  # the pass at which it came
    cached: int = 0
    probed: int = -1  # the pass of the last probe, -1 before the first


class WaitingQueue(Generic[Item]):
    """Items that wait, each worth `cached tokens + aging * passes waited`; a pass is one call of `first`.

    The bound that aging gives: an item passes a stream of newcomers with c more cached tokens than its own
    after c / aging passes. With `aging=0` there is none; items of equal worth leave in the order they came.

    Args:
        probe: cached tokens of an item now.
        aging: tokens that one pass of waiting is worth.
        probes: items probed per pass at most. Newcomers come first, then those probed longest ago, so that a
            long queue costs no more lookups per pass than a short one.
    """

    def __init__(self, probe: Callable[[Item], int], *, aging: int = AGING, probes: int = PROBES) -> None:
        self._probe = probe
        self._aging = aging
        self._probes = probes
        self._entries: list[_Entry[Item]] = []
        self._pass = 0
        self._arrivals = 0

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, item: Item) -> None:
        """Let one more wait."""
        self._entries.append(_Entry(item, self._arrivals, self._pass))
        self._arrivals += 1

    def remove(self, item: Item) -> bool:
        """Let it wait no longer; False when it did not."""
        for index, entry in enumerate(self._entries):
            if entry.item is item:
                del self._entries[index]
                return True
        return False

    def first(self) -> Item | None:
        """The item to admit now, which stays in the queue; None when nobody waits."""
        if not self._entries:
            return None
        for entry in sorted(self._entries, key=lambda entry: (entry.probed, entry.number))[: self._probes]:
            entry.cached, entry.probed = self._probe(entry.item), self._pass
        # Aging grows equally for all, so the pass at which an item came decides, not how long ago that was.
        best = max(self._entries, key=lambda entry: (entry.cached - self._aging * entry.since, -entry.number))
        self._pass += 1
        return best.item
