"""All idle items of a design: those of old generations leave first, the policy orders the rest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Generic

from prefixcache.blocks.eviction.base import IdleQueue, Item
from prefixcache.blocks.eviction.lru import ReleaseOrder


class IdleItems(Generic[Item]):
    """A policy's queue with the stale items in front of it.

    Items become stale when the weights change: nothing can reach them any more, so they go before
    everything that can still be hit, whatever the policy.
    """

    def __init__(self, queue: IdleQueue[Item]) -> None:
        self.queue = queue
        self.takes_all = queue.takes_all
        self.stale: set[Item] = set()  # idle or pinned
        self._old: ReleaseOrder[Item] = ReleaseOrder()

    def __len__(self) -> int:
        return len(self.queue) + len(self._old)

    def __contains__(self, item: Item) -> bool:
        return item in self.queue or item in self._old

    def __iter__(self) -> Iterator[Item]:
        yield from self._old
        yield from self.queue

    def add(self, item: Item) -> None:
        """The item became idle (and a leaf, unless the queue takes all)."""
        if self.stale and item in self.stale:
            self._old.add(item)
        else:
            self.queue.add(item)

    def extend(self, items: Iterable[Item]) -> None:
        """Add many, in this order."""
        if not self.stale and isinstance(self.queue, ReleaseOrder):
            self.queue.extend(items)
        else:
            for item in items:
                self.add(item)

    def discard(self, item: Item) -> None:
        """The item is in use again or no leaf any more."""
        self.queue.discard(item)
        if self.stale:
            self._old.discard(item)

    def rerank(self, item: Item) -> None:
        """The facts of the item changed. No error when it is not queued; stale items keep their place."""
        self.queue.rerank(item)

    def peek(self) -> Item:
        """The next to leave; `LookupError` when there is none."""
        return self._old.peek() if self.stale and self._old else self.queue.peek()

    def pop(self) -> Item:
        """Take out the next to leave; `LookupError` when there is none."""
        return self._old.pop() if self.stale and self._old else self.queue.pop()

    def pop_many(self, n: int) -> list[Item]:
        """Take out the next n (fewer when there are fewer) of a queue that takes all. O(n)."""
        assert isinstance(self.queue, ReleaseOrder)
        items = self._old.pop_many(n) if self._old else []
        return items + self.queue.pop_many(n - len(items))

    def forget(self, item: Item) -> None:
        """The item left the index for good."""
        if self.stale:
            self.stale.discard(item)

    def retire(self, items: Iterable[Item]) -> None:
        """All these items, idle or not, are stale from now on. O(items)."""
        self.stale.update(items)
        for item in [item for item in self.queue if item in self.stale]:
            self.queue.discard(item)
            self._old.add(item)
