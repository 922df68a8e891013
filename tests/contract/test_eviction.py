"""Contract, what leaves and in which order; reset and new weights."""

from __future__ import annotations

import pytest

from prefixcache import NoSpace
from tests.contract.bench import Bench


def test_evict_frees_as_many_blocks_as_asked_and_says_how_many(bench: Bench) -> None:
    bench.run(range(1, 13))
    assert bench.books() == (13, 3, 0, 0)
    assert bench.cache.evict(0) == 0
    assert bench.cache.evict(2) == 2
    assert bench.books() == (15, 1, 0, 0)
    assert bench.cache.evict(5) == 1
    assert bench.cache.evict(5) == 0
    assert bench.books() == (16, 0, 0, 0)


def test_the_tail_goes_before_the_head(bench: Bench) -> None:
    bench.run(range(1, 13))
    for left in (8, 4, 0):
        bench.cache.evict(1)
        assert bench.found(range(1, 13)) == left


def test_a_branch_goes_before_the_trunk(bench: Bench) -> None:
    bench.run([1, 2, 3, 4, 5, 6, 7, 8])
    bench.run([1, 2, 3, 4, 9, 9, 9, 9])
    bench.cache.evict(2)
    assert bench.found([1, 2, 3, 4]) == 4
    assert bench.cache.books().idle == 1


def test_the_least_recently_released_goes_first(bench: Bench) -> None:
    first, second = bench.step(bench.open([1, 2, 3, 4])), bench.step(bench.open([5, 6, 7, 8]))
    second.close()
    first.close()
    bench.cache.evict(1)
    assert (bench.found([5, 6, 7, 8]), bench.found([1, 2, 3, 4])) == (0, 4)


def test_a_hit_refreshes_the_whole_path_it_used(make) -> None:
    bench = make(capacity=4)
    bench.run(range(1, 9))
    bench.run([50, 51, 52, 53])
    bench.run([*range(1, 9), 9])
    bench.run([61, 62, 63, 64])
    bench.run([71, 72, 73, 74])
    assert bench.found(range(1, 9)) == 8
    assert bench.found([50, 51, 52, 53]) == 0


def test_what_a_hit_did_not_use_keeps_its_place(make) -> None:
    bench = make(capacity=4)
    bench.run(range(1, 9))
    bench.run([50, 51, 52, 53])
    bench.run([1, 2, 3, 4, 60])
    bench.cache.evict(1)
    assert bench.found(range(1, 9)) == 4, "the unmatched end of the path was the oldest"
    assert bench.found([50, 51, 52, 53]) == 4


def test_only_unpinned_blocks_are_evicted(make) -> None:
    bench = make(capacity=4)
    request = bench.step(bench.open(range(1, 9)))
    bench.run([50, 51, 52, 53])
    assert bench.cache.evict(4) == 1
    with pytest.raises(NoSpace):
        bench.open(range(60, 72))
    bench.verify(request)
    assert bench.found(range(1, 9)) == 8


def test_a_pin_protects_the_path_above_it(make) -> None:
    bench = make(capacity=4)
    bench.run(range(1, 9))
    request = bench.open([*range(1, 9), 9])
    assert bench.cache.evict(4) == 0
    request.abort()
    assert bench.cache.evict(4) == 2


def test_an_empty_block_is_preferred_to_an_eviction(make) -> None:
    bench = make(capacity=4)
    bench.run([1, 2, 3, 4])
    bench.open(range(50, 62))
    assert bench.found([1, 2, 3, 4]) == 4
    assert bench.books() == (0, 1, 3, 0)


def test_no_more_is_evicted_than_is_needed(make) -> None:
    bench = make(capacity=4)
    bench.run(range(1, 17))
    bench.open([50, 51, 52, 53, 54])
    assert bench.found(range(1, 17)) == 8


def test_a_reset_empties_an_unused_cache(bench: Bench) -> None:
    bench.run(range(1, 13))
    assert bench.cache.reset() is True
    assert bench.books() == (16, 0, 0, 0)
    assert bench.found(range(1, 13)) == 0
    assert bench.run(range(1, 13)) == 0
    assert bench.found(range(1, 13)) == 12


def test_a_reset_under_a_running_request_changes_nothing_and_says_so(bench: Bench) -> None:
    bench.run(range(1, 13))
    request = bench.step(bench.open([*range(1, 9), 50]))
    bench.cache.take_events()
    before = bench.books(), bench.cache.stats()
    assert bench.cache.reset() is False
    assert (bench.books(), bench.cache.stats()) == before
    assert bench.found(range(1, 13)) == 12
    assert bench.cache.take_events()[2] == []
    bench.verify(request)
    request.close()
    assert bench.cache.reset() is True


def test_new_weights_make_older_blocks_unreachable_at_once_and_the_first_to_go(make) -> None:
    bench = make(capacity=4)
    bench.run(range(1, 9))
    generation = bench.cache.new_generation()
    assert bench.found(range(1, 9)) == 0
    assert bench.books() == (2, 2, 0, 0)
    bench.run([1, 2, 3, 4])
    bench.run([50, 51, 52, 53])
    assert bench.books() == (0, 4, 0, 0)
    bench.cache.evict(2)
    assert (bench.found([1, 2, 3, 4]), bench.found([50, 51, 52, 53])) == (4, 4)
    assert bench.cache.new_generation() == generation + 1


def test_requests_opened_before_new_weights_stop_publishing(bench: Bench) -> None:
    request = bench.open(range(1, 13))
    bench.step(request, 4)
    bench.cache.new_generation()
    bench.step(request, 12)
    bench.verify(request)
    assert bench.found(range(1, 13)) == 0
    fresh = bench.open(range(1, 13))
    assert fresh.cached == 0
    bench.step(fresh)
    bench.verify(request)
    request.close()
    assert bench.found(range(1, 13)) == 12
    fresh.close()
    bench.drain()


def test_a_preempted_request_resumes_under_the_new_weights(bench: Bench) -> None:
    request = bench.step(bench.open(range(1, 10)))
    request.preempt()
    bench.cache.new_generation()
    again = request.resume()
    assert again.cached == 0
    bench.step(again).close()
    assert bench.found(range(1, 9)) == 8


@pytest.mark.parametrize("block_size", [1, 2, 4, 16])
def test_everything_is_free_after_closing_and_evicting_all(make, block_size: int) -> None:
    bench = make(block_size=block_size, capacity=64)
    requests = [bench.step(bench.open([7, 7, start, *range(12)])) for start in range(4)]
    for request in requests:
        request.close()
    bench.drain()
