"""The lock of a cache, and how long it is held.

A cache has one lock, which is reentrant: functions of the caller (a clock, a hash) run under it, and may call the
cache. Measuring costs about three quarters of a microsecond per call, so it is an option (`lock_times`) and not the
rule.
"""

from __future__ import annotations

import sys
import threading
from bisect import bisect_left
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import accumulate
from time import perf_counter_ns
from typing import Any, TypeAlias

CacheLock: TypeAlias = AbstractContextManager[Any]

_PARTS = 8  # of each power of two
_BUCKETS = 64 * _PARTS


@dataclass(frozen=True, slots=True)
class LockHolds:
    """How long calls of one kind held the lock, in microseconds.

    Percentiles come from a histogram with eight parts to each power of two: they are upper ends of these parts, at most
    an eighth above the true value, and never above `longest`.

    Attributes:
        count: calls.
        total: all of them together.
        p50, p99: median and 99th percentile.
        longest: the longest one, exactly.
    """

    count: int
    total: float
    p50: float
    p99: float
    longest: float


class _Histogram:
    """Nanoseconds, counted in `_BUCKETS` buckets whatever their number."""

    __slots__ = ("buckets", "longest", "total")

    def __init__(self) -> None:
        self.buckets = [0] * _BUCKETS
        self.total = self.longest = 0

    def note(self, nanoseconds: int) -> None:
        bits = nanoseconds.bit_length()
        at = (bits - 3) * _PARTS + (nanoseconds >> (bits - 4)) - _PARTS if bits > 3 else nanoseconds
        self.buckets[at if at < _BUCKETS else -1] += 1
        self.total += nanoseconds
        if nanoseconds > self.longest:
            self.longest = nanoseconds

    def add(self, other: _Histogram) -> None:
        self.buckets = [mine + theirs for mine, theirs in zip(self.buckets, other.buckets, strict=True)]
        self.total += other.total
        self.longest = max(self.longest, other.longest)

    def read(self) -> LockHolds:
        count = sum(self.buckets)
        half, most = (self._at(count, percent) for percent in (50, 99))
        return LockHolds(count, self.total / 1000, half / 1000, most / 1000, self.longest / 1000)

    def _at(self, count: int, percent: int) -> int:
        """The end of the bucket in which this percentile lies, in nanoseconds."""
        at = bisect_left(list(accumulate(self.buckets)), -(-count * percent // 100))
        octave, part = divmod(at, _PARTS)
        end = at if not octave else ((part + _PARTS + 1) << (octave - 1)) - 1
        return min(end, self.longest)


class MeasuredLock:
    """A reentrant lock that notes for how long it is held, by the function that took it first."""

    __slots__ = ("_depth", "_histograms", "_kind", "_lock", "_since")

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._histograms: dict[str, _Histogram] = {}
        self._depth = self._since = 0
        self._kind = ""

    def __enter__(self) -> None:
        self._lock.acquire()
        self._depth += 1
        if self._depth == 1:
            # Every call takes the lock in a method of its own name: to tell kinds by it leaves the callers alone.
            self._kind = sys._getframe(1).f_code.co_name
            self._since = perf_counter_ns()

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth:
            held = perf_counter_ns() - self._since
            histogram = self._histograms.get(self._kind)
            if histogram is None:
                histogram = self._histograms[self._kind] = _Histogram()
            histogram.note(held)
        self._lock.release()

    def read(self) -> dict[str, LockHolds]:
        """What was noted so far by kind of call, with all together as "all"; the caller holds the lock."""
        if not self._histograms:
            return {}
        together = _Histogram()
        for histogram in self._histograms.values():
            together.add(histogram)
        kinds = {kind: histogram.read() for kind, histogram in sorted(self._histograms.items())}
        return {"all": together.read(), **kinds}
