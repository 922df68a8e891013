"""Contract, two rules at once: what random histories have shown to go wrong, each as its shortest history."""

from __future__ import annotations

import pytest

from prefixcache import NoSpace, RequestError
from tests.contract.bench import Bench


def test_admission_may_evict_all_that_lies_beside_it(make) -> None:
    bench = make(capacity=2)
    bench.run([1, 1, 1, 1])
    request = bench.step(bench.open([2, 2, 2, 2, 2]))  # the last cached block makes room for it
    assert bench.found([2, 2, 2, 2]) == 4
    request.close()
    assert bench.found([2, 2, 2, 2]) == 4
    bench.drain()


@pytest.mark.parametrize("why", ["store=False", "old weights"])
def test_a_copy_out_of_an_unpublished_block_is_waited_for_too(bench: Bench, why: str) -> None:
    request = bench.open([1, 2, 3, 4, 5, 6], store=why != "store=False")
    if why == "old weights":
        bench.cache.new_generation()
    bench.step(request)
    sample = request.fork()
    assert sample.copies[0].source == request.block_table[1]
    request.append(7)
    with pytest.raises(RequestError):
        request.computed(7)


@pytest.mark.parametrize("why", ["store=False", "old weights"])
def test_a_rewind_inside_a_block_shared_with_a_fork_takes_a_private_copy(bench: Bench, why: str) -> None:
    request = bench.open(range(1, 9), store=why != "store=False")
    if why == "old weights":
        bench.cache.new_generation()
    bench.step(request)
    sample = request.fork()
    sample.rewind(6)
    sample.append([70, 80])
    bench.step(sample)
    bench.verify(request)
    sample.close()
    request.close()
    bench.drain()


def test_a_rewind_counts_only_blocks_that_become_free(make) -> None:
    bench = make(capacity=4)
    request = bench.step(bench.open(range(1, 11)))
    sample = request.fork()  # the partial tail of the request is the source of its copy
    assert bench.books() == (0, 0, 4, 0)
    with pytest.raises(NoSpace):
        request.rewind(6)
    bench.cache.check()
    assert (request.length, request.computed_tokens, len(request.block_table)) == (10, 10, 3)
    bench.step(sample)


def test_a_rewind_of_what_is_not_computed_copies_nothing(make) -> None:
    bench = make(capacity=3)
    request = bench.step(bench.open(range(1, 7)))
    sample = request.fork()  # copies the computed half of the second block
    request.append([7, 8])
    request.rewind(7)
    assert request.copies == ()
    bench.oracle.copy(sample.copies)
    sample.copied()
    bench.step(request)
    bench.step(sample)


@pytest.mark.parametrize("length", [5, 9, 11])
def test_a_rewind_may_end_behind_the_room_that_was_reserved(bench: Bench, length: int) -> None:
    request = bench.open(range(1, 13), reserve=4)
    request.rewind(length)
    assert (request.length, request.computed_tokens, request.copies) == (length, 0, ())
    request.reserve(length)
    bench.step(request).close()
    assert bench.found(range(1, 13)) == bench.tail(length)
    bench.drain()


@pytest.mark.parametrize("in_flight", [False, True])
@pytest.mark.parametrize("how", ["close", "abort", "preempt"])
def test_an_end_before_the_copy_of_a_rewind_keeps_the_path_whole(bench: Bench, how: str, in_flight: bool) -> None:
    request = bench.step(bench.open(range(1, 13)))
    request.rewind(6)
    bench.cache.check()
    getattr(request, how)(in_flight=in_flight)
    bench.cache.check()
    request.settled()
    bench.cache.check()
    for left in (8, 4, 0):
        assert bench.cache.evict(1) == 1
        bench.cache.check()
        assert bench.found(range(1, 13)) == left, "still the tail before the head"
    bench.drain()


def test_a_block_written_by_work_in_flight_waits_though_a_fork_copies_from_it(make) -> None:
    bench = make(capacity=3)
    request = bench.step(bench.open(range(1, 7)))
    sample = request.fork()
    request.append(7)
    tail = request.block_table[1]
    request.abort(in_flight=True)  # its step may still write position 6, in its tail
    bench.oracle.copy(sample.copies)
    sample.copied()
    assert bench.cache.books().quarantined == 1
    with pytest.raises(NoSpace):
        bench.open([9])
    request.settled()
    assert bench.open([9]).block_table.tolist() == [tail]


def test_a_rewind_forgets_the_token_that_a_refused_append_owes(make) -> None:
    bench = make(capacity=2)
    request, other = bench.step(bench.open([1, 2, 3, 4], store=False)), bench.open([9])
    with pytest.raises(NoSpace):
        request.append(5)
    request.rewind(2)
    request.preempt()
    other.abort()
    assert list(request.resume().tokens) == [1, 2]


def test_a_resume_before_the_work_in_flight_settled_loses_no_block(bench: Bench) -> None:
    request = bench.open(range(1, 10))
    bench.step(request, 6)
    request.preempt(in_flight=True)
    try:
        again = request.resume()
    except RequestError:  # it may have to wait
        request.settled()
        again = request.resume()
    again.preempt(in_flight=True)
    bench.cache.check()
    request.settled()
    again.settled()
    bench.cache.check()
    assert bench.cache.books().quarantined == bench.cache.books().pinned == 0
    bench.drain()


@pytest.mark.parametrize("option", [{"store": False}, {"media": [{"digest": b"cat"}]}], ids=["store", "media"])
def test_what_may_not_be_stored_is_not_stored_through_a_fork_or_a_resume(bench: Bench, option) -> None:
    request = bench.open(range(1, 10), **option)
    request.computed(9)
    sample = request.fork()
    sample.copied()
    sample.computed(9)
    for sequence in (request, sample):
        sequence.preempt()
        again = sequence.resume()
        again.computed(9)
        again.close()
    assert bench.found(range(1, 9)) == 0
    assert bench.books() == (16, 0, 0, 0)


@pytest.mark.parametrize("option", [{"read": False}, {"media": [{"digest": b"cat"}]}], ids=["read", "media"])
def test_what_may_not_be_read_is_not_read_through_a_fork_or_a_resume(bench: Bench, option) -> None:
    bench.run(range(1, 10))
    request = bench.open(range(1, 10), **option)
    sample = request.fork()
    for sequence in (request, sample):
        sequence.preempt()
        assert sequence.resume().cached == 0


def test_a_weak_hash_hands_out_no_other_prompts_block_and_loses_none(make, design: str) -> None:
    if design == "hash_chain":
        bench = make(hash=lambda message: 7)
        bench.run([1, 2, 3, 4, 5])
        assert bench.found([9, 8, 7, 6]) == 0
        assert bench.found([1, 2, 3, 4]) == 4
        bench.run([9, 8, 7, 6, 5, 4, 3, 2, 1])
        bench.run([1, 2, 3, 4, 5, 6, 7, 8, 9])
        assert bench.found([1, 2, 3, 4]) in (0, 4)
        assert bench.found([9, 8, 7, 6]) in (0, 4)
        bench.drain()


def test_a_capacity_without_bound_costs_nothing(make) -> None:
    bench = make(capacity=2**31 - 1)
    bench.run(range(1, 9))
    assert bench.books() == (2**31 - 3, 2, 0, 0)


def test_nothing_recurses_over_a_path(make) -> None:
    bench = make(block_size=1, capacity=1400)
    for end in (500, 1000, 1200):
        bench.run(range(end))
    request = bench.step(bench.open([*range(1200), 7]))
    assert request.cached == 1200
    request.rewind(600)
    request.fork().abort()
    request.close()
    bench.cache.new_generation()
    bench.drain()


def test_blocks_of_a_live_table_are_pinned_though_a_fork_ended_in_flight(bench: Bench) -> None:
    request = bench.open(range(1, 15), store=False)
    bench.step(request)
    sample = request.fork()  # shares three blocks, has yet to copy the fourth
    assert bench.books() == (11, 0, 5, 0)
    sample.abort(in_flight=True)
    assert bench.books() == (11, 0, 4, 1), "only what its step may still write is in quarantine"
    sample.settled()
    assert bench.books() == (12, 0, 4, 0)
