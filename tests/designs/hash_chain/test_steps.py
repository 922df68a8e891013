"""visibility="step": registered and shared now, matched and announced when the step ends."""

from __future__ import annotations

from typing import Any

from prefixcache import PrefixCache, Removed, Stored


def make(**options: Any) -> PrefixCache:
    return PrefixCache("hash_chain", block_size=4, capacity=16, visibility="step", **options)


def kinds(cache: PrefixCache) -> list[str]:
    return [type(event).__name__ for event in cache.take_events()[2] if isinstance(event, Stored | Removed)]


def test_what_is_computed_is_matched_after_the_step() -> None:
    cache = make()
    request = cache.open(range(1, 10))
    request.computed(9)
    assert cache.probe(range(1, 10)).cached == 0
    assert kinds(cache) == []
    cache.end_step()
    assert cache.probe(range(1, 10)).cached == 8
    assert kinds(cache) == ["Stored"]


def test_twins_of_one_step_share_a_block_at_once() -> None:
    cache = make()
    first, second = cache.open(range(1, 10)), cache.open(range(1, 10))
    first.computed(9)
    second.computed(9)
    assert second.cached == 0
    assert len(second.take_moves()) == 2
    assert second.block_table[:2].tolist() == first.block_table[:2].tolist()
    assert cache.stats().duplicate_blocks == 2


def test_a_release_ends_the_step_for_everybody() -> None:
    cache = make()
    request, other = cache.open(range(1, 10)), cache.open(range(20, 29))
    request.computed(9)
    other.computed(9)
    request.close()
    assert cache.probe(range(20, 29)).cached == 8
    assert cache.probe(range(1, 10)).cached == 8


def test_letting_go_of_the_end_of_a_table_ends_the_step() -> None:
    cache = make()
    request = cache.open(range(1, 10))
    request.computed(9)
    request.rewind(5)
    request.copied()
    cache.check()
    assert cache.probe(range(1, 10)).cached == 8


def test_a_reset_that_cannot_happen_ends_nothing() -> None:
    cache = make()
    request = cache.open(range(1, 10))
    request.computed(9)
    assert not cache.reset()
    assert cache.probe(range(1, 10)).cached == 0
    assert kinds(cache) == []


def test_new_weights_forget_what_was_never_seen() -> None:
    cache = make()
    request = cache.open(range(1, 10))
    request.computed(9)
    cache.new_generation()
    cache.end_step()
    assert cache.probe(range(1, 10)).cached == 0
    assert kinds(cache) == []
    request.close()
    cache.check()
    assert cache.evict(9) == 2
    assert kinds(cache) == []
