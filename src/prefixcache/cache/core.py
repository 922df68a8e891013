"""What all parts of one cache share: the design, the pool, the lock, and the counters."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from prefixcache.blocks.eviction import Policy
from prefixcache.blocks.pool import BlockPool
from prefixcache.cache.books import BlockCounters, Books, Counters, Stats
from prefixcache.cache.journal import Journal
from prefixcache.cache.lock import CacheLock, MeasuredLock
from prefixcache.cache.removals import Removals
from prefixcache.designs import BASELINES, DESIGNS, Design, Options, read_options
from prefixcache.errors import InvariantError, OptionError, whole_number

if TYPE_CHECKING:
    from prefixcache.cache.request import Pin, Request


@dataclass
class Core:
    """The shared state. Whoever reads or changes it holds `lock`, which is reentrant."""

    design: Design
    pool: BlockPool
    options: Options
    journal: Journal | None
    clock: Callable[[], float]
    lock: CacheLock = field(default_factory=threading.RLock)
    generation: int = 0
    live: set[Request] = field(default_factory=set)
    pins: set[Pin] = field(default_factory=set)
    quarantine: set[Request] = field(default_factory=set)  # closed, with blocks not yet settled
    copying: set[Request] = field(default_factory=set)  # with copies that may still read their source
    counters: Counters = field(default_factory=Counters)
    block_counters: BlockCounters = field(default_factory=BlockCounters)
    next_request: int = 0

    def count_allocated(self, request: Request, index: int, blocks: Sequence[int]) -> None:
        """These blocks were allocated for a request, for its table from `index` on. O(blocks)."""
        new = self.pool.never_written(blocks)
        prompt_blocks = -(-request.prompt_length // self.design.block_size)
        generated = len(blocks) - min(max(prompt_blocks - index, 0), len(blocks))
        for counts in (request.block_counters, self.block_counters):
            counts.allocated += len(blocks)
            counts.new += new
            counts.generated += generated

    def read_stats(self) -> Stats:
        """The counters now."""
        counts = {item.name: getattr(self.counters, item.name) for item in fields(Counters)}
        counts |= {f"{item.name}_blocks": getattr(self.block_counters, item.name) for item in fields(BlockCounters)}
        holds = self.lock.read() if isinstance(self.lock, MeasuredLock) else {}
        return Stats(**counts, evicted_blocks=self.design.evicted, lock_holds=holds)

    def note_copies(self, request: Request) -> None:
        """The unfinished copies of a request have changed."""
        if request.pending or request.given_up_copies:
            self.copying.add(request)
        else:
            self.copying.discard(request)

    def books(self) -> Books:
        """Where the blocks are now."""
        free, idle, quarantined = self.pool.free, self.design.idle, self.pool.quarantined
        return Books(free, idle, self.pool.capacity - free - idle - quarantined, quarantined)

    def check(self) -> None:
        """Assert every invariant: of the structure, of the pool, and of who owns each block."""
        self.design.check()
        owned = list(self.design.blocks())
        private: dict[int, int] = {}
        for request in self.live:
            for block in request.private_blocks():
                private[block] = private.get(block, 0) + 1
        for request in self.live | self.quarantine:
            for block in request.claimed_sources():
                private[block] = private.get(block, 0) + 1
            for block in request.quarantined_blocks():
                private[block] = private.get(block, 0) + 1
        for block, claims in private.items():
            if claims > 1 and not self.pool.shared(block):
                raise InvariantError(f"block {block} is in {claims} tables, its count says one")
        self.pool.check([*owned, *private])
        books = self.books()
        if min(books.free, books.idle, books.pinned, books.quarantined) < 0:
            raise InvariantError(f"the books hold a negative count: {books}")
        stats = self.counters
        if not (0 <= stats.hits <= stats.queries and 0 <= stats.cached_tokens <= stats.prompt_tokens):
            raise InvariantError(f"the meters contradict each other: {stats}")


def make_core(
    design: str,
    block_size: int,
    capacity: int,
    eviction: str | Policy | None,
    clock: Callable[[], float],
    options: dict[str, Any],
) -> Core:
    """Build the shared state; raises `OptionError` for a name or value that does not exist."""
    known = DESIGNS | BASELINES
    if not isinstance(design, str) or design not in known:
        raise OptionError(f"design is {design!r}: expected one of {', '.join(known)}")
    block_size = whole_number(block_size, "block_size", least=1)
    if not callable(clock):
        raise OptionError(f"clock is {clock!r}: expected a function that returns seconds")
    kind = known[design]
    read = read_options(design, kind.defaults, kind.can, options)
    pool = BlockPool(capacity)
    journal = Journal(read.event_buffer, Removals(read.removals, clock)) if read.events else None
    built = kind(block_size, pool, read, kind.default_eviction if eviction is None else eviction, journal, clock)
    lock: CacheLock = MeasuredLock() if read.lock_times else threading.RLock()
    return Core(built, pool, read, journal, clock, lock)
