"""Who owns which block of KV memory: the empty ones lie here, the others are lent out.

    capacity = free + quarantined + lent        lent = in the index (idle or pinned) or private to a request

The pool knows nothing of prefixes. A block is lent once; while several requests share a private block
(forks that never publish, sources of unfinished copies) it counts their claims and takes the block back
with the last one.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

import numpy as np

from prefixcache.errors import InvariantError, whole_number

MAX_BLOCKS = 2**31 - 1
_FEW = 32  # up to here a loop over blocks is faster than numpy


class FreeList(Protocol):
    """The empty blocks that were lent before, in the order in which they are lent again."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[int]: ...

    def add(self, blocks: Sequence[int]) -> None:
        """These blocks, in the order of their request, are empty now."""
        ...

    def take(self, n: int) -> array[int]:
        """The next n, taken out; the caller has made sure that there are as many."""
        ...

    def withdraw(self, blocks: Sequence[int]) -> None:
        """These are empty no more. O(empty blocks)."""
        ...


class FreeStack:
    """Last freed, first lent: the memory that is most likely still in the processor's caches."""

    def __init__(self) -> None:
        self._blocks = array("i")

    def __len__(self) -> int:
        return len(self._blocks)

    def __iter__(self) -> Iterator[int]:
        return iter(self._blocks)

    def add(self, blocks: Sequence[int]) -> None:
        self._blocks.extend(blocks)

    def take(self, n: int) -> array[int]:
        stack = self._blocks
        taken = stack[len(stack) - n :]
        del stack[len(stack) - n :]
        taken.reverse()
        return taken

    def withdraw(self, blocks: Sequence[int]) -> None:
        gone = set(blocks)
        self._blocks = array("i", (block for block in self._blocks if block not in gone))


class BlockPool:
    """Block ids 0 .. capacity-1: those that came back in the order of `free_list`, then new ones, ascending.

    Ids that were never used cost nothing, so the capacity may be as large as `MAX_BLOCKS`.

    Args:
        capacity: number of blocks, 1 .. `MAX_BLOCKS`.

    Attributes:
        free_list: where empty blocks wait; a design with an order of its own puts it here before it lends any.
        freed: told of blocks that are nobody's any more; None when nobody listens.
        replaced: told before it of (block, heir) where lookups take another copy from now on; None when nobody listens.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = whole_number(capacity, "capacity", least=1, most=MAX_BLOCKS)
        self.free_list: FreeList = FreeStack()
        self.freed: Callable[[Sequence[int]], None] | None = None
        self.replaced: Callable[[Sequence[tuple[int, int]]], None] | None = None
        self._fresh = 0  # ids from here on were never lent
        self._quarantined = 0
        self._written = bytearray()  # by id: whether it ever held tokens
        self._blank = 0  # ids in there that did not
        self._claims: dict[int, int] = {}  # private blocks with more than one claim

    @property
    def free(self) -> int:
        """Empty blocks."""
        return len(self.free_list) + self.capacity - self._fresh

    @property
    def unused(self) -> int:
        """Blocks that were never lent."""
        return self.capacity - self._fresh

    @property
    def quarantined(self) -> int:
        """Blocks released while work that may still write them is in flight."""
        return self._quarantined

    @property
    def used_ids(self) -> int:
        """All ids lent so far are below this."""
        return self._fresh

    def take(self, n: int) -> array[int]:
        """Lend n empty blocks; the caller has made sure that there are as many. O(n) bytes."""
        again = min(n, len(self.free_list))
        blocks = self.free_list.take(again)
        if again < n:
            unused = self.take_unused(n - again)
            blocks.frombytes(np.arange(unused.start, unused.stop, dtype=np.int32).tobytes())
        return blocks

    def take_unused(self, n: int) -> range:
        """Lend n blocks that were never lent before."""
        fresh = self._fresh
        if fresh + n > self.capacity:
            raise InvariantError(f"asked for {n} blocks that were never used, there are {self.capacity - fresh}")
        self._fresh = fresh + n
        return range(fresh, self._fresh)

    @property
    def any_blank(self) -> bool:
        """Whether any block that was lent may never have held tokens."""
        return self._blank > 0 or len(self._written) < self._fresh

    def note_written(self, blocks: Sequence[int]) -> None:
        """These blocks hold, or are going to hold, the KV of tokens."""
        written = self._written
        if len(written) < self._fresh:
            self._blank += self._fresh - len(written)
            written.extend(bytes(self._fresh - len(written)))
        if not self._blank:
            return
        if len(blocks) <= _FEW:
            for block in blocks:
                self._blank -= not written[block]
                written[block] = 1
        else:
            flags, ids = np.frombuffer(written, np.uint8), np.asarray(blocks)
            self._blank -= len(ids) - int(np.count_nonzero(flags[ids]))
            flags[ids] = 1

    def never_written(self, blocks: Sequence[int]) -> int:
        """How many of these blocks never held tokens."""
        written, known = self._written, len(self._written)
        if not self._blank and known == self._fresh:
            return 0
        if len(blocks) <= _FEW or not known:
            return sum(block >= known or not written[block] for block in blocks)
        ids = np.asarray(blocks)
        noted = np.frombuffer(written, np.uint8)[ids[ids < known]]
        return len(ids) - int(np.count_nonzero(noted))

    def withdraw(self, blocks: Sequence[int]) -> None:
        """Lend these blocks, which are empty and were lent before. O(empty blocks)."""
        if blocks:
            self.free_list.withdraw(blocks)

    def give(self, blocks: Sequence[int]) -> None:
        """Take blocks back; one with several claims loses one of them and stays lent. O(n)."""
        empty = self.unclaim(blocks)
        if self.freed is not None:
            self.freed(empty)
        self.free_list.add(empty)

    def unclaim(self, blocks: Sequence[int]) -> Sequence[int]:
        """One claim less on each; those that nobody has any more, to be put into the free list."""
        if not self._claims:
            return blocks
        return [block for block in blocks if not self._drop_claim(block)]

    def share(self, block: int) -> None:
        """Another claim on a lent block: it takes one more `give` to free it."""
        self._claims[block] = self._claims.get(block, 1) + 1

    def shared(self, block: int) -> bool:
        """Whether the block has more than one claim."""
        return block in self._claims

    def any_shared(self, blocks: Sequence[int]) -> bool:
        """Whether any of these blocks has more than one claim. O(1) where no block at all has."""
        return bool(self._claims) and any(block in self._claims for block in blocks)

    def _drop_claim(self, block: int) -> bool:
        left = self._claims.get(block, 1) - 1
        if left > 1:
            self._claims[block] = left
        else:
            self._claims.pop(block, None)
        return left > 0

    def quarantine(self, blocks: Sequence[int]) -> None:
        """Hold blocks back until `settle`: in-flight work may still write them, whoever else has a claim on them."""
        self._quarantined += len(blocks)

    def settle(self, blocks: Sequence[int]) -> None:
        """The work on quarantined blocks is over: one claim on each is given back."""
        self._quarantined -= len(blocks)
        self.give(blocks)

    def check(self, lent: Iterable[int]) -> None:
        """Assert that `lent` (each block that somebody owns, quarantined ones too, once) and the free ones are all."""
        owned = list(lent)
        seen = set(owned)
        if len(seen) != len(owned):
            twice = sorted(block for block in seen if owned.count(block) > 1)
            raise InvariantError(f"blocks owned twice: {twice[:10]}")
        freed = list(self.free_list)
        both = seen.intersection(freed)
        if both:
            raise InvariantError(f"blocks both free and owned: {sorted(both)[:10]}")
        if len(set(freed)) != len(freed) or len(freed) != len(self.free_list):
            raise InvariantError("a block is free twice")
        if len(seen) + len(freed) != self._fresh:
            lost = set(range(self._fresh)) - seen - set(freed)
            raise InvariantError(f"blocks lost (neither free nor owned): {sorted(lost)[:10]}")
        if self._blank != self._written.count(0):
            raise InvariantError(f"{self._written.count(0)} blocks were never written, the count says {self._blank}")
        if self._quarantined < 0 or any(count < 2 for count in self._claims.values()):
            raise InvariantError("a counter of the pool is below its least value")
