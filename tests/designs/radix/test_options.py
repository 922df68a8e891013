"""What the radix design does by default, and what its options change."""

from __future__ import annotations

from typing import Any

import pytest

from prefixcache import PrefixCache, tlru
from prefixcache.designs.radix import tree as tree_module
from tests.contract.bench import Bench


def bench(**options: Any) -> Bench:
    return Bench("radix", **{"block_size": 4, "capacity": 64, **options})


def nodes(cache: PrefixCache) -> list[Any]:
    design: Any = cache._core.design
    return list(design._tree.nodes())


# Keys that look one token ahead


def test_a_key_that_looks_ahead_needs_the_token_behind_a_block() -> None:
    cache = bench(lookahead=1)
    cache.run(range(1, 10))
    hits = [cache.cache.probe(tokens) for tokens in ([*range(1, 9), 99], [*range(1, 10), 99], [1, 2, 3, 4, 99])]
    assert [hit.cached for hit in hits] == [4, 8, 0]
    assert [hits[0].reason, hits[2].reason] == ["lookahead", "lookahead"]


def test_without_blocks_to_round_to_just_the_last_unit_is_missed() -> None:
    cache = bench(lookahead=1, block_size=1)
    cache.run(range(1, 10))
    hit = cache.cache.probe([*range(1, 9), 99])
    assert (hit.cached, hit.reason) == (7, "lookahead")
    assert cache.cache.stats().lookahead_tokens == 0
    cache.run([*range(1, 9), 99])
    assert cache.cache.stats().lookahead_tokens == 1


def test_the_last_computed_token_waits_for_the_one_behind_it() -> None:
    cache = bench(lookahead=1)
    request = cache.step(cache.open(range(1, 9)))
    assert cache.books() == (62, 0, 2, 0)
    assert cache.found(range(1, 9)) == 4
    request.append(9)
    cache.step(request).close()
    assert cache.found([*range(1, 10)]) == 8


def test_a_rewind_gives_up_the_block_whose_next_token_is_forgotten() -> None:
    cache = bench(lookahead=1)
    request = cache.step(cache.open(range(1, 11)))
    request.rewind(8)
    assert [copy.tokens for copy in request.copies] == [4]
    request.append([50, 51])
    cache.step(request).close()
    assert (cache.found([*range(1, 9), 50, 51]), cache.found(range(1, 11))) == (8, 8)


def test_dropping_the_last_unit_is_the_other_way() -> None:
    cache = bench(lookahead=1, lookahead_by="drop")
    cache.run(range(1, 10))
    assert [cache.cache.probe([*range(1, 9), 99]).cached, cache.cache.probe([1, 2, 3, 4, 99]).cached] == [4, 0]


# Reuse inside a block


def test_a_prompt_that_parts_inside_a_block_copies_what_it_shares() -> None:
    cache = bench(partial="copy")
    cache.run(range(1, 9))
    request = cache.open([1, 2, 3, 4, 5, 6, 70, 71, 72])
    assert request.cached == 6
    (copy,) = request.copies
    assert copy.tokens == 2
    cache.step(request).close()
    assert (cache.found(range(1, 9)), cache.found([1, 2, 3, 4, 5, 6, 70, 71])) == (8, 8)
    cache.drain()


def test_only_the_source_of_a_copy_is_pinned() -> None:
    cache = bench(partial="copy")
    cache.run(range(1, 41))
    request = cache.open([1, 2, 9])
    assert request.cached == 2
    assert cache.cache.evict(64) == 9
    cache.step(request)
    assert cache.cache.evict(64) == 1


def test_of_many_children_the_nearest_is_found_and_few_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = bench(partial="copy", capacity=2000)
    for last in range(1000):
        cache.run([1, 2, 3, 4, 7, last // 100, last // 10 % 10, last % 10])
    compared = 0
    common_tokens = tree_module.common_tokens

    def counted(*arguments: Any) -> int:
        nonlocal compared
        compared += 1
        return common_tokens(*arguments)

    monkeypatch.setattr(tree_module, "common_tokens", counted)
    for tokens, cached in (([7, 5, 6, 99], 7), ([7, 5, 99, 99], 6), ([7, 99, 99, 99], 5), ([99], 4)):
        compared = 0
        assert cache.cache.probe([1, 2, 3, 4, *tokens, 0]).cached == cached
        assert compared <= 2


def test_without_room_for_the_copy_the_source_is_taken_over() -> None:
    cache = bench(partial="copy", capacity=3)
    cache.run(range(1, 13))
    request = cache.open([*range(1, 11), 70, 71])
    assert (request.cached, request.copies) == (10, ())
    cache.step(request).close()
    assert (cache.found([*range(1, 11), 70, 71]), cache.found(range(1, 13))) == (12, 10)
    cache.drain()


# Hits, priorities, age


def test_hits_count_at_admission_or_when_published() -> None:
    for count_hits, stays in (("match", [1, 2]), ("insert", [3, 4])):
        cache = bench(block_size=1, eviction="lfu", count_hits=count_hits)
        cache.run([1, 2])
        cache.run([3, 4])
        cache.run([3, 4, 9])
        for _ in range(3):
            cache.open([1, 2, 8]).abort()
        cache.cache.evict(2)  # the leaf 9 and one more
        assert cache.found(stays) == 2


def test_a_split_is_no_use_of_the_rest_unless_told() -> None:
    for refresh, left in ((False, 2), (True, 4)):
        cache = bench(block_size=1, refresh_on_split=refresh, eviction="lru", recency="use")
        cache.run([1, 2, 3, 4])
        cache.run([5, 6])
        request = cache.open([1, 2, 9])
        cache.cache.evict(2)
        assert cache.found([1, 2, 3, 4]) == left
        request.abort()


def test_a_leaf_is_cut_where_its_request_asks_for_another_priority() -> None:
    cache = bench(eviction="priority")
    request = cache.open(range(1, 17), priority=[(0, 6, 90, None), (6, None, 10, None)])
    cache.step(request).close()
    cache.run(range(50, 62), priority=50)
    cache.cache.evict(5)
    assert (cache.found(range(1, 17)), cache.found(range(50, 62))) == (8, 0)


def test_a_shared_prefix_has_the_highest_priority_asked_for() -> None:
    cache = bench(eviction="priority")
    cache.run(range(1, 9), priority=10)
    cache.run([*range(1, 5), 60, 61, 62, 63], priority=80)
    cache.run(range(30, 34), priority=40)
    cache.cache.evict(2)
    assert (cache.found(range(1, 5)), cache.found(range(30, 34))) == (4, 0)


def test_tlru_trims_a_long_branch_to_what_keeps_its_next_prompt_in_time() -> None:
    cache = bench(eviction=tlru(threshold=16))
    cache.run(range(100, 140))
    cache.run(range(1, 25))
    cache.run(range(1, 41))  # the last 16 tokens can be computed in time
    assert cache.cache.evict(4) == 4
    assert (cache.found(range(1, 41)), cache.found(range(100, 140))) == (24, 40)
    assert cache.cache.evict(1) == 1
    assert (cache.found(range(1, 41)), cache.found(range(100, 140))) == (24, 36)


# The tree


def test_a_writer_s_own_leaf_grows_in_place() -> None:
    for unit, count in (("tail", 1), ("node", 4)):
        cache = bench(evict_unit=unit)
        request = cache.step(cache.open(range(1, 5)))
        for token in range(5, 17):
            request.append(token)
            cache.step(request)
        assert len(nodes(cache.cache)) == count
        request.close()


def test_five_thousand_nodes_in_a_row_need_no_recursion() -> None:
    cache = PrefixCache("radix", block_size=1, capacity=6000, evict_unit="node")
    request = cache.open([1])
    for length in range(1, 5001):
        request.computed(length)
        request.append(1)
    request.close()
    assert len(nodes(cache)) == 5000
    assert cache.probe([1] * 5000 + [2]).cached == 5000
    assert cache.open([1] * 2500 + [2, 3]).cached == 2500
    cache.check()
    assert cache.evict(10_000) == 2500


def test_what_moved_is_told_block_by_block() -> None:
    cache = bench(block_size=1)
    first, second = cache.open([1, 2, 3]), cache.open([1, 2, 4])
    cache.step(first)
    cache.step(second)
    moves = second.take_moves()
    assert [(index, new) for index, _, new in moves] == [(0, first.block_table[0]), (1, first.block_table[1])]
    assert second.take_moves() == ()


@pytest.mark.parametrize("children", [3, 4, 5, 6, 40])
@pytest.mark.parametrize("carry", ["ids", "pictures", "some"])
def test_a_hit_inside_a_page_is_found_among_children_that_carry_something(children: int, carry: str) -> None:
    """An index of many children knows what their tokens carry."""

    def extras(number: int) -> dict[str, Any]:
        if carry == "ids":
            return {"extra_ids": [7] * 5}
        plain = carry == "some" and number % 2
        return {} if plain else {"media": [{"digest": bytes([number]), "start": 3, "length": 1}]}

    cache = PrefixCache("radix", block_size=4, capacity=200, partial="copy")
    for number in range(children):
        request = cache.open([number, 2, 3, 4, 0], **extras(number))
        request.computed(5)
        request.close()
        cache.check()
    for number in range(children):
        assert cache.probe([number, 2, 3, 9, 9], **extras(number)).cached == 3
        assert cache.probe([number, 2, 3, 4, 9], **extras(number)).cached == 4
    assert cache.probe([0, 2, 3, 4, 9], extra_ids=[8] * 5).cached == 0
    while cache.evict(1):
        cache.check()


def test_a_child_that_carries_something_joins_many_that_carry_nothing() -> None:
    cache = PrefixCache("radix", block_size=4, capacity=200, partial="copy")
    picture = [{"digest": b"p", "start": 2, "length": 1}]

    def put(tokens: list[int], **extras: Any) -> None:
        request = cache.open(tokens, **extras)
        request.copied()
        request.computed(len(tokens))
        request.close()
        cache.check()

    for number in range(8):
        put([number, 2, 3, 4, 0])
    put([3, 2, 3, 4, 0], media=picture)
    put([9, 2, 3, 4, 0], media=picture)
    assert cache.probe([9, 2, 3, 7, 7], media=picture).cached == 3
    assert cache.probe([3, 2, 3, 7, 7], media=picture).cached == 3
    assert cache.probe([3, 2, 3, 7, 7]).cached == 3
    assert cache.probe([9, 2, 3, 7, 7]).cached == 2, "up to the picture"
    while cache.evict(1):
        cache.check()
