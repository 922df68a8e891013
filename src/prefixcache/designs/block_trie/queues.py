"""Empty blocks that wait among idle ones: the 101 queues of the original, as one order.

The original keeps a queue per priority, in which cached and empty blocks wait side by side; whichever is at
the front of the lowest queue is used next. Here all of them are items of one heap, ranked by
(priority, release, depth), runs beside runs of empty blocks.

    priority 20    [run c] [run a]
    priority 35    [never used: 7 8 9 ...] [empty 3 2] [run b] [empty 6]        left is next
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from prefixcache.blocks.eviction import Facts, Policy

if TYPE_CHECKING:
    from prefixcache.designs.block_trie.design import BlockTrieDesign


def _rank(facts: Facts) -> tuple[int, ...]:
    """By priority; of equal ones, the least recently released; of one release, the tail of the prompt."""
    return (facts.priority, facts.last_access, -facts.depth)


QUEUES = Policy("priority", _rank, frozenset({"priority"}))


class Empty:
    """Empty blocks that were let go of together: neighbours in one table, the last one is used first.

    Attributes:
        blocks: ids, in the order of the table they stood in.
        priority, ttl, since, last_access: as of a run.
        end: tokens from the beginning of the prompt to the end of the last block.
    """

    __slots__ = ("blocks", "end", "last_access", "priority", "since", "ttl")

    def __init__(
        self, blocks: array[int], priority: int, ttl: float | None, since: float, last_access: int, end: int
    ) -> None:
        self.blocks = blocks
        self.priority = priority
        self.ttl = ttl
        self.since = since
        self.last_access = last_access
        self.end = end


class EmptyBlocks:
    """The free list of a design whose empty blocks wait in its queues. See `blocks.pool.FreeList`."""

    def __init__(self, design: BlockTrieDesign) -> None:
        self._design = design
        self._items: dict[Empty, None] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        for item in self._items:
            yield from item.blocks

    def add(self, blocks: Sequence[int]) -> None:
        self._design.queue_empty(blocks)

    def put(self, item: Empty) -> None:
        """An item of empty blocks is queued."""
        self._items[item] = None
        self._count += len(item.blocks)

    def draw(self, item: Empty, n: int) -> array[int]:
        """The last n blocks of the item (all, when there are fewer), the last one first."""
        taken = item.blocks[-n:] if n < len(item.blocks) else item.blocks[:]
        del item.blocks[len(item.blocks) - len(taken) :]
        self._count -= len(taken)
        if not item.blocks:
            del self._items[item]
        taken.reverse()
        return taken

    def take(self, n: int) -> array[int]:
        """The next n in their own order, as if no idle block waited among them."""
        taken = array("i")
        for item in sorted(self._items, key=lambda item: _rank(self._design.facts(item))):
            if len(taken) < n:
                taken.extend(self._design.draw_empty(item, n - len(taken)))
        return taken
