"""Idle blocks in the order in which they were let go of, for numpy: LRU without a heap and without per-block work.

Every release is a run of block ids, tail first, with a number; a column says in which run each block waits.
A block that is used again or evicted has its number wiped, and its entry in the old run counts no more:

    runs      3: [9 4 7]   5: [2 1]   8: [4 7]          column   4: 8   7: 8   9: 3   2: 5   1: 0 (in use)
    order     9, 2, 4, 7

A path is let go of tail first, and whoever holds a block holds all blocks before it (of a key with several
copies: some copy). So a child is always queued before its parent, and the head never has a cached child.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np

from prefixcache.designs.base import Holding
from prefixcache.designs.hash_chain.index import NO_BLOCKS, Ids, Index, grown

_WINDOW = 512  # entries looked at together, at least
_SLACK = 1024  # entries that do not count, and runs, that are not worth a clean-up


class ReleaseRuns:
    """See the module. Every operation is O(blocks named in it), amortised.

    Blocks become stale when the weights change: nothing can reach them any more, so they leave before
    everything that can still be hit.
    """

    def __init__(self, index: Index) -> None:
        self._index = index
        self._run_of: Any = np.zeros(0, np.int64)
        self._is_stale: Any = np.zeros(0, np.bool_)
        self._stale_blocks = 0  # idle or pinned
        self._old, self._runs = _Runs(), _Runs()
        self._number = 0
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __contains__(self, block: int) -> bool:
        return bool(self._run_of[block])

    def __iter__(self) -> Iterator[int]:
        for _, blocks in self._old.waiting(self._run_of) + self._runs.waiting(self._run_of):
            yield from blocks.tolist()

    def queued(self, block: int) -> bool:
        """Whether an idle block must be in the order: all are."""
        return True

    def stale(self, block: int) -> bool:
        """Whether the block is of an old generation."""
        return bool(self._is_stale[block])

    def grow(self, ids: int) -> None:
        """Make room for the block ids below this."""
        self._run_of, self._is_stale = grown(self._run_of, ids), grown(self._is_stale, ids)

    def stored(self, ids: Ids, holding: Holding, start: int, known: int) -> None:
        """Nothing to note: only the order of release counts."""

    def passed(self, ids: Ids, holding: Holding) -> None:
        """Nothing to note: only the order of release counts."""

    def released(self, ids: Ids, step: int) -> None:
        """Nothing to note: those that became idle are added."""

    def expire(self, now: float) -> None:
        """Nothing to note: only the order of release counts."""

    def add(self, ids: Ids) -> None:
        """These became idle, in this order."""
        if self._stale_blocks:
            stale = self._is_stale[ids]
            self._queue(self._old, ids[stale])
            ids = ids[~stale]
        self._queue(self._runs, ids)

    def _queue(self, runs: _Runs, ids: Ids) -> None:
        if not ids.size:
            return
        self._number += 1
        self._length += ids.size
        self._run_of[ids] = self._number
        runs.append(self._number, ids)
        if runs.entries > 2 * self._length + _SLACK or len(runs.runs) > self._length // 16 + _SLACK:
            self._number += 1
            runs.merge(self._run_of, self._number)

    def discard(self, ids: Ids) -> None:
        """These idle blocks are in use again."""
        self._run_of[ids] = 0
        self._length -= ids.size

    def evict(self, n: int) -> tuple[Ids, list[bytes]]:
        """Take the next n to leave, fewer when there are fewer, out of the index.

        Returns them, and the keys that can be found no more since then.
        """
        if not self._stale_blocks:
            ids = self._runs.pop(n, self._run_of)
            self._length -= ids.size
            return ids, self._index.remove(ids)
        old = self._old.pop(n, self._run_of)
        self._index.remove(old)
        self._is_stale[old] = False
        self._stale_blocks -= old.size
        ids = self._runs.pop(n - old.size, self._run_of)
        self._length -= old.size + ids.size
        return np.concatenate((old, ids)), self._index.remove(ids)

    def retire(self) -> None:
        """All that is cached, idle or not, is stale from now on. O(cached blocks)."""
        for block in self._index:
            self._is_stale[block] = True
        self._stale_blocks = len(self._index)
        idle = [waiting for _, waiting in self._runs.waiting(self._run_of)]
        self._runs = _Runs()
        self._length -= sum(waiting.size for waiting in idle)
        for waiting in idle:
            self._queue(self._old, waiting)


class _Runs:
    """Runs of block ids, some entries of which count no more: the column `run_of` tells.

    Attributes:
        entries: block ids in all runs, whether they count or not.
    """

    def __init__(self) -> None:
        self.runs: deque[tuple[int, Ids]] = deque()
        self.entries = 0

    def append(self, number: int, blocks: Ids) -> None:
        self.runs.append((number, blocks))
        self.entries += blocks.size

    def pop(self, n: int, run_of: Any) -> Ids:
        """Take out the first n entries that count, fewer when there are fewer, and wipe their numbers."""
        parts: list[Ids] = []
        runs = self.runs
        while n > 0 and runs:
            number, blocks = runs[0]
            window = blocks[: max(2 * n, _WINDOW)]
            counts = run_of[window] == number
            counting = window[counts]
            taken = counting[:n]
            # What is left of the window: all that counts of a short run, and of a long one what is unseen,
            # for copying that would cost its length again and again.
            if window.size == blocks.size:
                left = counting[n:]
            elif taken.size < n:
                left = blocks[window.size :]
            else:
                left = blocks[int(np.flatnonzero(counts)[n - 1]) + 1 :]
            self.entries -= blocks.size - left.size
            if left.size:
                runs[0] = (number, left)
            else:
                runs.popleft()
            run_of[taken] = 0
            parts.append(taken)
            n -= taken.size
        return parts[0] if len(parts) == 1 else np.concatenate(parts or [NO_BLOCKS])

    def waiting(self, run_of: Any) -> list[tuple[int, Ids]]:
        """The runs without the entries that count no more."""
        return [(number, blocks[run_of[blocks] == number]) for number, blocks in self.runs]

    def merge(self, run_of: Any, number: int) -> None:
        """Make one run of all. O(entries)."""
        blocks = np.concatenate([blocks for _, blocks in self.waiting(run_of)])
        run_of[blocks] = number
        self.runs = deque([(number, blocks)])
        self.entries = blocks.size
