"""When keys left the index, for a while: what `explain` needs to tell "evicted" from "never seen"."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import repeat


class Removals:
    """The most recent removals, bounded.

    Args:
        most: keys to remember; older ones are forgotten.
        clock: seconds.

    Attributes:
        complete: nothing has been forgotten since the beginning or the last `clear`.
    """

    def __init__(self, most: int, clock: Callable[[], float]) -> None:
        self._most = most
        self._clock = clock
        self._when: dict[bytes, float] = {}
        self._order: deque[tuple[bytes, float]] = deque()
        self.complete = True

    def __len__(self) -> int:
        return len(self._when)

    def note(self, keys: Sequence[bytes]) -> None:
        """These keys can no longer be found. O(keys)."""
        now = self._clock()
        self._when.update(dict.fromkeys(keys, now))
        self._order.extend(zip(keys, repeat(now)))
        for _ in range(len(self._order) - self._most):
            key, then = self._order.popleft()
            if self._when.get(key) is then:  # not removed again since
                del self._when[key]
                self.complete = False

    def when(self, key: bytes) -> float | None:
        """The time at which the key was last removed, None when that is not remembered. O(1)."""
        return self._when.get(key)

    def clear(self) -> None:
        """Start again: everything is gone at once."""
        self._when.clear()
        self._order.clear()
        self.complete = True
