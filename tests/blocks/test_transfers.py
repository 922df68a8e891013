"""Copy workers: what a copy holds is released once, however it ends, and nothing unwritten is ever found."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterable
from concurrent.futures import CancelledError
from typing import Any

import numpy as np
import pytest

from prefixcache import PrefixCache, RequestError
from prefixcache.blocks.kv_store import BlockCopy, KVStore
from prefixcache.blocks.transfers import CopyWorkers, carry_out
from prefixcache.errors import OptionError

_SHARED = list(range(1, 9))


class Memory(KVStore):
    """A store that waits at the gate before each copy, and breaks down at the blocks it is told."""

    def __init__(self) -> None:
        super().__init__(layers=2, blocks=16, block_size=4, width=3, dtype="uint32")
        self.gate = threading.Event()
        self.gate.set()
        self.reached = threading.Semaphore(0)
        self.bad: set[int] = set()
        self.done: list[BlockCopy] = []

    def copy(self, copies: Iterable[BlockCopy]) -> None:
        for copy in copies:
            self.reached.release()
            self.gate.wait()
            if copy.target in self.bad:
                raise OSError(f"block {copy.target} is broken")
            super().copy([copy])
            self.done.append(copy)


def _cache(**options: Any) -> PrefixCache:
    """With [1..8] and [11..18] stored: a prompt that leaves them inside a block gets a copy."""
    cache = PrefixCache("block_trie", block_size=4, capacity=16, **options)
    for first in (1, 11):
        request = cache.open(range(first, first + 8))
        request.computed(8)
        request.close()
    return cache


def _open(cache: PrefixCache, last: int, first: int = 1) -> Any:
    request = cache.open([*range(first, first + 6), last])
    assert [copy.tokens for copy in request.copies] == [2]
    return request


def _all_is_free_in_the_end(cache: PrefixCache) -> None:
    cache.check()
    assert cache.books().pinned == cache.books().quarantined == 0
    cache.evict(cache.capacity)
    cache.check()
    assert cache.books().free == cache.capacity


def test_a_transfer_copies_and_says_so() -> None:
    cache, memory = _cache(), Memory()
    memory.memory[:] = np.arange(16).reshape(16, 1, 1)
    with CopyWorkers(memory) as workers:
        requests = [_open(cache, last) for last in (50, 60, 70)]
        copies = [request.copies[0] for request in requests]
        transfers = [workers.submit(request) for request in requests]
        assert [transfer.result() for transfer in transfers] == requests
        assert all(transfer.done for transfer in transfers)
    for request, copy in zip(requests, copies, strict=True):
        assert request.copies == ()
        assert (memory.memory[:, :, copy.target, :2] == copy.source).all()
        assert (memory.memory[:, :, copy.target, 2:] == copy.target).all()
        request.computed(7)
        request.close()
    _all_is_free_in_the_end(cache)


def test_a_request_without_copies_is_done_at_once() -> None:
    cache = _cache()
    with CopyWorkers(Memory()) as workers:
        request = cache.open([31, 32])
        assert workers.submit(request).result() is request
    assert request.state == "open"


def test_a_copy_that_fails_is_reported_and_releases_what_it_held() -> None:
    cache, memory = _cache(), Memory()
    before = cache.books()
    bad, good = _open(cache, 50), _open(cache, 60, first=11)
    memory.bad.add(bad.copies[0].target)
    with CopyWorkers(memory, workers=1) as workers:
        broken, whole = workers.submit(bad), workers.submit(good)
        with pytest.raises(OSError, match="is broken"):
            broken.result()
        assert whole.result() is good
    assert (bad.state, bad.copies, good.state) == ("aborted", (), "open")
    assert cache.probe([*range(1, 7), 50, 51]).cached == 6, "what was not written is not found"
    bad.copied()
    bad.abort()
    good.abort()
    assert cache.books() == before
    _all_is_free_in_the_end(cache)


def test_the_others_of_a_batch_go_on_when_one_copy_fails() -> None:
    cache, memory = _cache(partial="take"), Memory()
    first, second, last = cache.open_batch([{"tokens": [*range(1, 7), last]} for last in (50, 60, 70)])
    assert [len(request.copies) for request in (first, second, last)] == [1, 1, 0], "the last one takes the leaf over"
    memory.bad.add(first.copies[0].target)
    with pytest.raises(RequestError, match="has yet to copy"):
        last.computed(7)
    with CopyWorkers(memory) as workers:
        transfers = [workers.submit(request) for request in (first, second, last)]
        with pytest.raises(OSError, match="is broken"):
            transfers[0].result()
        for transfer in transfers[1:]:
            transfer.result()
    last.computed(7)
    second.computed(7)
    cache.check()
    second.close()
    last.close()
    _all_is_free_in_the_end(cache)


def test_a_cancelled_transfer_is_not_begun() -> None:
    cache, memory = _cache(), Memory()
    before = cache.books()
    memory.gate.clear()
    with CopyWorkers(memory, workers=1) as workers:
        running, waiting = workers.submit(_open(cache, 50)), workers.submit(_open(cache, 60))
        memory.reached.acquire()
        assert not running.done
        with pytest.raises(TimeoutError):
            running.result(timeout=0)
        waiting.cancel()
        waiting.cancel()
        memory.gate.set()
        running.result().abort()
        with pytest.raises(CancelledError):
            waiting.result()
    assert waiting.request.state == "aborted"
    assert len(memory.done) == 1
    assert cache.books() == before
    running.cancel()
    assert running.result().state == "aborted", "cancelling what is done changes nothing"
    _all_is_free_in_the_end(cache)


def test_a_transfer_cancelled_under_way_ends_behind_its_copy() -> None:
    cache, memory = _cache(), Memory()
    memory.gate.clear()
    with CopyWorkers(memory, workers=1) as workers:
        transfer = workers.submit(_open(cache, 50))
        memory.reached.acquire()
        transfer.cancel()
        assert transfer.request.state == "open", "its target is being written"
        memory.gate.set()
        with pytest.raises(CancelledError):
            transfer.result()
    assert transfer.request.state == "aborted"
    _all_is_free_in_the_end(cache)


def test_a_request_given_up_in_flight_keeps_its_blocks_until_it_is_settled() -> None:
    cache, memory = _cache(), Memory()
    before = cache.books()
    memory.gate.clear()
    with CopyWorkers(memory) as workers:
        transfer = workers.submit(_open(cache, 50))
        memory.reached.acquire()
        transfer.request.abort(in_flight=True)
        assert cache.books().quarantined == 1
        assert cache.evict(16) == 2, "the block that is copied and the one before it are pinned"
        memory.gate.set()
        transfer.result().settled()
    assert cache.books().free == before.free + 2
    _all_is_free_in_the_end(cache)


def test_places_are_limited_and_given_back_however_a_transfer_ends() -> None:
    cache, memory = _cache(), Memory()
    with CopyWorkers(memory, workers=1, most=2) as workers:
        for broken in (False, True):
            memory.gate.clear()
            first, second = _open(cache, 50), _open(cache, 60)
            if broken:
                memory.bad.update({first.copies[0].target, second.copies[0].target})
            transfers = [workers.submit(first), workers.submit(second)]
            assert not workers._places.acquire(blocking=False), "both places are taken"
            memory.gate.set()
            for transfer in transfers:
                assert isinstance(transfer._future.exception(), OSError if broken else type(None))
                transfer.request.abort()
            assert workers._places.acquire(blocking=False)
            workers._places.release()
    _all_is_free_in_the_end(cache)


def test_a_submit_that_waits_for_a_place_goes_on_when_there_is_one() -> None:
    cache, memory = _cache(), Memory()
    memory.gate.clear()
    through: list[Any] = []
    with CopyWorkers(memory, workers=1, most=1) as workers:
        first = workers.submit(_open(cache, 50))
        late = threading.Thread(target=lambda: through.append(workers.submit(_open(cache, 60)).result()))
        late.start()
        memory.reached.acquire()
        assert not through
        memory.gate.set()
        late.join()
    first.request.abort()
    through[0].abort()
    _all_is_free_in_the_end(cache)


@pytest.mark.parametrize("cancel", [False, True])
def test_closing_waits_for_what_was_taken_and_takes_no_more(cancel: bool) -> None:
    cache, memory = _cache(), Memory()
    memory.gate.clear()
    workers = CopyWorkers(memory, workers=1)
    transfers = [workers.submit(_open(cache, last)) for last in (50, 60, 70)]
    memory.reached.acquire()
    closing = threading.Thread(target=workers.close, kwargs={"cancel": cancel})
    closing.start()
    while not (workers._closed and (not cancel or all(t._is_cancelled() for t in transfers))):
        pass
    memory.gate.set()
    closing.join()
    workers.close()
    workers.close(cancel=True)
    assert all(transfer.done for transfer in transfers)
    assert {transfer.request.state for transfer in transfers} == {"aborted" if cancel else "open"}
    assert len(memory.done) == (1 if cancel else 3)
    refused = _open(cache, 80)
    with pytest.raises(RequestError, match="closed"):
        workers.submit(refused)
    assert refused.state == "open" and len(refused.copies) == 1
    for request in [refused, *(transfer.request for transfer in transfers)]:
        request.abort()
    _all_is_free_in_the_end(cache)


def test_an_error_inside_the_context_cancels() -> None:
    cache, memory = _cache(), Memory()
    memory.gate.clear()
    with pytest.raises(KeyError), CopyWorkers(memory, workers=1) as workers:
        transfers = [workers.submit(_open(cache, last)) for last in (50, 60)]
        memory.reached.acquire()
        threading.Thread(target=lambda: (_wait_for_cancel(transfers), memory.gate.set())).start()
        raise KeyError
    assert {transfer.request.state for transfer in transfers} == {"aborted"}
    _all_is_free_in_the_end(cache)


def _wait_for_cancel(transfers: list[Any]) -> None:
    for transfer in transfers:
        while not transfer._is_cancelled():
            pass


def test_without_workers_the_same_is_done_by_the_caller() -> None:
    cache, memory = _cache(), Memory()
    request = _open(cache, 50)
    carry_out(memory, request)
    assert (request.state, request.copies) == ("open", ())
    request.abort()
    _all_is_free_in_the_end(cache)


@pytest.mark.parametrize("arguments", [{"workers": 0}, {"most": 0}, {"workers": "two"}])
def test_numbers_below_one_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=next(iter(arguments))):
        CopyWorkers(Memory(), **arguments)


@pytest.mark.parametrize("memory", [PrefixCache("radix", block_size=4, capacity=4), None])
def test_a_memory_that_cannot_copy_is_refused_before_a_request_is_lost_to_it(memory: Any) -> None:
    with pytest.raises(OptionError, match=r"expected a KVStore, or what has a method `copy\(copies\)`"):
        CopyWorkers(memory)


def test_workers_that_cannot_be_started_refuse_and_leave_the_request_as_it_was() -> None:
    cache, workers = _cache(), CopyWorkers(Memory(), workers=1)
    request = _open(cache, 50)
    usual = threading.stack_size(1 << 60)  # more than can be addressed: no thread can be started
    try:
        with pytest.raises(RequestError, match="no copy worker can be started"):
            workers.submit(request)
    finally:
        threading.stack_size(usual)
    assert request.state == "open" and len(request.copies) == 1
    assert workers.submit(request).result() is request
    workers.close()
    request.abort()
    _all_is_free_in_the_end(cache)


def test_who_waits_at_the_end_of_the_interpreter_is_refused() -> None:
    """A thread that outlives the main one gets an error, and the interpreter ends."""
    program = """
import subprocess
import sys
import threading
from prefixcache import CopyWorkers, KVStore, PrefixCache, RequestError
cache = PrefixCache("block_trie", block_size=4, capacity=8, partial="copy")
stored = cache.open(range(8)); stored.computed(8); stored.close()
workers = CopyWorkers(KVStore(layers=1, blocks=8, block_size=4, width=1), workers=1)
main = threading.main_thread()
def late():
    main.join()
    for last in (50, 60):
        request = cache.open([0, 1, 2, last])
        try:
            workers.submit(request).result()
            print("done")
        except RequestError as error:
            print(request.state, error)
threading.Thread(target=late).start()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.count("open submit: no copy worker can be started") == 2, done


@pytest.mark.parametrize("given", [None, 3, [], "request"])
def test_what_is_no_request_is_refused(given: Any) -> None:
    with CopyWorkers(Memory()) as workers, pytest.raises(OptionError, match="no request"):
        workers.submit(given)
