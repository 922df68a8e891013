"""`plan`: who had better wait a step, exactly: only who would get a longer hit by it."""

from __future__ import annotations

from typing import Any

import pytest

from prefixcache import DESIGNS, PrefixCache, Scope

T = list(range(8))
FULL_BLOCKS = ["radix", "hash_chain"]
INSIDE = ["block_trie", "digest_chain"]


def make(design: str, **options: Any) -> PrefixCache:
    return PrefixCache(design, block_size=4, capacity=32, **options)


def waits(cache: PrefixCache, *batch: dict[str, Any]) -> list[bool]:
    return [plan.wait for plan in cache.plan(batch)]


def hit_a_step_later(cache: PrefixCache, first: dict[str, Any], second: dict[str, Any]) -> bool:
    """Whether the second request gets more when the first has computed all it has."""
    before = cache.probe(second["tokens"], second.get("scope")).cached
    request = cache.open(**first)
    request.computed(request.length)
    after = cache.open(**second).cached
    return after > before


@pytest.mark.parametrize("design", [design for design in DESIGNS if design != "naive"])
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"tokens": [*T, 1]}, {"tokens": [*T, 2]}),
        ({"tokens": [*T, 1]}, {"tokens": [*T, 2], "read": False}),
        ({"tokens": [*T, 1], "store": False}, {"tokens": [*T, 2]}),
        ({"tokens": [*T, 1], "media": [{"start": 0}]}, {"tokens": [*T, 2]}),
        ({"tokens": T[:4]}, {"tokens": T[:4]}),
        ({"tokens": [*T, 1], "scope": Scope(salt="a")}, {"tokens": [*T, 2]}),
    ],
)
def test_who_waits_gets_more_a_step_later(design: str, first: dict[str, Any], second: dict[str, Any]) -> None:
    assert waits(make(design), first, second) == [False, hit_a_step_later(make(design), first, second)]
    live = make(design)
    live.open(**first)
    assert waits(live, second) == [hit_a_step_later(make(design), first, second)]


@pytest.mark.parametrize("design", FULL_BLOCKS)
@pytest.mark.parametrize(("shared", "expected"), [(4, False), (8, True)])
def test_what_a_draft_model_drops_is_not_worth_waiting_for(design: str, shared: int, expected: bool) -> None:
    cache = make(design, lookahead=1, lookahead_by="drop")
    batch = [{"tokens": [*T[:shared], last]} for last in (1, 2)]
    if shared == 8:  # the first block is cached: with the second one the first is kept
        request = cache.open(T[:4])
        request.computed(4)
        request.close()
    assert waits(cache, *batch) == [False, expected]


def test_nobody_waits_for_a_request_of_old_weights() -> None:
    cache = make("hash_chain")
    live = cache.open([*T, 1], Scope(generation=0))
    cache.new_generation()
    assert waits(cache, {"tokens": [*T, 2], "scope": Scope(generation=0)}) == [False]
    live.abort()
