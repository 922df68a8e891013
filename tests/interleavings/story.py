"""A small cache, threads that use it as an engine would, and all that must hold after each of their steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from prefixcache import NoSpace, PrefixCache, Request, RequestError
from prefixcache.blocks import transfers
from prefixcache.scenario.oracle import KVOracle
from tests.interleavings.scheduler import Scheduler, SteppedLock

Work = Callable[[], None]

# Designs and presets in the forms that differ in what a claim does; each wants a block size and a capacity.
SETUPS: dict[str, Callable[..., PrefixCache]] = {
    "radix": partial(PrefixCache, "radix"),
    "radix, copy": partial(PrefixCache, "radix", partial="copy"),
    "hash_chain": partial(PrefixCache, "hash_chain"),
    "block_trie": partial(PrefixCache, "block_trie"),
    "block_trie, take": partial(PrefixCache, "block_trie", partial="take"),
    "digest_chain": partial(PrefixCache, "digest_chain"),
    "digest_chain, take": partial(PrefixCache, "digest_chain", partial="take"),
    "trtllm": partial(PrefixCache.preset, "trtllm"),
    "vllm-1": partial(PrefixCache.preset, "vllm-1"),
}
ALL = tuple(SETUPS)
PARTIAL = ("radix, copy", "block_trie", "block_trie, take", "digest_chain", "digest_chain, take", "trtllm")
# All whose batches are one claim: "vllm-1" admits in a loop.
CLAIM = tuple(name for name in SETUPS if name != "vllm-1")
WHOLE = tuple(name for name in CLAIM if name != "trtllm")
TAKE = ("block_trie, take", "digest_chain, take", "trtllm")


class RuleBroken(AssertionError):
    """A request was given something else than the rule of its story says."""


@dataclass(frozen=True)
class Case:
    """A story to be told under every schedule.

    Attributes:
        threads: what each thread does, given the world.
        setups: names of the caches that it is told with.
        capacity: blocks.
        stored: prompts that were run before, oldest first.
        least: schedules that there are at the least, so that a search cannot be empty without a word.
        preemptions: how many a schedule may have; None is all schedules.
        asks: whether others may have to copy out of a block that is written next, so that a writer asks before.
        block_size: tokens.
        host: blocks of a tier below the device.
        below: prompts that were run before those, and lie in the tier.
    """

    name: str
    threads: Callable[[World], dict[str, Work]]
    setups: tuple[str, ...]
    capacity: int = 8
    stored: tuple[Sequence[int], ...] = ()
    least: int = 2
    preemptions: int | None = None
    asks: bool = False
    block_size: int = 2
    host: int = 0
    below: tuple[Sequence[int], ...] = ()


class _Memory:
    """The oracle's memory, copied by whoever is let go next."""

    def __init__(self, world: World) -> None:
        self.world = world

    def copy(self, copies: Iterable[Any]) -> None:
        for copy in copies:
            self.world.scheduler.point("copy")
            if self.world.broken:
                raise OSError("the device is gone")
            self.world.oracle.copy([copy])


@dataclass
class World:
    case: Case
    setup: str
    reentrant: bool = True
    broken: bool = False  # copies fail
    cancelled: bool = False
    live: dict[int, Request] = field(default_factory=dict)
    hand: dict[str, Any] = field(default_factory=dict)  # what one thread passes on to another

    def __post_init__(self) -> None:
        case = self.case
        tiers = {"host": case.host} if case.host else None
        self.cache = SETUPS[self.setup](block_size=case.block_size, capacity=case.capacity, tiers=tiers)
        self.oracle = KVOracle(self.case.block_size)
        self.memory = _Memory(self)
        self.scheduler = Scheduler([], None)  # whose points are none, for what was before
        self._run(case.below)
        if case.below:
            self.cache.evict(case.capacity)
            self.spill()
        self._run(case.stored)

    def _run(self, prompts: Iterable[Sequence[int]]) -> None:
        for prompt in prompts:
            request = self.cache.open(prompt)
            self.oracle.copy(request.copies)
            request.copied()
            self.oracle.write(request, request.cached, request.length)
            request.computed(request.length)
            request.close()

    # What the scheduler asks

    def threads(self, scheduler: Scheduler) -> dict[str, Work]:
        self.scheduler = scheduler
        self.cache._core.lock = SteppedLock(scheduler, self.reentrant)
        return self.case.threads(self)

    def after_step(self) -> None:
        if self.cache._core.lock.holder is not None:  # it waits for itself, and will be found to
            return
        self.cache.check()
        books = self.cache.books()
        numbers = (books.free, books.idle, books.pinned, books.quarantined)
        assert min(numbers) >= 0 and sum(numbers) == self.case.capacity, books
        if self.case.host:
            books = self.cache.books(tier="host")
            numbers = (books.free, books.idle, books.pinned, books.quarantined)
            assert min(numbers) >= 0 and sum(numbers) == self.case.host, books
        for request in self.live.values():
            if not request.copies:
                self.oracle.verify(request, request.computed_tokens)

    def at_the_end(self) -> None:
        for request in list(self.live.values()):
            request.abort()
        books = self.cache.books()
        assert (books.pinned, books.quarantined) == (0, 0), f"{books}: nobody is left"
        if self.case.host:
            self._empty_the_tier()
        self.cache.evict(self.case.capacity)
        self.cache.check()
        assert self.cache.books().free == self.case.capacity

    def _empty_the_tier(self) -> None:
        books = self.cache.books(tier="host")
        assert (books.pinned, books.quarantined) == (0, 0), f"{books} of the tier: nobody is left"
        for prompt in (*self.case.below, *self.case.stored):  # whatever is found of it, wherever that lies
            request = self.cache.open([*prompt, 99])
            self.oracle.copy(request.copies)
            request.copied()
            self.oracle.verify(request, request.cached)
            request.abort()
        assert self.cache.reset()
        assert self.cache.books(tier="host").free == self.case.host

    # What threads do

    def rule(self, holds: bool, what: str) -> None:
        """Raises `RuleBroken` unless what a request was given is what the rule says."""
        if not holds:
            raise RuleBroken(what)

    def open(self, tokens: Sequence[int]) -> Request | None:
        """Admitted, or None."""
        try:
            request = self.cache.open(tokens)
        except NoSpace:
            return None
        self.live[request.id] = request
        return request

    def open_batch(self, *prompts: Sequence[int]) -> list[Request | None]:
        results = self.cache.open_batch([{"tokens": prompt} for prompt in prompts])
        requests = [None if isinstance(result, NoSpace) else result for result in results]
        self.live.update((request.id, request) for request in requests if request is not None)
        return requests

    def copy(self, request: Request) -> bool:
        """As a copy worker does it; False when it failed, and the request is gone with it."""
        try:
            transfers.carry_out(self.memory, request, lambda: self.cancelled)
        except (OSError, CancelledError):
            self.live.pop(request.id)
            return False
        return True

    def compute(self, request: Request, length: int | None = None) -> None:
        """Ask whether the table may be written, write, and say so."""
        length = request.length if length is None else length
        if self.case.asks:
            self._said(request, request.computed_tokens)
        self.scheduler.point("write")
        self.oracle.write(request, request.computed_tokens, length)
        self._said(request, length)

    def _said(self, request: Request, length: int) -> None:
        """`computed`, again whenever a copy that stood in its way may be done."""
        while True:
            try:
                return request.computed(length)
            except RequestError:
                before = self.sources()
                assert before & set(request.block_table.tolist()), "refused, and nobody copies out of its table"
                self.scheduler.point("wait for a copy", lambda before=before: self.sources() != before)

    def sources(self) -> set[int]:
        """Blocks that have yet to be copied."""
        copies = [copy for request in self.live.values() for copy, _ in request.pending]
        return {copy.source for copy in copies if copy.source_tier == copy.target_tier}

    def spill(self) -> bool:
        """Copy all that waits for it, as a copy worker does it; False when that failed."""
        try:
            transfers.carry_out(self.memory, self.cache.spill(), lambda: self.cancelled)
        except (OSError, CancelledError):
            return False
        return True

    def end(self, request: Request, how: str = "close", **arguments: Any) -> None:
        self.live.pop(request.id)
        getattr(request, how)(**arguments)

    def serve(self, request: Request | None) -> None:
        """All of a request's life after its admission."""
        if request is not None and self.copy(request):
            self.compute(request)
            self.end(request)

    def life(self, *tokens: int) -> Work:
        return lambda: self.serve(self.open(tokens))

    def evict(self, times: int) -> Work:
        def work() -> None:
            for _ in range(times):
                self.cache.evict(1)

        return work
