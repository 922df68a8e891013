"""Who owns which block of KV memory: the empty ones lie here, the others are lent out.

    capacity = free + quarantined + lent        lent = in the index (idle or pinned) or private to a request

The pool knows nothing of prefixes. A block is lent once; while several requests share a private block
(forks that never publish, sources of unfinished copies) it counts their claims and takes the block back
with the last one.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

from prefixcache.errors import InvariantError, whole_number

MAX_BLOCKS = 2**31 - 1


class BlockPool:
    """Block ids 0 .. capacity-1, handed out in ascending order at first and last-freed-first afterwards.

    Ids that were never used cost nothing, so the capacity may be as large as `MAX_BLOCKS`.

    Args:
        capacity: number of blocks, 1 .. `MAX_BLOCKS`.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = whole_number(capacity, "capacity", least=1, most=MAX_BLOCKS)
        self._freed = array("i")  # a stack
        self._fresh = 0  # ids from here on were never lent
        self._quarantined = 0
        self._claims: dict[int, int] = {}  # private blocks with more than one claim

    @property
    def free(self) -> int:
        """Empty blocks."""
        return len(self._freed) + self.capacity - self._fresh

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
        freed = self._freed
        again = min(n, len(freed))
        blocks = freed[len(freed) - again :]
        del freed[len(freed) - again :]
        blocks.reverse()
        if again < n:
            fresh = self._fresh
            if fresh + n - again > self.capacity:
                raise InvariantError(f"asked for {n} blocks, {self.free + again} are free")
            self._fresh = fresh + n - again
            blocks.extend(range(fresh, self._fresh))
        return blocks

    def give(self, blocks: Sequence[int]) -> None:
        """Take blocks back; one with several claims loses one of them and stays lent. O(n)."""
        if self._claims:
            blocks = [block for block in blocks if not self._drop_claim(block)]
        self._freed.extend(blocks)

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

    def quarantine(self, blocks: Sequence[int]) -> array[int]:
        """Hold blocks back until `settle`: in-flight work may still write them. Returns those held back."""
        held = array("i", (block for block in blocks if not self._drop_claim(block)))
        self._quarantined += len(held)
        return held

    def settle(self, blocks: Sequence[int]) -> None:
        """The work on quarantined blocks is over: they are free again."""
        self._quarantined -= len(blocks)
        self._freed.extend(blocks)

    def check(self, lent: Iterable[int]) -> None:
        """Assert that `lent` (each block that somebody owns, quarantined ones too, once) and the free ones are all."""
        owned = list(lent)
        seen = set(owned)
        if len(seen) != len(owned):
            twice = sorted(block for block in seen if owned.count(block) > 1)
            raise InvariantError(f"blocks owned twice: {twice[:10]}")
        both = seen.intersection(self._freed)
        if both:
            raise InvariantError(f"blocks both free and owned: {sorted(both)[:10]}")
        if len(set(self._freed)) != len(self._freed):
            raise InvariantError("a block is free twice")
        if len(seen) + len(self._freed) != self._fresh:
            lost = set(range(self._fresh)) - seen - set(self._freed)
            raise InvariantError(f"blocks lost (neither free nor owned): {sorted(lost)[:10]}")
        if self._quarantined < 0 or any(count < 2 for count in self._claims.values()):
            raise InvariantError("a counter of the pool is below its least value")
