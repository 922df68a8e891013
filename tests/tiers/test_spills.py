"""What leaves the device and is copied below, in small exact examples, told by every design."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from prefixcache import Moved, Removed, Request, RequestError, Stored
from tests.tiers.bench import INSIDE, LOAD, SPILL, TieredBench, ways


def test_a_spill_ahead_of_need_holds_its_blocks_back_until_it_is_copied(bench: TieredBench) -> None:
    bench.run(range(1, 9))
    bench.cache.evict(6)
    assert (bench.books(), bench.host(), bench.where(range(1, 9))) == ((6, 0, 0, 0), (2, 2, 0, 0), (0, 0))
    spills = bench.cache.spill()
    assert ways(spills.copies) == [SPILL] * 2
    assert (bench.books(), bench.host(), bench.where(range(1, 9))) == ((4, 0, 0, 2), (2, 0, 0, 2), (0, 0))
    assert not bench.cache.reset(), "nobody knows what would be written"
    bench.oracle.copy(spills.copies)
    for _ in range(2):
        spills.copied()
        spills.abort()
        assert spills.copies == ()
        assert (bench.books(), bench.host(), bench.where(range(1, 9))) == ((6, 0, 0, 0), (2, 2, 0, 0), (0, 8))
    bench.cache.check()
    assert bench.cache.reset() and bench.where(range(1, 9)) == (0, 0) and bench.host() == (4, 0, 0, 0)


def test_a_spill_that_is_given_up_leaves_nothing(bench: TieredBench) -> None:
    bench.run(range(1, 9))
    bench.cache.evict(6)
    bench.events()
    spills = bench.cache.spill()
    for _ in range(2):
        spills.abort()
        spills.copied()
        assert (bench.books(), bench.host(), bench.where(range(1, 9))) == ((6, 0, 0, 0), (4, 0, 0, 0), (0, 0))
    assert sum(len(event.keys) for event in bench.events() if isinstance(event, Removed)) == 2
    assert bench.cache.stats().spilled_blocks == 0
    bench.cache.check()


def test_nothing_waits_nothing_is_spilled(bench: TieredBench) -> None:
    spills = bench.cache.spill()
    assert spills.copies == () and bench.cache.reset()
    spills.copied()


@pytest.mark.parametrize("how", ["close", "abort", "preempt"])
@pytest.mark.parametrize("in_flight", [False, True])
def test_a_request_that_ends_without_its_spills_leaves_nothing_of_them(
    make: Callable[..., TieredBench], how: str, in_flight: bool
) -> None:
    bench = make(capacity=2)
    bench.run(range(1, 9))
    request = bench.open([21, 22, 23])
    assert (ways(request.copies), bench.host()) == ([SPILL], (3, 0, 0, 1))
    getattr(request, how)(in_flight=in_flight)
    assert bench.host() == ((3, 0, 0, 1) if in_flight else (4, 0, 0, 0))
    assert bench.books() == ((0, 1, 0, 1) if in_flight else (1, 1, 0, 0))
    request.settled()
    bench.cache.check()
    assert (bench.where(range(1, 9)), bench.books(), bench.host()) == ((4, 0), (1, 1, 0, 0), (4, 0, 0, 0))


def test_nothing_is_computed_or_forked_before_the_spills_are_made(make: Callable[..., TieredBench]) -> None:
    bench = make(capacity=2)
    bench.run(range(1, 9))
    request = bench.open([21, 22, 23])
    with pytest.raises(RequestError, match="1 copies are pending"):
        request.computed(3)
    with pytest.raises(RequestError, match="copies are pending"):
        request.fork()
    bench.step(request)
    assert bench.where(range(1, 9)) == (4, 4)


def test_what_a_request_has_computed_stays_when_it_ends_without_its_spills(make: Callable[..., TieredBench]) -> None:
    bench = make(capacity=3)
    bench.run(range(21, 25))
    request = bench.step(bench.open(range(1, 7)))
    request.append([7, 8, 9])
    assert ways(request.copies) == [SPILL]
    request.close()
    assert bench.where(range(1, 7)) == (bench.tail(6), 0)


def test_a_rewind_calls_off_the_spills_of_the_blocks_that_it_gives_back(make: Callable[..., TieredBench]) -> None:
    bench = make(capacity=2)
    bench.lower(range(51, 55))  # so that a slot and a block have other numbers
    bench.run(range(21, 25))
    request = bench.step(bench.open([1, 2, 3, 4]))
    request.append([5, 6])
    (spill,) = request.copies
    assert spill.source != spill.target
    request.rewind(4)
    assert (request.copies, bench.host(), bench.where(range(21, 25))) == ((), (3, 1, 0, 0), (0, 0))
    bench.cache.check()
    request.append([7])
    bench.step(request).close()


def test_an_open_spills_before_it_loads(make: Callable[..., TieredBench]) -> None:
    bench = make(capacity=3)
    bench.lower(range(1, 9))
    bench.run(range(21, 29))
    request = bench.open([*range(1, 9), 9])
    assert ways(request.copies) == [SPILL, SPILL, LOAD, LOAD]
    sources = {copy.source for copy in request.copies[:2]}
    assert sources <= set(request.block_table.tolist()), "it is given the very blocks"
    bench.step(request).close()
    assert (bench.where(range(1, 9)), bench.where(range(21, 29))) == ((8, 0), (0, 8))


def _append(bench: TieredBench, request: Any) -> list[Request]:
    request.append([5, 6])
    return [request]


def _reserve(bench: TieredBench, request: Any) -> list[Request]:
    request.reserve(6)
    return [request]


def _fork(bench: TieredBench, request: Any) -> list[Request]:
    return [request.fork(), request]


@pytest.mark.parametrize(
    ("prompt", "grow", "then"),
    [
        ([1, 2, 3, 4], _append, [SPILL]),
        ([1, 2, 3, 4], _reserve, [SPILL]),
        ([1, 2, 3], _fork, [SPILL, INSIDE]),
    ],
)
def test_what_a_request_grows_into_it_spills_first(
    make: Callable[..., TieredBench], prompt: list[int], grow: Callable[..., list[Request]], then: list[tuple[str, str]]
) -> None:
    bench = make(capacity=2)
    bench.run(range(21, 25))
    request = bench.step(bench.open(prompt))
    assert bench.books() == (0, 1, 1, 0)
    grown = grow(bench, request)
    assert ways(grown[0].copies) == then
    for one in grown:
        bench.step(one)
        one.close()
    assert bench.where(range(21, 25)) == (0, 4)
    assert bench.run([21, 22, 23, 24, 25]) == 4


def test_a_rewind_into_a_stored_block_spills_before_it_copies(make: Callable[..., TieredBench]) -> None:
    bench = make(capacity=2)
    bench.run(range(21, 25))
    request = bench.step(bench.open([1, 2, 3, 4]))
    request.rewind(3)
    assert ways(request.copies) == [SPILL, INSIDE]
    assert request.copies[0].source == request.copies[1].target
    request.append(9)
    bench.step(request).close()
    assert bench.where(range(21, 25)) == (0, 4)


def test_a_full_tier_gives_up_its_least_recent_block(make: Callable[..., TieredBench]) -> None:
    bench = make(host=2)
    bench.lower([1, 2, 3, 4], [11, 12, 13, 14])
    bench.events()
    bench.lower([21, 22, 23, 24])
    assert [bench.where(range(n, n + 4)) for n in (1, 11, 21)] == [(0, 0), (0, 4), (0, 4)]
    events = bench.events()
    assert [type(event) for event in events] == [Stored, Removed, Moved]
    assert (events[2].keys, events[2].tier) == (events[0].keys, "host")


def test_a_parent_that_lies_nowhere_takes_along_what_lies_behind_it(make: Callable[..., TieredBench]) -> None:
    bench = make(host=1)
    bench.run(range(1, 9))
    bench.cache.evict(1)
    spills = bench.cache.spill()  # the only slot is being written
    bench.oracle.copy(spills.copies)
    bench.events()
    bench.cache.evict(1)
    assert bench.host() == (0, 0, 0, 1), "the slot is the copy's until that is over"
    assert sum(len(event.keys) for event in bench.events()) == 2
    spills.copied()
    assert (bench.host(), bench.where(range(1, 9)), bench.events()) == ((1, 0, 0, 0), (0, 0), [])
    bench.cache.check()


def test_an_evicted_block_whose_copy_was_not_begun_leaves_the_tier_with_its_device_block_empty(
    make: Callable[..., TieredBench],
) -> None:
    bench = make(host=1)
    bench.run(range(1, 5))
    bench.run(range(11, 15))
    bench.cache.evict(2)
    spills = bench.cache.spill()
    assert len(spills.copies) == 1 and bench.books() == (5, 0, 0, 1), "that of the first was called off"
    bench.oracle.copy(spills.copies)
    spills.copied()
    assert [bench.where(range(n, n + 4)) for n in (1, 11)] == [(0, 0), (0, 4)]
