"""The measured lock: what it says of holds, and that it is asked for."""

from __future__ import annotations

import random
import threading
from itertools import pairwise

import pytest

from prefixcache import NoSpace, OptionError, PrefixCache
from prefixcache.cache.lock import MeasuredLock, _Histogram


@pytest.mark.parametrize("most", [7, 8, 100, 10**6, 10**12])
def test_percentiles_are_at_most_an_eighth_too_high(most: int, seed: int) -> None:
    draw = random.Random(seed)
    values = sorted(draw.randrange(most) + 1 for _ in range(1000))
    histogram = _Histogram()
    for value in values:
        histogram.note(value)
    read = histogram.read()
    assert (read.count, read.total, read.longest) == (1000, sum(values) / 1000, values[-1] / 1000)
    for found, true in ((read.p50, values[499]), (read.p99, values[989])):
        assert true <= round(found * 1000) <= true * 9 / 8


def test_every_nanosecond_has_its_bucket_and_they_are_in_order() -> None:
    ends = []
    for value in [*range(300), 2**40, 2**62, 2**70]:
        histogram = _Histogram()
        histogram.note(value)
        ends.append(histogram.buckets.index(1))
        assert histogram.read().longest == value / 1000
    assert all(after - before >= 0 for before, after in pairwise(ends))


def test_calls_are_told_apart_and_nested_ones_count_once() -> None:
    cache = PrefixCache("radix", block_size=4, capacity=4, lock_times=True)
    request = cache.open(range(1, 9))
    request.computed(8)
    with pytest.raises(NoSpace):
        cache.open(range(11, 91))
    request.close()
    cache.probe(range(1, 9))
    holds = cache.stats().lock_holds
    counts = {kind: held.count for kind, held in holds.items()}
    assert counts == {"all": 5, "open": 2, "computed": 1, "release": 1, "probe": 1}
    for held in holds.values():
        assert 0 < held.p50 <= held.p99 <= held.longest <= held.total
    assert holds["all"].total == pytest.approx(sum(held.total for kind, held in holds.items() if kind != "all"))


def test_holds_are_no_counter_of_what_was_done() -> None:
    cache = PrefixCache("radix", block_size=4, capacity=4, lock_times=True)
    before = cache.stats()
    cache.probe([1, 2, 3])
    assert cache.stats() == before
    assert cache.stats().lock_holds != before.lock_holds


def test_without_being_asked_nothing_is_measured() -> None:
    cache = PrefixCache("radix", block_size=4, capacity=4)
    cache.open([1, 2, 3]).close()
    assert cache.stats().lock_holds == {}
    with pytest.raises(OptionError, match="lock_times"):
        PrefixCache("radix", block_size=4, capacity=4, lock_times="yes")


def test_only_one_thread_at_a_time_and_again_from_inside() -> None:
    lock, inside = MeasuredLock(), []

    def work() -> None:
        for _ in range(200):
            with lock, lock:
                inside.append(1)
                assert len(inside) == 1
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert lock.read()["work"].count == 800


def test_an_error_inside_lets_the_lock_go() -> None:
    lock = MeasuredLock()
    with pytest.raises(KeyError), lock:
        raise KeyError
    other = threading.Thread(target=lambda: lock.__enter__() or lock.__exit__())
    other.start()
    other.join()
    assert sum(held.count for kind, held in lock.read().items() if kind != "all") == 2
