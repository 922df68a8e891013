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
from itertools import groupby
from typing import TYPE_CHECKING

from prefixcache.blocks.eviction import Facts, Policy
from prefixcache.blocks.retention import DEFAULT_PRIORITY
from prefixcache.errors import InvariantError

if TYPE_CHECKING:
    from prefixcache.blocks.pool import BlockPool
    from prefixcache.designs.base import Holding
    from prefixcache.designs.block_trie.store import Store
    from prefixcache.designs.block_trie.uses import Uses


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


class PriorityQueues:
    """All blocks that nobody uses, empty and cached, in one order. The pool's free list: see `blocks.pool.FreeList`."""

    def __init__(self, uses: Uses, store: Store, pool: BlockPool, block_size: int) -> None:
        self._uses, self._store, self._pool = uses, store, pool
        self._size = block_size
        self._empty: dict[Empty, None] = {}
        self._count = 0

    # -- as the pool's free list ----------------------------------------------------------------------

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        for item in self._empty:
            yield from item.blocks

    def add(self, blocks: Sequence[int]) -> None:
        """These blocks wait at the priority they asked for, let go of now."""
        self._uses.begin()
        self._queue(blocks, 0)

    def take(self, n: int) -> array[int]:
        """The next n empty ones, as if no cached block waited among them."""
        taken = array("i")
        for item in sorted(self._empty, key=lambda item: _rank(self._uses.facts(item))):
            if len(taken) < n:
                taken.extend(self._draw_empty(item, n - len(taken)))
        return taken

    def withdraw(self, blocks: Sequence[int]) -> None:
        """These wait no longer."""
        gone = set(blocks)
        for item in list(self._empty):
            left = array("i", (block for block in item.blocks if block not in gone))
            self._count -= len(item.blocks) - len(left)
            item.blocks = left
            if not left:
                del self._empty[item]
                self._uses.leave(item)

    # -- in -----------------------------------------------------------------------------------------

    def free(self, holding: Holding, indices: list[int]) -> None:
        """Private blocks at these table indices wait between those that were let go of with them, the tail first."""
        for _, group in groupby(enumerate(indices), lambda pair: pair[1] - pair[0]):
            together = [index for _, index in group]
            self._queue(self._pool.unclaim([holding.table[index] for index in together]), together[0])

    def _queue(self, blocks: Sequence[int], index: int) -> None:
        """Neighbours in a table, from this index on."""
        uses, terms = self._uses, self._store.terms
        for (priority, ttl), some in terms.pieces(array("i", blocks)):
            index += len(some)
            terms.forget(some)
            self._wait(Empty(some, priority, ttl, uses.now, uses.tick, index * self._size))

    def _wait(self, item: Empty) -> None:
        self._empty[item] = None
        self._count += len(item.blocks)
        self._uses.wait(item)

    # -- out ----------------------------------------------------------------------------------------

    def draw(self, n: int) -> tuple[array[int], int]:
        """The next n blocks, and how many of them were cached. Blocks that were never used wait first at 35."""
        items, drawn, evicted = self._uses.items, array("i"), 0
        while len(drawn) < n:
            item = items.peek() if len(items) else None
            more = n - len(drawn)
            if self._pool.unused and (item is None or (item.priority >= DEFAULT_PRIORITY and item not in items.stale)):
                drawn.extend(self._pool.take_unused(min(more, self._pool.unused)))
            elif isinstance(item, Empty):
                drawn.extend(self._draw_empty(item, more))
            else:
                assert item is not None
                taken = self._store.evict(item, min(more, len(item.blocks)), leaves_hole=True)
                evicted += len(taken)
                self._tell(taken)
                drawn.extend(taken)
        return drawn, evicted

    def _draw_empty(self, item: Empty, n: int) -> array[int]:
        """The last n blocks of an item (all, when there are fewer), the last one first."""
        taken = item.blocks[-n:]
        del item.blocks[len(item.blocks) - len(taken) :]
        self._count -= len(taken)
        if not item.blocks:
            del self._empty[item]
            self._uses.leave(item)
        taken.reverse()
        return taken

    def evict(self, n: int) -> int:
        """Empty the next n cached blocks (all, when there are fewer); each keeps its place."""
        items, gone, passed = self._uses.items, 0, list[Empty]()
        while gone < n and self._uses.idle:
            item = items.peek()
            if isinstance(item, Empty):
                items.discard(item)
                passed.append(item)
                continue
            end = item.end
            taken = self._store.evict(item, min(n - gone, len(item.blocks)), leaves_hole=True)
            gone += len(taken)
            self._tell(taken)
            taken.reverse()
            self._wait(Empty(taken, item.priority, item.ttl, item.since, item.last_access, end))
        for empty in passed:
            items.add(empty)
        return gone

    def _tell(self, blocks: Sequence[int]) -> None:
        if self._pool.freed is not None:
            self._pool.freed(blocks)

    def check(self) -> None:
        """Assert that exactly the known empty blocks wait; raises `InvariantError`."""
        waiting = {item for item in self._uses.items if isinstance(item, Empty)}
        if waiting != set(self._empty) or not all(item.blocks for item in waiting):
            raise InvariantError("the queues hold other empty blocks than the free list")
        if self._count != sum(len(item.blocks) for item in waiting):
            raise InvariantError(f"the free list counts {self._count} blocks, not those that it has")
