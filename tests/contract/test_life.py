"""Contract, the life of a request: each transition, each misuse, each refusal."""

from __future__ import annotations

import pytest

from prefixcache import NoSpace, PrefixCache, RequestError
from tests.contract.bench import Bench


def test_a_probe_changes_nothing(bench: Bench) -> None:
    bench.run([1, 2, 3, 4])
    bench.run([5, 6, 7, 8])
    bench.cache.take_events()
    before = bench.books(), bench.cache.stats()
    for _ in range(3):
        assert bench.found([1, 2, 3, 4]) == 4
    assert (bench.books(), bench.cache.stats()) == before
    assert bench.cache.take_events()[2] == []
    bench.cache.evict(1)
    assert (bench.found([1, 2, 3, 4]), bench.found([5, 6, 7, 8])) == (0, 4), "not even recency"


def test_a_probe_says_what_admission_would_draw(bench: Bench) -> None:
    assert bench.cache.probe(range(1, 10)).need == 3
    bench.run(range(1, 9))
    hit = bench.cache.probe([*range(1, 9), 9, 10, 11, 12, 13])
    assert (hit.cached, hit.need) == (8, 4), "two new blocks and the two matched idle ones"
    holder = bench.open([*range(1, 9), 50])
    assert bench.cache.probe([*range(1, 9), 9, 10, 11, 12, 13]).need == 2, "matched, but pinned already"
    holder.abort()


def test_a_probe_says_why_it_found_no_more(bench: Bench) -> None:
    assert bench.cache.probe([1, 2, 3, 4, 5]).reason == "not found"
    bench.run([1, 2, 3, 4, 5, 6, 7, 8])
    assert bench.cache.probe([1, 2, 3, 4, 9]).reason == "complete"
    assert bench.cache.probe([]).reason == "empty"
    assert bench.cache.probe([1, 2, 3, 4], media=[{"digest": b"cat"}]).reason.startswith("uncacheable")


def test_open_matches_pins_and_allocates(bench: Bench) -> None:
    bench.run(range(1, 9))
    assert bench.books() == (14, 2, 0, 0)
    request = bench.open([*range(1, 9), 9, 10])
    assert request.cached == 8
    assert request.computed_tokens == 8
    assert bench.books() == (13, 0, 3, 0)
    assert len(set(request.block_table.tolist())) == len(request.block_table) == 3


def test_a_refused_open_leaves_no_trace(make) -> None:
    bench = make(capacity=4)
    bench.run([1, 2, 3, 4])
    bench.run([5, 6, 7, 8])
    running = bench.step(bench.open([31, 32, 33, 34, 35]))
    bench.cache.take_events()
    before = bench.books(), bench.cache.stats()
    assert before[0] == (0, 2, 2, 0)
    for _ in range(3):
        with pytest.raises(NoSpace) as refusal:
            bench.open([1, 2, 3, 4, *range(41, 49)])
        assert (refusal.value.need, refusal.value.available) == (3, 2)
    assert (bench.books(), bench.cache.stats()) == before
    assert bench.cache.take_events()[2] == []
    bench.verify(running)
    assert bench.cache.evict(1) == 1
    assert (bench.found([1, 2, 3, 4]), bench.found([5, 6, 7, 8])) == (0, 4), "no pin and no recency"


def test_matched_blocks_are_out_of_reach_before_anything_is_evicted_for_the_same_request(make) -> None:
    bench = make(capacity=2)
    bench.run(range(1, 9))
    request = bench.step(bench.open([1, 2, 3, 4, 50, 60]))
    assert request.cached == 4
    request.close()
    assert bench.found(range(1, 9)) == 4


def test_computed_is_absolute_and_never_goes_backwards(bench: Bench) -> None:
    request = bench.open(range(1, 10))
    bench.step(request, 4)
    bench.step(request, 4)
    assert request.computed_tokens == 4
    with pytest.raises(RequestError):
        request.computed(3)
    with pytest.raises(RequestError):
        request.computed(10)
    assert request.computed_tokens == 4
    bench.step(request)
    assert request.computed_tokens == 9


def test_append_makes_tokens_without_kv_and_takes_blocks_when_needed(bench: Bench) -> None:
    request = bench.step(bench.open([1, 2, 3]))
    request.append(4)
    assert (request.length, request.computed_tokens, len(request.block_table)) == (4, 3, 1)
    request.append([5, 6])
    assert (request.length, request.computed_tokens, len(request.block_table)) == (6, 3, 2)
    assert list(request.tokens) == [1, 2, 3, 4, 5, 6]
    assert request.prompt_length == 3
    bench.step(request)
    assert bench.found([1, 2, 3, 4]) == 4


def test_a_refused_append_leaves_no_trace(make) -> None:
    bench = make(capacity=2)
    request = bench.step(bench.open([1, 2, 3, 4]))
    other = bench.open([9])
    before = bench.books(), bench.cache.stats(), request.block_table.tolist()
    with pytest.raises(NoSpace):
        request.append([5, 6])
    assert (bench.books(), bench.cache.stats(), request.block_table.tolist()) == before
    assert (request.length, list(request.tokens)) == (4, [1, 2, 3, 4])
    other.abort()
    request.append([5, 6])
    assert request.length == 6


def test_an_append_may_evict(make) -> None:
    bench = make(capacity=2)
    bench.run([9, 9, 9, 9])
    request = bench.step(bench.open([1, 2, 3, 4]))
    request.append(5)
    bench.step(request)
    assert bench.found([9, 9, 9, 9]) == 0
    assert bench.books() == (0, 0, 2, 0)


def test_a_fork_shares_all_full_blocks_and_copies_what_it_must(bench: Bench) -> None:
    request = bench.step(bench.open(range(1, 7)))
    sample = request.fork()
    assert list(sample.tokens) == list(request.tokens)
    assert sample.block_table[0] == request.block_table[0]
    assert sample.block_table[1] != request.block_table[1]
    (copy,) = sample.copies
    assert (copy.source, copy.target, copy.tokens) == (request.block_table[1], sample.block_table[1], 2)
    bench.oracle.copy(sample.copies)
    sample.copied()
    assert sample.copies == ()
    request.append(7)
    sample.append(8)
    bench.step(request)
    bench.step(sample)
    bench.verify(request)
    sample.close()
    bench.verify(request)
    request.close()
    bench.drain()


def test_a_fork_without_room_is_refused_without_a_trace(make) -> None:
    bench = make(capacity=2)
    request = bench.step(bench.open(range(1, 7)))
    before = bench.books(), bench.cache.stats(), request.block_table.tolist()
    with pytest.raises(NoSpace):
        request.fork()
    assert (bench.books(), bench.cache.stats(), request.block_table.tolist()) == before
    request.rewind(4)
    assert request.fork().block_table.tolist() == request.block_table.tolist(), "full blocks need no room"


def test_a_rewind_forgets_tokens_and_keeps_published_blocks(bench: Bench) -> None:
    request = bench.step(bench.open(range(1, 13)))
    request.rewind(8)
    assert (request.length, request.computed_tokens, len(request.block_table)) == (8, 8, 2)
    assert bench.found(range(1, 13)) == 12
    request.append([50, 51, 52, 53])
    bench.step(request)
    assert bench.found([*range(1, 9), 50, 51, 52, 53]) == 12
    assert bench.found(range(1, 13)) == 12, "the forgotten block lives on"
    request.close()
    bench.drain()


def test_a_rewind_inside_a_published_block_takes_a_private_copy(bench: Bench) -> None:
    request = bench.step(bench.open(range(1, 9)))
    table = request.block_table.tolist()
    request.rewind(6)
    (copy,) = request.copies
    assert (copy.source, copy.tokens) == (table[1], 2)
    assert copy.target == request.block_table[1] != table[1]
    request.append([70, 80])
    bench.step(request)
    assert bench.found([1, 2, 3, 4, 5, 6, 70, 80]) == 8
    assert bench.found(range(1, 9)) == 8
    reader = bench.step(bench.open([*range(1, 9), 9]))
    assert reader.cached == 8
    bench.verify(request)


def test_a_rewind_without_room_for_its_copy_is_refused_without_a_trace(make) -> None:
    bench = make(capacity=2)
    request = bench.step(bench.open(range(1, 9)))
    before = bench.books(), request.block_table.tolist()
    with pytest.raises(NoSpace):
        request.rewind(6)
    assert (bench.books(), request.block_table.tolist()) == before
    assert (request.length, request.computed_tokens, request.copies) == (8, 8, ())
    request.rewind(4)
    assert bench.books() == (0, 1, 1, 0)


@pytest.mark.parametrize("length", [-1, 9])
def test_a_rewind_goes_back_and_only_back(bench: Bench, length: int) -> None:
    request = bench.step(bench.open(range(1, 9)))
    with pytest.raises(RequestError):
        request.rewind(length)
    assert request.length == 8


@pytest.mark.parametrize("how", ["close", "abort", "preempt"])
def test_the_release_path_is_idempotent(bench: Bench, how: str) -> None:
    request = bench.step(bench.open(range(1, 9)))
    getattr(request, how)()
    books = bench.books()
    assert books == (14, 2, 0, 0)
    getattr(request, how)()
    request.close()
    request.abort()
    assert bench.books() == books
    bench.cache.check()


@pytest.mark.parametrize("how", ["close", "abort", "preempt"])
def test_what_was_computed_stays_findable(bench: Bench, how: str) -> None:
    request = bench.open(range(1, 13))
    bench.step(request, 7)
    getattr(request, how)()
    assert bench.found(range(1, 13)) == bench.tail(7)
    assert bench.books() == (
        16 - (2 if bench.setup.stores_tails else 1),
        2 if bench.setup.stores_tails else 1,
        0,
        0,
    )


@pytest.mark.parametrize("how", ["close", "abort"])
def test_an_ended_request_allows_no_further_call(bench: Bench, how: str) -> None:
    request = bench.step(bench.open([1, 2, 3, 4, 5]))
    state = request.state
    getattr(request, how)()
    assert request.state != state
    for call in (
        lambda: request.append(6),
        lambda: request.computed(5),
        lambda: request.rewind(2),
        lambda: request.fork(),
        lambda: request.reserve(9),
        lambda: request.resume(),
    ):
        with pytest.raises(RequestError):
            call()
    bench.cache.check()


def test_preempt_keeps_the_tokens_and_resume_opens_them_again(bench: Bench) -> None:
    request = bench.step(bench.open([1, 2, 3, 4]))
    for token in (5, 6, 7, 8, 9):
        request.append(token)
        bench.step(request)
    request.preempt()
    assert bench.cache.books().pinned == 0
    again = request.resume()
    assert list(again.tokens) == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert again.cached == 8
    bench.step(again)
    assert bench.cache.books().pinned == 3


def test_resume_may_append(bench: Bench) -> None:
    request = bench.step(bench.open([1, 2, 3, 4]))
    request.preempt()
    assert list(request.resume(append=[5, 6]).tokens) == [1, 2, 3, 4, 5, 6]


def test_resume_brings_the_token_that_a_refused_append_still_owes(make) -> None:
    bench = make(capacity=2)
    request, other = bench.step(bench.open([1, 2, 3, 4])), bench.open([9])
    with pytest.raises(NoSpace):
        request.append(5)
    request.preempt()
    other.abort()
    again = bench.step(request.resume())
    assert list(again.tokens) == [1, 2, 3, 4, 5]
    assert again.cached == 4


def test_a_refused_resume_leaves_no_trace_and_can_be_tried_again(make) -> None:
    bench = make(capacity=2)
    request = bench.step(bench.open(range(1, 9)))
    request.preempt()
    other = bench.open([9, 9, 9, 9, 9])
    before = bench.books(), bench.cache.stats()
    with pytest.raises(NoSpace):
        request.resume()
    assert (bench.books(), bench.cache.stats()) == before
    other.abort()
    assert bench.step(request.resume()).length == 8


def test_preempted_requests_are_counted_once(bench: Bench) -> None:
    bench.run(range(1, 9))
    request = bench.step(bench.open([*range(1, 9), 9]))
    counted = bench.cache.stats()
    request.preempt()
    request.resume()
    after = bench.cache.stats()
    assert (after.queries, after.hits) == (counted.queries, counted.hits)
    assert (after.prompt_tokens, after.cached_tokens) == (counted.prompt_tokens, counted.cached_tokens)


def test_reserve_makes_room_for_fewer_tokens_now_and_more_later(bench: Bench) -> None:
    request = bench.open(range(1, 13), reserve=4)
    assert (len(request.block_table), request.length) == (1, 12)
    assert bench.books() == (15, 0, 1, 0)
    bench.step(request, 4)
    request.reserve(9)
    assert len(request.block_table) == 3
    bench.step(request, 12)
    request.close()


def test_reserve_is_absolute_with_the_hit_included(bench: Bench) -> None:
    bench.run(range(1, 9))
    request = bench.open(range(1, 17), reserve=12)
    assert request.cached == 8
    assert len(request.block_table) == 3


def test_reserve_without_room_is_refused_without_a_trace(make) -> None:
    bench = make(capacity=2)
    request = bench.open(range(1, 13), reserve=4)
    before = bench.books(), request.block_table.tolist()
    with pytest.raises(NoSpace):
        request.reserve(12)
    assert (bench.books(), request.block_table.tolist()) == before


@pytest.mark.parametrize("partial", ["copy", "take"])
@pytest.mark.parametrize("design", ["radix", "block_trie", "digest_chain"])
def test_a_hit_inside_a_block_beyond_what_is_reserved_never_causes_a_refusal(design: str, partial: str) -> None:
    cache = PrefixCache(design, block_size=4, capacity=2, partial=partial)
    cache.open([1, 2, 3, 4]).computed(4)
    cache.open([9])
    ask = {"tokens": [1, 2, 8, 8, 8], "reserve": 0}
    assert [(plan.fits, plan.cached, plan.need) for plan in cache.plan([ask])] == [(True, 0, 0)]
    request = cache.open(**ask)
    assert (request.cached, len(request.block_table), request.copies) == (0, 0, ())


@pytest.mark.parametrize("partial", ["copy", "take"])
def test_nor_where_the_rest_of_the_batch_takes_all_room(partial: str) -> None:
    cache = PrefixCache("block_trie", block_size=4, capacity=2, partial=partial)
    first = cache.open([1, 2, 3, 4])
    first.computed(4)
    first.close()
    big, small = cache.open_batch([{"tokens": range(10, 18)}, {"tokens": [1, 2, 8, 8, 8], "reserve": 0}])
    assert (len(big.block_table), small.cached, len(small.block_table)) == (2, 0, 0)


def test_must_fit_refuses_what_could_not_be_finished(make) -> None:
    bench = make(capacity=2)
    with pytest.raises(NoSpace):
        bench.open(range(1, 13), reserve=4, must_fit=True)
    assert bench.books() == (2, 0, 0, 0)
    assert len(bench.open(range(1, 9), reserve=4, must_fit=True).block_table) == 1


def test_open_batch_admits_in_order_and_refuses_what_no_longer_fits(make) -> None:
    bench = make(capacity=3)
    first, second, third = bench.cache.open_batch(
        [{"tokens": [1, 2, 3, 4, 5]}, {"tokens": [6, 7, 8, 9, 10]}, {"tokens": [11, 12]}]
    )
    assert isinstance(second, NoSpace)
    assert (len(first.block_table), len(third.block_table)) == (2, 1)
    assert bench.books() == (0, 0, 3, 0)


def test_nothing_matched_by_a_batch_is_evicted_for_another_request_of_it(make) -> None:
    bench = make(capacity=3)
    bench.run([1, 2, 3, 4])  # the oldest: the first to go
    bench.run([5, 6, 7, 8])
    bench.run([9, 10, 11, 12])
    first, second = bench.cache.open_batch([{"tokens": [21]}, {"tokens": [1, 2, 3, 4, 5]}])
    assert (first.cached, second.cached) == (0, 4)
    assert bench.found([5, 6, 7, 8]) == bench.found([9, 10, 11, 12]) == 0
    bench.step(second)


def test_the_result_of_a_batch_is_that_of_the_batch_without_the_refused(make) -> None:
    def prepared() -> Bench:
        bench = make(capacity=4)
        for start in (1, 5, 9, 13):
            bench.run(range(start, start + 4))
        return bench

    good = [{"tokens": [21, 22]}, {"tokens": [1, 2, 3, 4, 50]}]
    hopeless = {"tokens": [*range(5, 9), *range(100, 130)]}
    with_it, without = prepared(), prepared()
    mixed = with_it.cache.open_batch([good[0], hopeless, good[1]])
    clean = without.cache.open_batch(good)
    assert isinstance(mixed[1], NoSpace)
    assert [request.cached for request in (mixed[0], mixed[2])] == [request.cached for request in clean]
    assert with_it.books() == without.books()
    for start in (1, 5, 9, 13):
        assert with_it.found(range(start, start + 4)) == without.found(range(start, start + 4))
