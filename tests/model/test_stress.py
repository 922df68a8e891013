"""Eight threads that use one cache as engines do, over KV that is really copied, and what must be left in the end.

Every slot of the KV memory holds a digest of the prefix that it was computed from, in both halves of every layer, so a
block that was evicted, overwritten or not yet copied under a running request is seen by the next one who reads it.
Copies are carried out late, by copy workers, while their requests are grown, cut, branched and given up.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError
from contextlib import nullcontext, suppress
from typing import Any

import numpy as np
import pytest

from prefixcache import PRESETS, CopyWorkers, InvariantError, KVStore, NoSpace, PrefixCache, Request, RequestError
from tests.registration import DESIGNS

_THREADS, _ROUNDS, _ATTEMPTS = 8, 40, 20
_LAYERS, _WIDTH = 2, 64
_MOST_ASKS = 200_000  # of one write, for a copy that should be under way
_LEAST = 8  # hits, copies and evictions of a run, or it showed nothing
_OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    **{design: (design, {}) for design in DESIGNS},
    "radix, copy": ("radix", {"partial": "copy"}),
    "radix, node": ("radix", {"partial": "copy", "evict_unit": "node"}),
    "block_trie, take": ("block_trie", {"partial": "take"}),
    "digest_chain, take": ("digest_chain", {"partial": "take"}),
}
_CASES = (*_OPTIONS, *(f"preset {name}" for name in PRESETS))


@pytest.fixture(autouse=True)
def switch_often() -> Iterator[None]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def _make(case: str) -> PrefixCache:
    """Room for about half of what eight threads would like to keep."""
    if case.startswith("preset "):
        return PrefixCache.preset(case.removeprefix("preset "), block_size=4, capacity=40)
    design, options = _OPTIONS[case]
    size = 4 if 4 in DESIGNS[design].block_sizes else 1
    return PrefixCache(design, block_size=size, capacity=160 // size, **options)


class _Stopped(Exception):
    """Another thread has failed."""


class _Stress:
    """A cache, its KV, the workers that copy in it, and the threads that use them."""

    def __init__(self, case: str, seed: str, memory: Callable[[KVStore], Any] = lambda store: store) -> None:
        self.cache = _make(case)
        size = self.cache.block_size
        self.store = KVStore(layers=_LAYERS, blocks=self.cache.capacity, block_size=size, width=_WIDTH, dtype=np.int64)
        self.workers = CopyWorkers(memory(self.store), workers=2)
        self.stop = threading.Event()
        rng = random.Random(seed)
        self.bases = [[rng.randrange(2) for _ in range(14)] for _ in range(8)]
        self.seed = seed

    def run(self) -> None:
        """Raises what the first thread that failed raised, or what the cache says of itself in the end."""
        threads = [_User(self, f"{self.seed}, thread {number}") for number in range(_THREADS)]
        with self.workers:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        errors = [thread.error for thread in threads if thread.error is not None]
        for error in errors:
            if not isinstance(error, _Stopped):
                raise error
        cache = self.cache
        cache.check()
        books = cache.books()
        assert (books.pinned, books.quarantined) == (0, 0), f"{books}: nobody is left"
        cache.end_step()
        cache.evict(cache.capacity)
        cache.check()
        assert cache.books().free == cache.capacity


class _User(threading.Thread):
    def __init__(self, stress: _Stress, seed: str) -> None:
        super().__init__(daemon=True)
        self.stress, self.cache, self.store, self.workers = stress, stress.cache, stress.store, stress.workers
        self.random = random.Random(seed)
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            for _ in range(_ROUNDS):
                self.round()
        except BaseException as error:  # shown by the test: an exception must not die with its thread
            self.error = error
            self.stress.stop.set()

    def round(self) -> None:
        """Requests from admission to their end. Nobody waits for others while copies of its own are not on the way."""
        draw = self.random
        admitted = self.admit()
        for _ in range(draw.randrange(3)):
            self.meanwhile()
        for request in self.copied(admitted):
            self.compute(request)
            for _ in range(draw.randrange(4)):
                if request.state == "open":
                    draw.choice((self.append, self.append, self.rewind, self.fork, self.preempt))(request)
            self.end(request)

    def admit(self) -> list[Request]:
        draw = self.random
        try:
            if draw.randrange(3):
                return [self.cache.open(self.prompt())]
            # All behind the same leaf, so that one may extend it in place while others have yet to copy out of it.
            base = draw.choice(self.stress.bases)
            batch = [{"tokens": self.prompt(base)} for _ in range(2 + draw.randrange(2))]
            return [result for result in self.cache.open_batch(batch) if isinstance(result, Request)]
        except NoSpace:
            self.cache.evict(2)
            return []

    def prompt(self, base: list[int] | None = None) -> list[int]:
        """The beginning of one of a few, and some tokens more."""
        draw = self.random
        base = base or draw.choice(self.stress.bases)
        return base[: draw.randrange(1, len(base) + 1)] + [draw.randrange(2) for _ in range(draw.randrange(4))]

    def meanwhile(self) -> None:
        """What may come while copies are late."""
        cache = self.cache
        match self.random.randrange(6):
            case 0:
                cache.evict(1)
            case 1:
                cache.plan([{"tokens": self.prompt()}, {"tokens": self.prompt()}])
            case 2:
                with cache.pin(self.prompt()):
                    cache.probe(self.prompt())
            case 3:
                cache.end_step()
            case 4:
                cache.check()
            case _:
                books = cache.books()
                assert books.free + books.idle + books.pinned + books.quarantined == cache.capacity

    def copied(self, requests: list[Request]) -> Iterator[Request]:
        """Those that are still wanted, each as soon as its own copies are done: those of others may be under way."""
        draw = self.random
        transfers = [self.workers.submit(request) for request in draw.sample(requests, len(requests))]
        given_up = [transfer for transfer in transfers if not draw.randrange(12)]
        for transfer in given_up:  # a worker reads and writes its blocks until the transfer is done
            transfer.request.abort(in_flight=True)
        for transfer in given_up:  # before anything is computed: others wait for it
            transfer.result()
            transfer.request.settled()
        for transfer in transfers:
            if not draw.randrange(12):
                transfer.cancel()
        for transfer in transfers:
            request = transfer.request
            with suppress(CancelledError):
                transfer.result()
            if request.state == "open":
                yield request
            else:
                assert request.state == "aborted"

    # -- one request ---------------------------------------------------------------------------------

    def compute(self, request: Request) -> None:
        """Ask whether the table may be written, look at what is there, write the rest, and say so."""
        if self.ready_to_write(request):
            self.write(request, request.block_table, request.computed_tokens)
            self.said(request, request.length)

    def ready_to_write(self, request: Request) -> bool:
        self.said(request, request.computed_tokens)
        self.verify(request)
        return request.computed_tokens < request.length

    def said(self, request: Request, length: int) -> None:
        """`computed`, again whenever a copy that stood in its way may be done."""
        for _ in range(_MOST_ASKS):
            try:
                return request.computed(length)
            except RequestError:
                assert request.state == "open"
                if self.stress.stop.is_set():
                    raise _Stopped from None
        return request.computed(length)

    def verify(self, request: Request) -> None:
        length = request.computed_tokens
        found = self.store.read(request.block_table, 0, length)
        wrong = np.flatnonzero((found != _states(request, 0)[:, :, :length]).any(axis=(0, 1, 3)))
        assert not len(wrong), f"{request}: position {wrong[0]} holds the KV of another prefix"

    def write(self, request: Request, table: Any, start: int) -> None:
        self.store.write(table, start, _states(request, start))

    def append(self, request: Request) -> None:
        try:
            request.append([self.random.randrange(2) for _ in range(1 + self.random.randrange(4))])
        except NoSpace:
            return
        self.compute(request)

    def rewind(self, request: Request) -> None:
        try:
            request.rewind(1 + self.random.randrange(request.length))
        except NoSpace:
            return
        self.go_on(request)

    def fork(self, request: Request) -> None:
        try:
            child = request.fork()
        except NoSpace:
            return
        self.go_on(child)
        if child.state == "open":
            self.append(child)
            self.end(child)

    def preempt(self, request: Request) -> None:
        request.preempt()
        self.meanwhile()
        try:
            request.resume()
        except NoSpace:
            return
        self.go_on(request)

    def go_on(self, request: Request) -> None:
        for ready in self.copied([request]):
            self.compute(ready)

    def end(self, request: Request) -> None:
        match self.random.randrange(4):
            case 0:
                request.abort()
            case 1 if request.state == "open":
                self.end_in_flight(request)
            case _:
                request.close()

    def end_in_flight(self, request: Request) -> None:
        """Given up while its last step runs, which writes to the end all the same."""
        with suppress(NoSpace):
            request.append([self.random.randrange(2) for _ in range(3)])
        self.ready_to_write(request)
        table, start = request.block_table, request.computed_tokens
        request.abort(in_flight=True)
        self.meanwhile()
        self.write(request, table, start)
        request.settled()


def _states(request: Request, start: int) -> Any:
    """KV from a position on: a digest of all tokens up to each, other in each layer and half."""
    digest, digests = 0, []
    for token in request.tokens.tolist():
        digest = hash((digest, token))
        digests.append(digest)
    places = np.arange(2 * _LAYERS).reshape(_LAYERS, 2, 1, 1)
    return np.broadcast_to(
        np.array(digests[start:], np.int64)[:, None] ^ places, (_LAYERS, 2, len(digests) - start, _WIDTH)
    )


@pytest.mark.parametrize("case", _CASES)
def test_eight_threads_with_late_copies_lose_nothing_and_read_no_wrong_kv(case: str, seed: int) -> None:
    stress = _Stress(case, f"{seed} {case}")
    stress.run()
    done = stress.cache.stats()
    assert done.requests > _THREADS * _ROUNDS // 2
    assert min(done.hits, done.evicted_blocks) >= _LEAST, done
    if stress.cache.block_size > 1:
        assert done.copied_blocks >= _LEAST, done


# -- what removes a rule must be seen -------------------------------------------------------------------


class _Early:
    """Says that a copy is done before it is: it is made when the next one is asked for."""

    def __init__(self, store: KVStore) -> None:
        self.store = store
        self.late: list[Any] = []

    def copy(self, copies: Iterable[Any]) -> None:
        self.late, now = list(copies), self.late
        self.store.copy(now)


def _found(break_it: Callable[[str], _Stress], seed: int) -> int:
    """In which attempt the fault was seen."""
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            break_it(f"{seed} {attempt}").run()
        except (AssertionError, InvariantError, RequestError, LookupError, TypeError, ValueError, RuntimeError):
            return attempt
    raise AssertionError(f"not seen in {_ATTEMPTS} attempts")


@pytest.mark.parametrize("case", ["block_trie", "digest_chain, take", "preset trtllm"])
def test_a_copy_called_done_too_early_is_seen(case: str, seed: int) -> None:
    _found(lambda attempt: _Stress(case, attempt, _Early), seed)


def test_a_cache_without_a_lock_is_seen(seed: int) -> None:
    def unlocked(attempt: str) -> _Stress:
        stress = _Stress("hash_chain", attempt)
        stress.cache._core.lock = nullcontext()
        return stress

    _found(unlocked, seed)
