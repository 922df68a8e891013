"""Eight threads that use one cache as engines do, over KV that is really copied, and what must be left in the end.

Every slot of the memory holds a digest of the prefix that it was computed from, in both halves of every layer, so a
block that was evicted, overwritten or not yet copied under a running request is seen by the next one who reads it.
Copies are carried out late, by copy workers, while their requests are grown, cut, branched and given up.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from prefixcache import (
    CopyWorkers,
    Full,
    InvariantError,
    KVStore,
    NoSpace,
    PrefixCache,
    Recurrent,
    Request,
    RequestError,
    Window,
)

THREADS, ROUNDS = 8, 40
_ATTEMPTS = 20
_LAYERS, _WIDTH = 2, 64
_MOST_ASKS = 200_000  # of one write, for a copy that should be under way

States = np.ndarray[Any, np.dtype[np.int64]]


class Memory:
    """The memory of all layers, a store per attention group, and what must stand in it.

    A slot of full attention or of a window holds a digest of the prefix that ends there, a block of a recurrent group
    one of the prefix that its state was made of.

    Attributes:
        made: the group of every copy that was made.
    """

    def __init__(self, cache: PrefixCache, host_blocks: int = 0) -> None:
        self.kinds = cache.groups
        self.made: list[int] = []
        self._sizes = [_block_size(kind, cache.block_size) for kind in self.kinds]
        alike: dict[str, Any] = {"layers": _LAYERS, "width": _WIDTH, "dtype": np.int64, "host_blocks": host_blocks}
        self._stores = [
            KVStore(blocks=capacity(cache, i), block_size=size, group=i, **alike) for i, size in enumerate(self._sizes)
        ]

    def copy(self, copies: Iterable[Any]) -> None:
        for copy in copies:
            self._stores[copy.group].copy((copy,))
            self.made.append(copy.group)

    def verify(self, request: Request) -> None:
        """All that position `computed_tokens` would read, in every group."""
        end, states = request.computed_tokens, _states(request)
        for group, (kind, table) in enumerate(zip(self.kinds, request.tables, strict=True)):
            if isinstance(kind, Recurrent):
                found = self._stores[group].read(table, 0, min(end, 1))
                assert (found == states[:, :, max(end - 1, 0) : end]).all(), f"{request}: another state of {group}"
                continue
            for begin, stop in _read(kind, end):
                first, last = begin // self._sizes[group], -(-stop // self._sizes[group])
                assert (table[first:last] >= 0).all(), f"{request}: group {group} has no block for what is read"
                found = self._stores[group].read(table, begin, stop)
                wrong = np.flatnonzero((found != states[:, :, begin:stop]).any(axis=(0, 1, 3)))
                assert not len(wrong), f"{request}: group {group} has another prefix at {begin + wrong[0]}"

    def write(self, request: Request, tables: Sequence[Any], begin: int, end: int) -> None:
        """A step computes the positions begin..end; the tables are given, for those of a released request are gone."""
        if begin == end:
            return
        states = _states(request)
        for kind, store, table in zip(self.kinds, self._stores, tables, strict=True):
            if isinstance(kind, Recurrent):
                store.write(table, 0, states[:, :, end - 1 : end])
            else:
                store.write(table, begin, states[:, :, begin:end])


def _block_size(kind: Any, size: int) -> int:
    if isinstance(kind, Recurrent):
        return 1
    return (kind.block_size if isinstance(kind, Window) else None) or size


def _read(kind: Full | Window, position: int) -> list[tuple[int, int]]:
    """The positions before this one that it reads, as (begin, end)."""
    if isinstance(kind, Full):
        return [(0, position)]
    begin = max(position + 1 - kind.size, 0)
    return [(0, min(kind.sinks, begin)), (begin, position)]


def _states(request: Request) -> States:
    """What each position computes: a digest of the weights and all tokens up to it, other in each layer and half."""
    digest, digests = request.scope.generation, list[Any]()
    for token in request.tokens.tolist():
        digest = hash((digest, token))
        digests.append(digest)
    places = np.arange(2 * _LAYERS).reshape(_LAYERS, 2, 1, 1)
    return np.broadcast_to(np.array(digests, np.int64)[:, None] ^ places, (_LAYERS, 2, len(digests), _WIDTH))


def capacity(cache: PrefixCache, group: int) -> int:
    """Blocks of a group."""
    books = cache.books(group)
    return books.free + books.idle + books.pinned + books.quarantined


@contextmanager
def switching_often() -> Iterator[None]:
    """Threads take turns every microsecond."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)


class Stopped(Exception):
    """Another thread has failed."""


class Stress:
    """A cache, its memory, the workers that copy in it, and the threads that use them.

    Args:
        cache: with room for about half of what so many threads would like to keep.
        seed: of all that is drawn.
        base_tokens: tokens of the prompts that others begin with.
        rounds: of each thread.
        memory: what the workers copy in.
        host_blocks: of a tier below.
    """

    def __init__(
        self,
        cache: PrefixCache,
        seed: str,
        *,
        base_tokens: int = 14,
        rounds: int = ROUNDS,
        memory: Callable[[Memory], Any] = lambda own: own,
        host_blocks: int = 0,
    ) -> None:
        self.cache, self.seed, self.rounds = cache, seed, rounds
        self.memory = Memory(cache, host_blocks)
        self.capacities = [capacity(cache, group) for group in range(len(cache.groups))]
        self.workers = CopyWorkers(memory(self.memory), workers=2)
        self.stop = threading.Event()
        rng = random.Random(seed)
        self.bases = [[rng.randrange(2) for _ in range(base_tokens)] for _ in range(8)]

    def run(self) -> None:
        """Raises what the first thread that failed raised, or what the cache says of itself in the end."""
        self.play()
        self.finish()

    def play(self) -> None:
        """All threads from their first request to their last."""
        threads = [self.user(f"{self.seed}, thread {number}") for number in range(THREADS)]
        with switching_often(), self.workers:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        errors = [thread.error for thread in threads if thread.error is not None]
        for error in errors:
            if not isinstance(error, Stopped):
                raise error

    def user(self, seed: str) -> User:
        """A thread that uses the cache."""
        return User(self, seed)

    def finish(self) -> None:
        """Nobody is left: nothing is in use, and all memory is free once everything is evicted."""
        cache = self.cache
        cache.check()
        for group in range(len(self.capacities)):
            books = cache.books(group)
            assert (books.pinned, books.quarantined) == (0, 0), f"{books} of group {group}: nobody is left"
        cache.end_step()
        for group, blocks in reversed(list(enumerate(self.capacities))):  # the tree is the first, and takes all along
            cache.evict(blocks, group=group)
            cache.check()
            assert cache.books(group).free == blocks, f"{cache.books(group)} of group {group}: all was evicted"


class User(threading.Thread):
    """One thread, and the requests of which it takes care."""

    def __init__(self, stress: Stress, seed: str) -> None:
        super().__init__(daemon=True)
        self.stress, self.cache, self.memory, self.workers = stress, stress.cache, stress.memory, stress.workers
        self.random = random.Random(seed)
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            for _ in range(self.stress.rounds):
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
                return [self.cache.open(**self.ask())]
            # All behind the same leaf, so that one may extend it in place while others have yet to copy out of it.
            base = draw.choice(self.stress.bases)
            batch = [self.ask(base) for _ in range(2 + draw.randrange(2))]
            return [result for result in self.cache.open_batch(batch) if isinstance(result, Request)]
        except NoSpace:
            self.evict(2)
            return []

    def ask(self, base: list[int] | None = None) -> dict[str, Any]:
        """The arguments of an `open`, now and then for less than all that it is going to need."""
        prompt = self.prompt(base)
        return {"tokens": prompt, "reserve": self.some_of(len(prompt))}

    def prompt(self, base: list[int] | None = None) -> list[int]:
        """The beginning of one of a few, and some tokens more."""
        draw = self.random
        base = base or draw.choice(self.stress.bases)
        return base[: draw.randrange(1, len(base) + 1)] + [draw.randrange(2) for _ in range(draw.randrange(4))]

    def some_of(self, tokens: int) -> int | None:
        """To find room for, None for all."""
        return self.random.randrange(tokens + 1) if not self.random.randrange(4) else None

    def evict(self, blocks: int) -> None:
        self.cache.evict(blocks, group=self.random.randrange(len(self.stress.capacities)))

    def meanwhile(self) -> None:
        """What may come while copies are late."""
        cache = self.cache
        match self.random.randrange(6):
            case 0:
                self.evict(1)
            case 1:
                cache.plan([self.ask(), self.ask()])
            case 2:
                with cache.pin(self.prompt()):
                    cache.probe(self.prompt())
            case 3:
                cache.end_step()
            case 4:
                cache.check()
            case _:
                for group, blocks in enumerate(self.stress.capacities):
                    assert capacity(cache, group) == blocks

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
        """Step by step: ask whether the tables may be written, look at what is there, write what follows, say so."""
        while self.ready_to_write(request):
            begin, end = request.computed_tokens, self.step_end(request)
            if begin == end:
                return
            if not self.made_own_copies(request):
                return
            self.memory.write(request, request.tables, begin, end)
            if not self.said(request, end):
                return

    def ready_to_write(self, request: Request) -> bool:
        if not self.said(request, request.computed_tokens):
            return False
        self.memory.verify(request)
        return request.computed_tokens < request.length

    def step_end(self, request: Request) -> int:
        """Where the next step ends, with room for it; where the last one did when there is none."""
        begin, length = request.computed_tokens, request.length
        states = request.checkpoints[:1]
        end = self.random.choice((length, length, *states, *states, self.random.randrange(begin, length) + 1))
        try:
            request.reserve(end)
        except NoSpace:
            return begin
        return end

    def said(self, request: Request, length: int) -> bool:
        """`computed`, again whenever a copy that stood in its way may be done; whether the request goes on.

        Where a state was kept, it goes on in a copy of it, which is made before anything else.
        """
        for asked in range(_MOST_ASKS):
            try:
                request.computed(length)
                break
            except RequestError:
                assert request.state == "open"
                if self.stress.stop.is_set():
                    raise Stopped from None
                if asked == _MOST_ASKS - 1:
                    raise
        for _ in range(self.random.randrange(2) if request.copies else 0):
            self.meanwhile()
        return self.made_own_copies(request)

    def made_own_copies(self, request: Request) -> bool:
        """Make those that come before anything else; whether the request goes on."""
        return not request.copies or any(True for _ in self.copied([request]))

    def append(self, request: Request) -> None:
        try:
            request.append([self.random.randrange(2) for _ in range(1 + self.random.randrange(4))])
        except NoSpace:
            return
        if self.made_own_copies(request):
            self.compute(request)

    def rewind(self, request: Request) -> None:
        try:
            request.rewind(1 + self.random.randrange(request.length))
        except NoSpace:
            return
        except RequestError as error:
            assert "has no longer what position" in str(error), error
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
            request.resume(reserve=self.some_of(request.length))
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
        """Given up while its last step runs, which writes to its end all the same."""
        with suppress(NoSpace):
            request.append([self.random.randrange(2) for _ in range(3)])
        more = self.made_own_copies(request) and self.ready_to_write(request)
        if request.state != "open":  # a copy was cancelled
            return
        begin = request.computed_tokens
        end = self.step_end(request) if more else begin
        tables = request.tables
        request.abort(in_flight=True)
        for _ in range(3):  # time enough for others to be given its blocks, if they could be
            self.meanwhile()
        self.memory.write(request, tables, begin, end)
        request.settled()


# -- what removes a rule must be seen -------------------------------------------------------------------


class Early:
    """Says that a copy is done before it is: it is made when the next one is asked for."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.late: list[Any] = []

    def copy(self, copies: Iterable[Any]) -> None:
        self.late, now = list(copies), self.late
        self.memory.copy(now)


def attempts_until_seen(break_it: Callable[[str], Stress], seed: int) -> int:
    """In which attempt the fault was seen."""
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            break_it(f"{seed} {attempt}").run()
        except (AssertionError, InvariantError, RequestError, LookupError, TypeError, ValueError, RuntimeError):
            return attempt
    raise AssertionError(f"not seen in {_ATTEMPTS} attempts")
