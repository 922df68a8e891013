"""visibility="step": registered and shared now, matched and announced when the step ends."""

from __future__ import annotations

import random
import zlib
from itertools import product
from typing import Any

import pytest

from prefixcache import PrefixCache, Removed, Stored
from prefixcache.designs.hash_chain.search import SEARCHES


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


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("size", [1, 2])
def test_a_collision_lets_no_search_jump_over_a_block_of_this_step(search: str, size: int) -> None:
    rng, hits = random.Random(f"jump {size}"), 0
    for _ in range(300):
        cache = PrefixCache(
            "hash_chain",
            block_size=size,
            capacity=24,
            hash=lambda message: zlib.crc32(message) & 15,
            visibility="step",
            search=search,
        )
        for _ in range(3):
            old = cache.open([rng.randrange(2) for _ in range(6)])
            old.computed(6)
        cache.end_step()
        seen = {tuple(prompt): cache.probe(prompt).cached for prompt in product(range(2), repeat=6)}
        new = cache.open([rng.randrange(2) for _ in range(6)])
        new.computed(6)
        for prompt, cached in seen.items():
            assert cache.probe(prompt).cached == cached, "what this step registered is matched in it"
            hits += cached > 0
        cache.check()
    assert hits > 100
