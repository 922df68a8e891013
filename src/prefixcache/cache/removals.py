"""When keys left the index, for a while: what `explain` needs to tell "evicted" from "never seen"."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice


class Removals:
    """The most recent removals, bounded.

    Removals are many and questions are few: they are kept as they come, and sorted by key when one is asked for.

    Args:
        most: keys to remember; what is beyond is forgotten, oldest first, as many together as were removed so.
        clock: seconds.

    Attributes:
        complete: nothing has been forgotten since the beginning or the last `clear`.
    """

    def __init__(self, most: int, clock: Callable[[], float]) -> None:
        self._most = most
        self._clock = clock
        self._batches: deque[tuple[float, tuple[bytes, ...]]] = deque()
        self._count = 0
        self._when: dict[bytes, float] = {}  # of the first `_sorted` batches
        self._sorted = 0
        self.complete = True

    def __len__(self) -> int:
        return self._count

    def note(self, keys: Sequence[bytes]) -> None:
        """These keys can no longer be found. O(keys) bytes."""
        if len(keys) > self._most:
            keys = keys[len(keys) - self._most :]
            self.complete = False
        self._batches.append((self._clock(), tuple(keys)))
        self._count += len(keys)
        while self._count - len(self._batches[0][1]) >= self._most and self._count:
            self._forget()

    def _forget(self) -> None:
        then, keys = self._batches.popleft()
        self._count -= len(keys)
        self.complete = False
        if self._sorted:
            self._sorted -= 1
            for key in keys:
                if self._when.get(key) is then:  # not removed again since
                    del self._when[key]

    def when(self, key: bytes) -> float | None:
        """The time at which the key was last removed, None when that is not remembered.

        O(keys removed since the last question).
        """
        for then, keys in islice(self._batches, self._sorted, None):
            self._when.update(dict.fromkeys(keys, then))
        self._sorted = len(self._batches)
        return self._when.get(key)

    def clear(self) -> None:
        """Start again: everything is gone at once."""
        self._batches.clear()
        self._when.clear()
        self._count = self._sorted = 0
        self.complete = True
