"""duplicates="keep": tables are append-only, a key may have several blocks, and it is announced once."""

from __future__ import annotations

from typing import Any

import pytest

from prefixcache import POLICIES, PrefixCache, Removed, Stored


def make(capacity: int = 16, **options: Any) -> PrefixCache:
    return PrefixCache("hash_chain", block_size=4, capacity=capacity, duplicates="keep", **options)


def twins(cache: PrefixCache, tokens: list[int], count: int = 2) -> list[Any]:
    """Requests that compute the same prompt at the same time."""
    requests = [cache.open(tokens) for _ in range(count)]
    for request in requests:
        request.computed(len(tokens))
    return requests


def announced(cache: PrefixCache) -> list[tuple[str, int]]:
    """Kind and number of keys of each event."""
    return [(type(e).__name__, len(e.keys)) for e in cache.take_events()[2] if isinstance(e, Stored | Removed)]


def test_a_table_never_changes() -> None:
    cache = make()
    first, second = twins(cache, [1, 2, 3, 4, 5])
    assert second.take_moves() == ()
    assert set(first.block_table.tolist()).isdisjoint(second.block_table.tolist())
    assert announced(cache) == [("Stored", 1)]


def test_a_hit_takes_the_oldest_copy_and_its_need_counts_it() -> None:
    cache = make()
    first, second = twins(cache, [1, 2, 3, 4, 5])
    oldest = first.block_table[0]
    first.close()
    hit = cache.probe([1, 2, 3, 4, 9])
    assert (hit.cached, hit.need) == (4, 2)  # one new block, and the oldest copy although another one is pinned
    third = cache.open([1, 2, 3, 4, 9])
    assert third.block_table[0] == oldest
    assert second.block_table[0] != oldest


def test_a_key_lives_as_long_as_any_of_its_copies() -> None:
    cache = make(capacity=4)
    first, second = twins(cache, [1, 2, 3, 4, 5])
    first.close()
    cache.take_events()
    other = cache.open(range(20, 25))  # takes the free block and the copy of `first`
    assert announced(cache) == []
    assert cache.probe([1, 2, 3, 4, 9]).cached == 4
    second.close()
    other.close()
    assert cache.evict(9) == 1
    assert announced(cache) == [("Removed", 1)]
    assert cache.probe([1, 2, 3, 4, 9]).cached == 0


@pytest.mark.parametrize("eviction", POLICIES)
def test_an_idle_copy_goes_although_its_key_has_pinned_children(eviction: str) -> None:
    cache = make(eviction=eviction)
    first, second = twins(cache, [1, 2, 3, 4, 5])
    second.append([6, 7, 8])
    second.computed(8)  # a child of the key, held by the second
    first.close()
    assert cache.books().idle == 1
    assert cache.evict(9) == 1
    cache.check()
    assert cache.probe([*range(1, 9), 9]).cached == 8


@pytest.mark.parametrize("eviction", POLICIES)
def test_the_last_copy_waits_for_the_children_of_its_key(eviction: str) -> None:
    cache = make(eviction=eviction)
    requests = twins(cache, list(range(1, 9)), count=3)
    for request in requests:
        request.close()
    for left in range(5, -1, -1):
        assert cache.evict(1) == 1
        cache.check()
        assert cache.books().idle == left
    assert cache.books().free == 16


def test_three_copies_in_any_order_of_release() -> None:
    for order in ((0, 1, 2), (2, 1, 0), (1, 0, 2)):
        cache = make()
        requests = twins(cache, [1, 2, 3, 4, 5], count=3)
        for at in order:
            requests[at].close()
            cache.check()
        assert cache.books().idle == 3
        for _ in order:
            assert cache.probe([1, 2, 3, 4, 9]).cached == 4
            assert cache.evict(1) == 1
            cache.check()
        assert announced(cache) == [("Stored", 1), ("Removed", 1)]
