"""How many leading keys are cached: three searches that agree whenever the answers read yes .. yes no .. no.

A child is never cached without its parent, so they always do. Which one is the fastest depends on the hit:

    linear      h + 1 lookups for h hits: the least for a miss, the dearest for a long hit
    binary      ceil(log2(N + 1)) lookups for N keys, whatever is cached
    galloping   2 log2(h) lookups: short hits are found early, long ones in logarithmic time
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice, takewhile
from typing import TypeAlias

IsCached: TypeAlias = Callable[[bytes], bool]
Search: TypeAlias = Callable[[list[bytes], int, IsCached], tuple[int, int]]


def binary(keys: list[bytes], most: int, is_cached: IsCached) -> tuple[int, int]:
    """(cached ones among the first `most` keys, lookups made), by bisection."""
    return _bisect(keys, 0, most, is_cached)


def linear(keys: list[bytes], most: int, is_cached: IsCached) -> tuple[int, int]:
    """(cached ones among the first `most` keys, lookups made), one key after the other."""
    found = sum(1 for _ in takewhile(is_cached, islice(keys, most)))
    return found, min(found + 1, most)


def galloping(keys: list[bytes], most: int, is_cached: IsCached) -> tuple[int, int]:
    """(cached ones among the first `most` keys, lookups made), in steps that double, then by bisection."""
    known, step, lookups = 0, 1, 0
    while known < most:
        at = min(known + step, most)
        lookups += 1
        if not is_cached(keys[at - 1]):
            found, more = _bisect(keys, known, at - 1, is_cached)
            return found, lookups + more
        known, step = at, 2 * step
    return most, lookups


def _bisect(keys: list[bytes], low: int, high: int, is_cached: IsCached) -> tuple[int, int]:
    """The same for an answer known to lie in [low, high]."""
    lookups = 0
    while low < high:
        middle = (low + high) // 2
        lookups += 1
        if is_cached(keys[middle]):
            low = middle + 1
        else:
            high = middle
    return low, lookups


SEARCHES: dict[str, Search] = {"binary": binary, "linear": linear, "galloping": galloping}
