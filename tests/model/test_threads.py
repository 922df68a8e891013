"""Many threads on one cache: every call is atomic, and in the end nothing is lost."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Iterator

import pytest

from prefixcache import NoSpace, PrefixCache, Request, RequestError
from prefixcache.scenario.oracle import KVOracle
from tests.registration import DESIGNS

_THREADS = 8
_LIVES = 60


@pytest.fixture(autouse=True)
def switch_often() -> Iterator[None]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


class _Worker(threading.Thread):
    def __init__(self, cache: PrefixCache, oracle: KVOracle, memory: threading.Lock, seed: str) -> None:
        super().__init__()
        self.cache, self.oracle, self.memory = cache, oracle, memory
        self.random = random.Random(seed)
        self.admitted = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            for _ in range(_LIVES):
                self.live()
        except BaseException as error:  # shown by the test: an exception must not die with its thread
            self.error = error

    def live(self) -> None:
        """One request from admission to its end, with what others may do to it in between."""
        draw, cache = self.random, self.cache
        tokens = [draw.randrange(2) for _ in range(draw.randrange(1, 14))]
        cache.probe(tokens)
        try:
            request = cache.open(tokens)
        except NoSpace:
            cache.evict(1)
            return
        self.admitted += 1
        table = request.block_table.tolist()
        assert len(set(table)) == len(table)
        self.compute(request)
        for _ in range(draw.randrange(4)):
            try:
                request.append(draw.randrange(2))
            except NoSpace:
                break
            self.compute(request)
        with self.memory:
            self.oracle.verify(request, request.computed_tokens)
        books = cache.books()
        assert books.free + books.idle + books.pinned + books.quarantined == cache.capacity
        if draw.randrange(2):
            request.close()
        else:
            request.abort(in_flight=True)
            request.settled()

    def compute(self, request: Request) -> None:
        """Copy, write, and say so once nobody has yet to copy out of the table."""
        with self.memory:
            self.oracle.copy(request.copies)
        request.copied()
        with self.memory:
            self.oracle.write(request, request.computed_tokens, request.length)
        while True:
            try:
                return request.computed(request.length)
            except RequestError:  # another thread is about to make its copy
                assert request.state == "open"


@pytest.mark.parametrize("design", sorted(DESIGNS))
def test_eight_threads_leave_a_sound_cache(design: str, seed: int) -> None:
    block_size = 2 if 2 in DESIGNS[design].block_sizes else 1
    cache = PrefixCache(design, block_size=block_size, capacity=80 // block_size)
    oracle, memory = KVOracle(block_size), threading.Lock()
    workers = [_Worker(cache, oracle, memory, f"{seed} {number}") for number in range(_THREADS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for worker in workers:
        if worker.error is not None:
            raise worker.error
    cache.check()
    assert cache.stats().requests == sum(worker.admitted for worker in workers) > 0
    cache.evict(cache.capacity)
    cache.check()
    assert cache.books().free == cache.capacity
