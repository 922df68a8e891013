"""Contract, `explain`: where the match of a prompt ends and why; a tenant sees nothing beyond its scope."""

from __future__ import annotations

from dataclasses import fields

import pytest

from prefixcache import PrefixCache, Scope
from tests.contract.bench import FRESH, Bench

TOKENS = [1, 2, 3, 4, 5, 6, 7, 8]


def test_it_says_what_a_probe_says_and_changes_nothing(bench: Bench) -> None:
    bench.run(TOKENS)
    bench.run([1, 2, 3, 4, 9, 9, 9, 9])
    bench.cache.take_events()
    for prompt in (TOKENS, TOKENS[:5], [1, 2, 3, 4, 9], [9], [1, 2, 9, 9, 9]):
        before = (bench.books(), bench.cache.stats())
        assert bench.cache.explain(prompt).cached == bench.cache.probe(prompt).cached
        assert (bench.books(), bench.cache.stats()) == before
        assert bench.cache.take_events()[2] == []
    bench.cache.check()


def test_nothing_is_missing_but_the_last_token(bench: Bench) -> None:
    bench.run(TOKENS)
    assert bench.cache.explain([*TOKENS, FRESH]).reason == "complete"
    explained = bench.cache.explain(TOKENS)
    assert explained.reason == ("complete" if bench.setup.partial else "last token")


def test_the_last_token_costs_a_block_where_hits_end_at_blocks(make) -> None:
    bench = make(partial="off")
    bench.run(TOKENS)
    explained = bench.cache.explain(TOKENS)
    assert (explained.cached, explained.reason, explained.agreeing) == (4, "last token", 8)


def test_what_nobody_ever_computed_was_never_seen(bench: Bench) -> None:
    bench.run(TOKENS)
    explained = bench.cache.explain([1, 2, 3, 4, 20, 21, 22, 23, 24])
    assert (explained.cached, explained.reason) == (4, "never seen")
    assert "token 4" in explained.detail
    assert bench.cache.explain([20, 21, 22, 23, 24]).reason == "never seen"


def test_what_does_not_fill_a_block_is_the_boundary(make) -> None:
    bench = make(partial="off")
    bench.run(TOKENS)
    assert bench.cache.explain([1, 2, 3, 4, 5, 6, 20]).reason == "boundary"


def test_what_was_evicted_was_evicted_then(bench: Bench) -> None:
    bench.run(TOKENS)
    bench.clock.now += 5
    evicted_at = bench.clock.now
    bench.cache.evict(1)
    bench.clock.now += 3
    explained = bench.cache.explain([*TOKENS, FRESH])
    assert (explained.cached, explained.reason, explained.evicted_at) == (4, "evicted", evicted_at)
    assert "3.0 s ago" in explained.detail
    bench.run(TOKENS)
    assert bench.cache.explain([*TOKENS, FRESH]).reason == "complete"
    bench.clock.now += 1
    bench.drain()
    assert bench.cache.explain([*TOKENS, FRESH]).evicted_at == bench.clock.now


def test_a_tail_that_gave_way_to_a_longer_one_was_no_eviction_of_what_lies_behind(make) -> None:
    bench = make()
    bench.run(TOKENS[:2])
    bench.run(TOKENS[:3])  # where tails are kept, it goes beyond the first
    explained = bench.cache.explain([*TOKENS[:3], FRESH, FRESH])
    assert explained.reason == "never seen"
    bench.drain()
    assert bench.cache.explain([*TOKENS[:3], FRESH, FRESH]).reason == ("evicted" if explained.cached else "never seen")


def test_a_removed_block_that_agrees_in_part_is_not_remembered(make) -> None:
    """Its key says nothing about its beginning; the sentence claims no more than that."""
    bench = make()
    bench.run(TOKENS)
    bench.drain()
    explained = bench.cache.explain([1, 2, FRESH, FRESH, FRESH])
    assert explained.reason == "never seen"
    assert "a block of just these tokens around token 0 was never cached" in explained.detail


def test_what_it_remembers_of_evictions_is_bounded(make) -> None:
    bench = make(removals=2)
    for first in range(10, 60, 10):
        bench.run([first, 1, 2, 3])
    bench.drain()
    assert bench.cache.explain([50, 1, 2, 3, FRESH]).reason == "evicted"
    forgotten = bench.cache.explain([10, 1, 2, 3, FRESH])
    assert forgotten.reason == "not found"
    assert "too long ago" in forgotten.detail
    assert bench.cache.reset()
    assert bench.cache.explain([10, 1, 2, 3, FRESH]).reason == "never seen"


def test_without_events_removals_are_not_known(design: str) -> None:
    cache = PrefixCache(design, block_size=4, capacity=8, events=False)
    explained = cache.explain(TOKENS)
    assert (explained.reason, "events are off" in explained.detail) == ("not found", True)


def test_a_live_request_is_about_to_compute_it(bench: Bench) -> None:
    request = bench.open([*TOKENS, 9])
    explained = bench.cache.explain([*TOKENS, FRESH])
    assert (explained.cached, explained.reason) == (0, "not computed")
    bench.step(request, 4)
    assert bench.cache.explain([*TOKENS, FRESH]).reason == "not computed"
    bench.step(request, 9)
    assert bench.cache.explain([*TOKENS, FRESH]).reason == "complete"


def test_a_live_request_that_stores_nothing_is_no_hope(bench: Bench) -> None:
    request = bench.open(TOKENS, store=False)
    assert bench.cache.explain([*TOKENS, FRESH]).reason == "never seen"
    request.close()


@pytest.mark.parametrize("field", ["model", "adapter", "salt"])
def test_another_scope_is_named_with_what_differs(bench: Bench, field: str) -> None:
    bench.run(TOKENS, Scope(**{field: "theirs"}))
    explained = bench.cache.explain(TOKENS, Scope(**{field: "mine"}))
    assert (explained.cached, explained.reason, explained.differs) == (0, "scope", (field,))
    assert "'theirs'" in explained.detail


def test_the_use_of_extra_ids_is_a_scope_too(bench: Bench) -> None:
    bench.run(TOKENS)
    explained = bench.cache.explain(TOKENS, extra_ids=[0] * len(TOKENS))
    assert (explained.reason, explained.differs) == ("scope", ("extra ids",))


def test_the_own_scope_explains_first(bench: Bench) -> None:
    bench.run(TOKENS)
    bench.drain()
    bench.run(TOKENS, Scope(salt="theirs"))
    assert bench.cache.explain([*TOKENS, FRESH]).reason == "evicted"


def test_a_tenant_cannot_tell_what_others_have_from_what_nobody_has(bench: Bench) -> None:
    mine = Scope(salt="mine")
    before = bench.cache.explain(TOKENS, mine, tenant=True)
    assert (before.cached, before.reason) == (0, "not found")
    bench.run(TOKENS, Scope(salt="theirs"))
    live = bench.open([*TOKENS, 9], Scope(salt="others"))
    assert bench.cache.explain(TOKENS, mine, tenant=True) == before
    bench.step(live).close()
    bench.drain()
    after = bench.cache.explain(TOKENS, mine, tenant=True)
    assert after == before
    assert "theirs" not in "".join(str(getattr(after, item.name)) for item in fields(after))


def test_a_tenant_sees_its_own_reasons(bench: Bench) -> None:
    mine = Scope(salt="mine")
    bench.run(TOKENS, mine)
    bench.cache.evict(1)
    assert bench.cache.explain([*TOKENS, FRESH], mine, tenant=True).reason == "evicted"


def test_a_picture_hides_what_is_cached_without_it(bench: Bench) -> None:
    bench.run(TOKENS)
    picture = {"digest": "a", "start": 0, "length": 2}
    explained = bench.cache.explain([*TOKENS, FRESH], media=[picture])
    assert (explained.cached, explained.reason) == (0, "media")


def test_prompts_that_are_never_looked_up(bench: Bench) -> None:
    assert bench.cache.explain([]).reason == "empty"
    bad = bench.cache.explain(TOKENS, media=[{"digest": "a", "start": 0, "length": 99}])
    assert bad.reason == "uncacheable"
    assert "tokens 0 to 98" in bad.detail
    bench.cache.new_generation()
    assert bench.cache.explain(TOKENS, Scope(generation=0)).reason == "old generation"


def test_the_token_left_to_a_draft_model(make) -> None:
    bench = make(lookahead=1)
    bench.run([*TOKENS, 9])
    assert bench.cache.explain([*TOKENS, FRESH]).reason == "lookahead"
