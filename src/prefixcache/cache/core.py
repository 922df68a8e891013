"""What all parts of one cache share: the design, the pool, the lock, and the counters."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from prefixcache.blocks.eviction import Policy
from prefixcache.blocks.pool import MAX_BLOCKS, BlockPool
from prefixcache.blocks.tier import Entry
from prefixcache.cache.books import BlockCounters, Books, Copy, Counters, Stats
from prefixcache.cache.journal import Journal
from prefixcache.cache.lock import CacheLock, MeasuredLock
from prefixcache.cache.removals import Removals
from prefixcache.cache.tiers import Spills, Tiers, read_tiers
from prefixcache.designs import BASELINES, DESIGNS, Design, Holding, Match, Options, Prompt, read_options
from prefixcache.designs.groups import Full, Groups, Kind, Source, Wanted, follow_tree, read_groups, tree_capacity
from prefixcache.errors import InvariantError, OptionError, RequestError, whole_number

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
    groups: Groups | None = None  # where not all layers attend to everything
    tiers: Tiers | None = None  # where a tier below keeps what leaves the device
    spills: set[Spills] = field(default_factory=set)

    @property
    def tree_group(self) -> int:
        """The attention group whose blocks are those of the design; -1 when they stand for no memory."""
        return self.groups.tree_group if self.groups is not None else 0

    def match(self, prompt: Prompt, limit: int) -> Match:
        """The longest cached prefix of the first `limit` tokens that every attention group can resume from."""
        return self.groups.match(prompt, limit) if self.groups is not None else self.find(prompt, limit)

    def find(self, prompt: Prompt, limit: int) -> Match:
        """The longest cached prefix of the first `limit` tokens, on the device and below it."""
        match = self.design.match(prompt, limit)
        if self.tiers is not None:
            self.tiers.continue_match(prompt, limit, match)
        return match

    def match_whole(self, prompt: Prompt, limit: int) -> Match:
        """The same at the end of a block; what lies inside the next one is not to be used."""
        if self.groups is not None:
            return self.groups.match(prompt, limit, whole=True)
        return self.design.match(prompt, limit)

    def stores(self, holding: Holding) -> bool:
        """Whether what this request computes may be published: asked for, and under the current weights."""
        return holding.store and holding.generation == self.generation

    def count_allocated(self, request: Request, index: int, blocks: Sequence[int]) -> None:
        """These blocks were allocated for a request, for its table from `index` on. O(blocks)."""
        count, new = len(blocks), self.pool.never_written(blocks)
        generated = count - min(max(-(-request.prompt_length // self.design.block_size) - index, 0), count)
        counts, all_counts = request.block_counters, self.block_counters
        counts.allocated += count
        counts.new += new
        counts.generated += generated
        all_counts.allocated += count
        all_counts.new += new
        all_counts.generated += generated

    def read_stats(self) -> Stats:
        """The counters now."""
        counts = {item.name: getattr(self.counters, item.name) for item in fields(Counters)}
        counts |= {f"{item.name}_blocks": getattr(self.block_counters, item.name) for item in fields(BlockCounters)}
        holds = self.lock.read() if isinstance(self.lock, MeasuredLock) else {}
        if self.tiers is not None:
            counts |= {"spilled_blocks": self.tiers.spilled, "loaded_blocks": self.tiers.loaded}
        return Stats(**counts, evicted_blocks=self.design.evicted, lock_holds=holds)

    def require_no_copies(self, request: Request) -> None:
        """Raises `RequestError` where more blocks could add copies to those that the caller may be making just now."""
        if self.tiers is not None and request.pending:
            raise RequestError(f"{len(request.pending)} copies are pending; do them, then copied(), before more blocks")

    def note_copies(self, request: Request) -> None:
        """The unfinished copies of a request have changed."""
        if request.pending or request.given_up_copies:
            self.copying.add(request)
        else:
            self.copying.discard(request)

    def await_copies(self, request: Request, wanted: Iterable[tuple[int, Wanted]]) -> None:
        """The request has to make these copies before it goes on: (group, copy)."""
        for group, copy in wanted:
            request.pending.append((Copy(copy.source.block, copy.target, copy.tokens, group), copy.source))
            self.counters.copied_blocks += 1
        self.note_copies(request)

    def await_tree_copy(self, request: Request, copy: Copy, handle: Any) -> None:
        """As `await_copies`, for blocks of the tree; without memory behind them there is nothing to copy."""
        if copy.group < 0:
            self.drop_source(copy, handle)
            return
        request.pending.append((copy, handle))
        self.note_copies(request)
        self.counters.copied_blocks += 1

    def drop_source(self, copy: Copy, handle: Any, done: bool = False) -> None:
        """A copy is over, done or not: its source is released."""
        if isinstance(handle, Source):
            handle.side.let_go(handle)
        elif isinstance(handle, Entry):
            assert self.tiers is not None
            self.tiers.over(handle, done)
        elif handle is None:
            self.pool.give((copy.source,))
        else:
            self.design.drop(handle)

    def books(self, group: int | None = None) -> Books:
        """Where the blocks of the device are now; of full attention, or of the first group, when none is named."""
        pool, idle = self.pool, self.design.idle
        if self.groups is not None:
            side = self.groups.side(self.groups.lead if group is None else group)
            if side is not None:
                pool, idle = side.values.pool, side.values.idle
        free, quarantined = pool.free, pool.quarantined
        return Books(free, idle, pool.capacity - free - idle - quarantined, quarantined)

    def all_books(self) -> list[Books]:
        """The books of every group."""
        return [self.books(group) for group in range(len(self.groups.kinds))] if self.groups else [self.books()]

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
        for spills in self.spills:
            private |= dict.fromkeys(spills.blocks, 1)
        for block, claims in private.items():
            if claims > 1 and not self.pool.shared(block):
                raise InvariantError(f"block {block} is in {claims} tables, its count says one")
        self.pool.check([*owned, *private])
        if self.tiers is not None:
            self.tiers.check(set(self.pool.free_list))
        if self.groups is not None:
            self.groups.check({own for request in self.live | self.quarantine for own in request.private_in_groups()})
        for books in self.all_books():
            if min(books.free, books.idle, books.pinned, books.quarantined) < 0:
                raise InvariantError(f"the books hold a negative count: {books}")
        stats = self.counters
        if not (0 <= stats.hits <= stats.queries and 0 <= stats.cached_tokens <= stats.prompt_tokens):
            raise InvariantError(f"the meters contradict each other: {stats}")


def make_core(
    design: str,
    block_size: int,
    capacity: int | Sequence[int],
    groups: Sequence[Any] | None,
    tiers: Mapping[str, int] | None,
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
    attention = (Full(),) if groups is None else read_groups(groups, block_size)
    capacities = _read_capacities(capacity, attention)
    pool = BlockPool(tree_capacity(attention, capacities))
    tree_group = attention.index(Full()) if Full() in attention else -1
    journal = Journal(read.event_buffer, Removals(read.removals, clock), tree_group) if read.events else None
    policy = kind.default_eviction if eviction is None else eviction
    below = read_tiers(tiers, journal)
    if below is not None and attention != (Full(),):
        raise OptionError(
            "tiers: blocks of windows and recurrent states are not kept below the device: expected no groups"
        )
    following = follow_tree(journal, attention, block_size, read) if journal is not None else None
    listener = below if below is not None else journal if tree_group >= 0 else None
    built = kind(block_size, pool, read, policy, listener if following is None else following, clock)
    lock: CacheLock = MeasuredLock() if read.lock_times else threading.RLock()
    core = Core(built, pool, read, journal, clock, lock)
    if attention != (Full(),):
        core.groups = Groups(built, attention, capacities, journal if following is None else following)
    if below is not None:
        below.stand_below(built)
        core.tiers = below
    return core


def _read_capacities(capacity: int | Sequence[int], attention: Sequence[Kind]) -> list[int]:
    """Blocks of each group: as many for all, or one number for each."""
    if not isinstance(capacity, list | tuple):
        return [whole_number(capacity, "capacity", least=1, most=MAX_BLOCKS)] * len(attention)
    if len(capacity) != len(attention):
        raise OptionError(f"capacity has {len(capacity)} numbers: expected one for each of {len(attention)} groups")
    return [whole_number(n, f"capacity[{i}]", least=1, most=MAX_BLOCKS) for i, n in enumerate(capacity)]
