"""Contract, blocks with more than one reader: twins, copies, pins, quarantine, the books."""

from __future__ import annotations

import pytest

from prefixcache import NoSpace, RequestError
from tests.contract.bench import Bench


def test_twins_become_one_block(bench: Bench) -> None:
    first, second = bench.open(range(1, 10)), bench.open(range(1, 10))
    bench.step(first)
    own = second.block_table.tolist()
    assert second.take_moves() == ()
    bench.oracle.write(second, 0, 9)
    second.computed(9)
    table = second.block_table.tolist()
    assert table[:2] == first.block_table.tolist()[:2]
    assert table[2] == own[2], "the partial tail stays its own"
    assert second.take_moves() == ((0, own[0], table[0]), (1, own[1], table[1]))
    assert second.take_moves() == ()
    bench.verify(second)
    bench.verify(first)
    assert bench.books() == (12, 0, 4, 0)
    first.close()
    assert bench.cache.books().pinned == 3
    bench.verify(second)


def test_a_chain_goes_on_behind_a_twin(bench: Bench) -> None:
    first, second = bench.open([1, 2, 3, 4]), bench.open(range(1, 9))
    bench.step(first).close()
    bench.step(second)
    assert bench.found(range(1, 9)) == 8
    second.close()
    assert bench.cache.books().idle == 2
    bench.drain()


def test_a_request_has_its_copies_made_before_it_computes(bench: Bench) -> None:
    request = bench.step(bench.open(range(1, 7)))
    sample = request.fork()
    sample.append(7)
    with pytest.raises(RequestError):
        sample.computed(7)
    assert sample.computed_tokens == 6


def test_a_source_is_not_overwritten_before_the_copy_out_of_it_is_made(bench: Bench) -> None:
    request = bench.step(bench.open(range(1, 7)))
    sample = request.fork()
    request.append(7)
    with pytest.raises(RequestError):
        request.computed(7)
    bench.oracle.copy(sample.copies)
    sample.copied()
    bench.step(request)
    bench.verify(sample)


def test_the_source_of_a_copy_stays_pinned_until_it_is_made(make) -> None:
    bench = make(capacity=4)
    request = bench.step(bench.open(range(1, 9)))
    request.rewind(6)
    assert bench.cache.books().pinned == 3, "two blocks of its table, and the source"
    assert bench.cache.evict(4) == 0
    bench.open([50, 51, 52, 53, 54, 55, 56, 57][:4])
    with pytest.raises(NoSpace):
        bench.open([60])
    bench.oracle.copy(request.copies)
    request.copied()
    bench.verify(request)
    assert bench.cache.books().idle == 1
    bench.step(bench.open([60]))
    bench.verify(request)


@pytest.mark.parametrize("how", ["close", "abort", "preempt"])
def test_an_end_with_copies_pending_lets_the_source_go(bench: Bench, how: str) -> None:
    request = bench.step(bench.open(range(1, 7)))
    sample = request.fork()
    request.close()
    assert bench.cache.books().pinned == 3
    getattr(sample, how)()
    assert bench.cache.books().pinned == 0
    bench.drain()


def test_copied_without_copies_changes_nothing(bench: Bench) -> None:
    request = bench.open([1, 2, 3])
    assert request.copies == ()
    request.copied()
    assert bench.books() == (15, 0, 1, 0)


def test_blocks_with_work_in_flight_are_quarantined_until_it_settles(make) -> None:
    bench = make(capacity=4)
    request = bench.open(range(1, 9))
    bench.step(request, 2)
    request.abort(in_flight=True)
    assert bench.books() == (2, 0, 0, 2)
    assert bench.cache.evict(4) == 0
    with pytest.raises(NoSpace):
        bench.open(range(50, 62))
    bench.open(range(50, 58))
    bench.cache.check()
    request.settled()
    assert bench.books()[3] == 0
    assert bench.books()[2] == 2
    bench.step(bench.open([60, 61]))


@pytest.mark.parametrize("how", ["close", "abort", "preempt"])
def test_settling_ends_the_quarantine_whatever_the_end_was(bench: Bench, how: str) -> None:
    request = bench.step(bench.open(range(1, 10)))
    request.append(10)
    getattr(request, how)(in_flight=True)
    _free, idle, pinned, quarantined = bench.books()
    assert (pinned, idle + quarantined) == (0, 3)
    assert quarantined >= 1, "the tail may still be written"
    request.settled()
    assert bench.cache.books().idle in {2, 2 + bench.setup.stores_tails}, "the tail need not survive a late write"
    assert bench.books()[2:] == (0, 0)
    assert bench.found(range(1, 9)) == 8
    bench.drain()


def test_a_reset_waits_for_work_in_flight(bench: Bench) -> None:
    request = bench.open(range(1, 9))
    request.abort(in_flight=True)
    assert bench.cache.reset() is False
    request.settled()
    assert bench.cache.reset() is True


def test_a_pin_holds_what_it_matched(bench: Bench) -> None:
    bench.run(range(1, 9))
    pin = bench.cache.pin(range(1, 9))
    assert len(pin.blocks) == 2
    assert bench.books() == (14, 0, 2, 0)
    assert bench.cache.evict(16) == 0
    assert bench.found(range(1, 9)) == 8
    pin.release()
    assert bench.books() == (14, 2, 0, 0)
    pin.release()
    assert bench.books() == (14, 2, 0, 0)
    assert bench.cache.evict(16) == 2


def test_a_pin_of_nothing_is_empty(bench: Bench) -> None:
    pin = bench.cache.pin([1, 2, 3, 4, 5])
    assert len(pin.blocks) == 0
    pin.release()
    assert bench.books() == (16, 0, 0, 0)


def test_a_pin_is_no_request(bench: Bench) -> None:
    bench.run(range(1, 9))
    before = bench.cache.stats()
    bench.cache.pin(range(1, 9)).release()
    assert bench.cache.stats() == before


def test_the_books_add_up_through_a_life(bench: Bench) -> None:
    seen = [bench.books()]
    first = bench.open(range(1, 10))
    seen.append(bench.books())
    bench.step(first)
    second = bench.open([*range(1, 9), 50, 51])
    seen.append(bench.books())
    first.close()
    second.abort(in_flight=True)
    seen.append(bench.books())
    second.settled()
    seen.append(bench.books())
    assert {sum(books) for books in seen} == {16}
    bench.drain()
    assert [books[:1] for books in seen[:3]] == [(16,), (13,), (12,)]


def test_what_is_given_out_is_read_only(bench: Bench) -> None:
    request = bench.open([1, 2, 3])
    assert str(request.block_table.dtype) == "int32"
    assert not request.block_table.flags.writeable
    assert [table.tolist() for table in request.tables] == [request.block_table.tolist()]
    for name in ("cached", "length", "computed_tokens", "state", "copies"):
        with pytest.raises(AttributeError):
            setattr(request, name, 0)
    frozen = {"free": bench.cache.books(), "cached": bench.cache.probe([1, 2]), "hits": bench.cache.stats()}
    for name, value in frozen.items():
        with pytest.raises((AttributeError, TypeError)):
            setattr(value, name, 1)
