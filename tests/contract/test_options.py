"""Contract, options with one meaning everywhere: each for the designs that offer it."""

from __future__ import annotations

import pytest

from prefixcache import NoSpace, RequestError
from prefixcache.events import Removed, Stored
from tests.contract.bench import FRESH, Bench
from tests.registration import AT_ANY_BLOCK_SIZE, DESIGNS


def offers(option: str, value: object) -> pytest.MarkDecorator:
    """Run a test for the designs that can be told so, or are so by default."""
    names = [
        name
        for name, traits in AT_ANY_BLOCK_SIZE.items()
        if value in traits.options.get(option, ()) or value == getattr(traits, option, None)
    ]
    return pytest.mark.parametrize("design", sorted(names))


@offers("store_last", False)
def test_without_store_last_the_last_known_token_is_withheld(make, design: str) -> None:
    bench = make(store_last=False, partial="off")
    request = bench.step(bench.open(range(1, 9)))
    assert bench.found(range(1, 9)) == 4
    request.append(9)
    assert bench.found(range(1, 9)) == 4, "published at computed, not at append"
    bench.step(request)
    assert bench.found(range(1, 9)) == 8


@offers("store_last", False)
def test_without_store_last_an_unfinished_prompt_withholds_its_last_computed_token(make, design: str) -> None:
    bench = make(store_last=False, partial="off")
    request = bench.open(range(1, 14))
    bench.step(request, 8)
    assert bench.found(range(1, 14)) == 4
    bench.step(request, 9)
    assert bench.found(range(1, 14)) == 8
    bench.step(request)
    assert bench.found(range(1, 14)) == 12


@offers("lookahead", 1)
def test_a_lookahead_drops_the_last_matched_unit(make, design: str) -> None:
    bench = make(lookahead=1, lookahead_by="drop", partial="off")
    bench.run(range(1, 10))
    assert [bench.found(range(1, end)) for end in (9, 10, 5)] == [4, 4, 0]
    assert bench.cache.probe([*range(1, 9), FRESH]).reason == "lookahead"


@offers("lookahead_by", "key")
def test_a_lookahead_in_the_key_costs_nothing_where_the_next_token_agrees(make, design: str) -> None:
    bench = make(lookahead=1, lookahead_by="key")
    bench.run(range(1, 10))
    found = [bench.found(range(1, end)) for end in (9, 10, 5)]
    assert found == ([4, 8, 0] if not bench.setup.partial else [7, 8, 3])


@offers("evict_unit", "node")
def test_a_whole_node_may_go(make, design: str) -> None:
    bench = make(evict_unit="node")
    bench.run(range(1, 13))
    bench.run([50, 51, 52, 53])
    assert bench.cache.evict(1) >= 1
    assert bench.found([50, 51, 52, 53]) == 4
    bench.drain()


@offers("duplicates", "keep")
def test_kept_duplicates_leave_tables_as_they_are(make, design: str) -> None:
    bench = make(duplicates="keep", capacity=6)
    first, second = bench.open(range(1, 10)), bench.open(range(1, 10))
    own = second.block_table.tolist()
    bench.step(first)
    bench.step(second)
    assert second.block_table.tolist() == own
    assert second.take_moves() == ()
    stored = [event for event in bench.cache.take_events()[2] if isinstance(event, Stored)]
    assert sum(len(event.keys) for event in stored) == 2, "a key is stored once"
    first.close()
    second.close()
    assert bench.cache.evict(2) == 2
    assert bench.found(range(1, 9)) == 8, "one copy went, the other still counts"
    assert bench.cache.take_events()[2] == []
    bench.drain()
    removed = [event for event in bench.cache.take_events()[2] if isinstance(event, Removed)]
    assert sum(len(event.keys) for event in removed) == 2


@offers("visibility", "step")
def test_blocks_of_a_step_are_matched_after_it(make, design: str) -> None:
    bench = make(visibility="step")
    request = bench.step(bench.open(range(1, 10)))
    assert bench.found(range(1, 9)) == 0
    twin = bench.step(bench.open(range(1, 10)))
    assert twin.cached == 0
    assert twin.block_table.tolist()[:2] == request.block_table.tolist()[:2], "but shared at once"
    assert bench.cache.take_events()[2] == []
    bench.cache.end_step()
    assert bench.found(range(1, 9)) == 8
    assert len(bench.cache.take_events()[2]) > 0


@offers("visibility", "step")
def test_a_release_first_ends_the_step(make, design: str) -> None:
    bench = make(visibility="step")
    bench.run(range(1, 10))
    assert bench.found(range(1, 9)) == 8


@offers("partial", "copy")
def test_a_hit_inside_a_block_is_a_copy_the_request_makes_before_it_writes(make, design: str) -> None:
    bench = make(partial="copy")
    bench.run(range(1, 9))
    request = bench.open([1, 2, 3, 4, 5, 6, 77, 78])
    assert request.cached == 6
    (copy,) = request.copies
    assert (copy.target, copy.tokens) == (request.block_table[1], 2)
    assert copy.source not in request.block_table.tolist()
    assert bench.cache.evict(16) == 0, "the source is pinned"
    with pytest.raises(RequestError):
        request.computed(8)
    bench.step(request)
    request.close()
    assert bench.found(range(1, 9)) == bench.found([1, 2, 3, 4, 5, 6, 77, 78]) == 8


@offers("partial", "copy")
def test_a_partial_hit_never_causes_a_refusal(make, design: str) -> None:
    bench = make(partial="copy", capacity=2)
    bench.run(range(1, 9))
    request = bench.step(bench.open([1, 2, 3, 4, 5, 6, 77, 78]))
    assert request.cached in (4, 6), "the source in place, or the block boundary"
    holder = make(partial="copy", capacity=3)
    keeper = holder.step(holder.open(range(1, 9)))
    request = holder.step(holder.open([1, 2, 3, 4, 5, 6, 77, 78]))
    assert request.cached == 6
    holder.verify(keeper)
    full = make(partial="copy", capacity=2)
    keeper = full.step(full.open(range(1, 9)))
    with pytest.raises(NoSpace):
        full.open([1, 2, 3, 4, 5, 6, 77, 78])
    full.verify(keeper)


@offers("partial", "take")
def test_an_unused_leaf_is_taken_in_place_and_leaves_the_index(make, design: str) -> None:
    bench = make(partial="take")
    bench.run(range(1, 9))
    bench.cache.take_events()
    request = bench.open([1, 2, 3, 4, 5, 6, 77, 78])
    assert (request.cached, request.copies) == (6, ())
    assert bench.found(range(1, 9)) == 4
    (event,) = bench.cache.take_events()[2]
    assert isinstance(event, Removed)
    bench.step(request).close()
    assert bench.found([1, 2, 3, 4, 5, 6, 77, 78]) == 8
    bench.drain()


@offers("partial", "take")
def test_a_block_in_use_is_copied_also_where_leaves_are_taken(make, design: str) -> None:
    bench = make(partial="take")
    keeper = bench.step(bench.open(range(1, 9)))
    request = bench.open([1, 2, 3, 4, 5, 6, 77, 78])
    assert request.cached == 6
    assert len(request.copies) == 1
    bench.step(request)
    bench.verify(keeper)
    assert bench.found(range(1, 9)) == 8


@offers("tails", True)
def test_a_partial_tail_is_found_after_the_end_and_replaced_by_a_longer_one(make, design: str) -> None:
    bench = make()
    bench.run(range(1, 7))
    assert bench.found(range(1, 7)) == 6
    stored = [event for event in bench.cache.take_events()[2] if isinstance(event, Stored)]
    assert sorted(len(event.tokens) for event in stored) in ([2, 4], [6])
    bench.run(range(1, 9))
    assert bench.found(range(1, 9)) == 8
    assert bench.cache.books().idle == 2, "a longer block replaces the shorter one that it covers"
    bench.drain()


@offers("eviction", "lfu")
def test_a_policy_only_ranks_what_the_structure_offers(design: str) -> None:
    for eviction in DESIGNS[design].options["eviction"]:
        bench = Bench(design, eviction=eviction)
        bench.run(range(1, 13))
        bench.run([1, 2, 3, 4, 50, 51, 52, 53])
        pinned = bench.open([1, 2, 3, 4, 50, 51, 52, 53, 54])
        assert bench.cache.evict(16) == 2, eviction
        assert bench.found([1, 2, 3, 4, 50, 51, 52, 53]) == 8
        pinned.abort()
        bench.drain()


@offers("eviction", "priority")
def test_a_priority_outlives_recency_until_its_time_is_over(design: str) -> None:
    bench = Bench(design, eviction="priority", capacity=2)
    bench.run([1, 2, 3, 4], priority=80, ttl=100)
    bench.run([5, 6, 7, 8], priority=35)
    bench.clock.now += 10
    bench.run([9, 10, 11, 12], priority=35)
    assert (bench.found([1, 2, 3, 4]), bench.found([5, 6, 7, 8])) == (4, 0)
    bench.clock.now += 190
    bench.run([13, 14, 15, 16], priority=35)
    bench.run([17, 18, 19, 20], priority=35)
    assert bench.found([1, 2, 3, 4]) == 0, "an expired priority is the default one"
