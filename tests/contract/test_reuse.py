"""Contract, how much of a prompt is reused: at most n-1, down to the grain, never before it is computed."""

from __future__ import annotations

import pytest

from tests.contract.bench import FRESH, Bench
from tests.registration import DESIGNS


@pytest.mark.parametrize("block_size", [1, 2, 4])
@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 7, 8, 9, 12])
def test_at_least_one_token_is_computed(make, block_size: int, length: int) -> None:
    bench = make(block_size=block_size)
    tokens = list(range(1, length + 1))
    bench.run(tokens)
    expected = bench.floor(length - 1)
    if bench.setup.partial:
        expected = min(expected, bench.tail(length))
    assert bench.cache.probe(tokens).cached == expected
    request = bench.open(tokens)
    assert request.cached == expected
    bench.step(request)


@pytest.mark.parametrize("block_size", [1, 2, 4])
@pytest.mark.parametrize("shared", [0, 1, 2, 3, 4, 5, 6, 7, 8])
def test_a_hit_is_rounded_down_to_the_grain(make, block_size: int, shared: int) -> None:
    bench = make(block_size=block_size)
    bench.run([1, 2, 3, 4, 5, 6, 7, 8])
    prompt = [*[1, 2, 3, 4, 5, 6, 7, 8][:shared], FRESH, FRESH]
    assert bench.cache.probe(prompt).cached == bench.floor(shared)
    request = bench.step(bench.open(prompt))
    assert request.cached == bench.floor(shared)


def test_a_block_is_reusable_only_behind_its_own_parent(bench: Bench) -> None:
    bench.run([1, 2, 3, 4, 5, 6, 7, 8])
    bench.run([9, 9, 9, 9, 9])
    assert bench.found([5, 6, 7, 8]) == 0
    assert bench.found([9, 9, 9, 9, 5, 6, 7, 8]) == 4


def test_nothing_is_findable_before_it_is_computed(bench: Bench) -> None:
    first, second = bench.open([1, 2, 3, 4, 5]), bench.open([1, 2, 3, 4, 5])
    assert (first.cached, second.cached) == (0, 0)
    assert bench.found([1, 2, 3, 4]) == 0
    bench.step(first)
    assert bench.found([1, 2, 3, 4]) == 4
    second.abort()
    first.close()


def test_full_blocks_are_findable_at_once_and_only_what_was_computed(bench: Bench) -> None:
    request = bench.open(range(1, 13))
    for computed in (1, 4, 6, 8, 11):
        bench.step(request, computed)
        assert bench.found(range(1, 13)) >= computed - computed % 4
        assert bench.found(range(1, 13)) <= computed
    request.abort()
    assert bench.found(range(1, 13)) == bench.tail(11)


def test_the_last_sampled_token_has_no_kv_yet(bench: Bench) -> None:
    request = bench.step(bench.open([1, 2, 3]))
    request.append(4)
    request.close()
    assert bench.found([1, 2, 3, 4]) == bench.tail(3)
    assert bench.cache.books().idle == (1 if bench.setup.stores_tails else 0)
    longer = bench.step(bench.open([1, 2, 3]))
    longer.append(4)
    bench.step(longer)
    longer.append(5)
    longer.close()
    assert bench.found([1, 2, 3, 4]) == 4


def test_every_computed_position_may_be_published(bench: Bench) -> None:
    request = bench.step(bench.open([1, 2, 3, 4]))
    assert bench.found([1, 2, 3, 4]) == 4
    request.append([5, 6, 7, 8])
    bench.step(request)
    assert bench.found(range(1, 9)) == 8


def test_an_aborted_request_leaves_nothing_that_was_not_computed(bench: Bench) -> None:
    bench.open([1, 2, 3, 4, 5]).abort()
    assert bench.books() == (16, 0, 0, 0)
    assert bench.found([1, 2, 3, 4]) == 0


def test_read_false_bypasses_the_index(bench: Bench) -> None:
    bench.run(range(1, 10))
    before = bench.cache.stats()
    request = bench.open(range(1, 10), read=False)
    assert request.cached == 0
    assert bench.cache.stats().hits == before.hits
    bench.step(request).close()
    assert bench.found(range(1, 9)) == 8
    assert bench.cache.books().idle == 2 + bench.setup.stores_tails, "what it computed was there already"


def test_store_false_publishes_nothing(bench: Bench) -> None:
    request = bench.step(bench.open(range(1, 10), store=False))
    assert bench.found(range(1, 9)) == 0
    request.close()
    assert bench.books() == (16, 0, 0, 0)
    bench.run(range(1, 10))
    reader = bench.step(bench.open([*range(1, 9), 7, 7, 7, 7, 7], store=False))
    assert reader.cached == 8
    reader.close()
    assert bench.found([*range(1, 9), 7, 7, 7, 7]) == 8


def test_a_hit_never_needs_the_same_prompt_length(bench: Bench) -> None:
    bench.run(range(1, 9))
    assert bench.cache.probe(range(1, 100)).cached == 8
    assert bench.cache.probe([1, 2, 3, 4, 5]).cached == 4


def test_every_design_of_the_library_is_tested() -> None:
    from prefixcache.designs import BASELINES
    from prefixcache.designs import DESIGNS as registered

    assert set(DESIGNS) == set(registered) | set(BASELINES)
