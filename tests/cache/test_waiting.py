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


@pytest.mark.parametrize("design", INSIDE)
@pytest.mark.parametrize("computed", [False, True])
def test_a_complete_hit_does_not_wait_for_its_last_block_to_be_computed_again(design: str, computed: bool) -> None:
    """All but the last token is there: whole and not to be reused whole, or inside a block that begins alike."""
    cache = make(design)
    first = cache.open(T[:4] if computed else [*T[:3], 9])
    first.computed(4)
    cache.open([*T[:4], 6], read=False)  # computes the block on its own
    (plan,) = cache.plan([{"tokens": T[:4]}])
    assert (plan.cached, plan.reason, plan.wait) == (3, "complete", False)


def test_what_a_draft_model_leaves_is_worth_waiting_for() -> None:
    cache = make("digest_chain", backoff=2)
    cache.open([*T[:3], 9]).computed(4)
    live = cache.open([*T[:4], 6], read=False)
    before = cache.plan([{"tokens": T[:4]}])[0]
    live.computed(5)
    after = cache.plan([{"tokens": T[:4]}])[0]
    assert (before.cached, before.wait) == (1, True)
    assert (after.cached, after.wait) == (2, False)


@pytest.mark.parametrize("design", FULL_BLOCKS)
@pytest.mark.parametrize(("behind", "expected"), [(7, True), (9, False)])
def test_the_token_behind_a_block_belongs_to_what_is_waited_for(design: str, behind: int, expected: bool) -> None:
    cache = make(design, lookahead=1, lookahead_by="key")
    live = cache.open([*T[:4], 7])
    ask = {"tokens": [*T[:4], behind, 8]}
    assert waits(cache, ask) == [expected]
    live.computed(4)  # radix shows a token when the one behind it is computed too
    assert waits(cache, ask) == [expected and design == "radix"]
    live.computed(5)
    assert cache.probe(ask["tokens"]).cached == (4 if expected else 0)


@pytest.mark.parametrize("design", FULL_BLOCKS)
def test_a_block_that_ends_in_another_next_token_is_still_waited_for(design: str) -> None:
    cache = make(design, lookahead=1, lookahead_by="key")
    other = cache.open([*T[:4], 9])
    other.computed(5)
    cache.open([*T[:4], 7])
    (plan,) = cache.plan([{"tokens": [*T[:4], 7, 8]}])
    assert (plan.cached, plan.reason, plan.wait) == (0, "lookahead", True)


@pytest.mark.parametrize(("ask", "live"), [([0, 1], [0, 1]), (T, [*T, 9])])
def test_what_a_draft_model_drops_from_a_complete_hit_is_not_worth_waiting_for(ask: list[int], live: list[int]) -> None:
    cache = PrefixCache("radix", block_size=len(ask) // 2, capacity=32, lookahead=1, lookahead_by="drop")
    cache.open(live).computed(len(ask) // 2)
    assert waits(cache, {"tokens": ask}) == [False]


@pytest.mark.parametrize("backoff", [1, 3])
def test_a_block_that_is_left_to_a_draft_model_whole_is_not_waited_for(backoff: int) -> None:
    cache = make("digest_chain", backoff=backoff, partial="off")
    live = cache.open(T)
    asks = [{"tokens": [*T[:4], 9]}, {"tokens": [*T[:4], 9, 9, 9, 9]}]
    assert waits(cache, *asks) == [False, False]
    live.computed(8)
    assert [cache.probe(ask["tokens"]).cached for ask in asks] == [0, 0]


def test_a_block_whose_last_token_is_withheld_is_waited_for_only_when_the_next_step_shows_it() -> None:
    cache = PrefixCache.preset("trtllm", block_size=4, capacity=32)
    ask = {"tokens": [*T[:4], 9]}
    assert waits(cache, {"tokens": T[:4]}, ask) == [False, False]
    live = cache.open(T[:4])
    assert waits(cache, ask) == [False]  # the step computes the block, and its last token is the last known one
    live.computed(4)
    assert waits(cache, ask) == [False]
    live.append(7)
    assert waits(cache, ask) == [True]
    live.computed(5)
    assert cache.probe(ask["tokens"]).cached == 4


def test_a_block_whose_last_token_is_withheld_in_the_middle_of_a_prompt_is_waited_for() -> None:
    cache = PrefixCache.preset("trtllm", block_size=4, capacity=32)
    live = cache.open(T[:6])
    live.computed(4)
    assert cache.plan([{"tokens": [*T[:4], 9]}])[0].wait
    live.computed(5)
    assert cache.probe([*T[:4], 9]).cached == 4


def test_nobody_waits_for_a_request_of_old_weights() -> None:
    cache = make("hash_chain")
    live = cache.open([*T, 1], Scope(generation=0))
    cache.new_generation()
    assert waits(cache, {"tokens": [*T, 2], "scope": Scope(generation=0)}) == [False]
    live.abort()
