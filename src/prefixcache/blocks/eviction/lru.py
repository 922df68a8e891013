"""lru: the least recently used leaves first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Generic

from prefixcache.blocks.eviction.base import Facts, Item, Policy


def rank(facts: Facts) -> tuple[int, ...]:
    """By the last access."""
    return (facts.last_access,)


LRU = Policy("lru", rank)


class ReleaseOrder(Generic[Item]):
    """LRU as one ordered dict of all idle items, without a heap; every operation is O(1).

    A plain dict would walk over the holes that its removed head leaves behind.

    Right where recency is set by releases alone: the order of release is then the order of leaving. A path
    is released tail first, and whoever holds a block holds all blocks before it. So a child is always
    queued before its parent, and the head of the queue never has a cached child.
    """

    takes_all = True

    def __init__(self) -> None:
        self._items: OrderedDict[Item, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, item: Item) -> bool:
        return item in self._items

    def __iter__(self) -> Iterator[Item]:
        return iter(self._items)

    def add(self, item: Item) -> None:
        self._items[item] = None

    def extend(self, items: Iterable[Item]) -> None:
        """Add many, in this order."""
        self._items.update(dict.fromkeys(items))

    def discard(self, item: Item) -> None:
        self._items.pop(item, None)

    def rerank(self, item: Item) -> None:
        """Nothing: only a release changes the order, and it takes the item out first."""

    def peek(self) -> Item:
        for item in self._items:
            return item
        raise LookupError("no idle item")

    def pop(self) -> Item:
        if not self._items:
            raise LookupError("no idle item")
        return self._items.popitem(last=False)[0]

    def pop_many(self, n: int) -> list[Item]:
        """The next n to leave (fewer when there are fewer), taken out. O(n)."""
        popitem = self._items.popitem
        return [popitem(last=False)[0] for _ in range(min(n, len(self._items)))]
