"""Idle runs under any policy: the leaves are ranked by their last block, and lose one block at a time.

A run is a leaf when it is idle and no cached key continues its last one, or its last key has another copy
(then what hangs on the key stays reachable without this block).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import count

from prefixcache.blocks.eviction import Facts, IdleItems, Policy, RankedQueue
from prefixcache.blocks.retention import DEFAULT_PRIORITY
from prefixcache.designs.base import Holding
from prefixcache.designs.hash_chain.index import Index
from prefixcache.designs.hash_chain.run import Path, Run
from prefixcache.errors import InvariantError


@dataclass(slots=True)
class Use:
    """What is known of the blocks of a run. Attributes as in `Facts`; `until`: when the priority ends."""

    created: int
    last_access: int
    history: int = 0
    step: int = 0
    hits: int = 1
    priority: int = DEFAULT_PRIORITY
    until: float | None = None


class LeafRanks:
    """See the module. O(log leaves) per victim, O(1) per block stored and per run used.

    Args:
        index: the cached blocks.
        policy: what ranks the leaves.
        block_size: tokens per block.
    """

    whole = False

    def __init__(self, index: Index, policy: Policy, block_size: int) -> None:
        self._index = index
        self._block_size = block_size
        self._uses = policy.uses
        self._items: IdleItems[Run] = IdleItems(RankedQueue(policy, self))
        self._children: dict[bytes, int] = {}  # by key, how many cached keys continue it; never 0
        self._deadlines: list[tuple[float, int, Run]] = []
        self._tickets = count()
        self._tick = 0
        self._now = 0.0

    def __iter__(self) -> Iterator[Run]:
        return iter(self._items)

    def facts(self, item: Run) -> Facts:
        """What the policy may know of the last block of a run."""
        use = _use(item)
        size = self._block_size
        depth = (item.start + len(item.keys)) * size
        return Facts(
            use.last_access,
            use.created,
            use.hits,
            use.priority,
            depth,
            size,
            max(use.history, depth),
            use.step,
            item.blocks[-1],
        )

    def must_have(self, run: Run) -> bool:
        """Whether an idle run must be in the order: leaves are."""
        return run.keys[-1] not in self._children or run.keys[-1] in self._index.copies

    def first(self) -> Run | None:
        """The run whose last block leaves next."""
        return self._items.peek() if self._items else None

    def add(self, run: Run) -> None:
        """The run became idle; it is queued if it is a leaf."""
        if run not in self._items and self.must_have(run):
            self._items.add(run)

    def discard(self, run: Run) -> None:
        """The run is in use again, or gone."""
        self._items.discard(run)

    def cut(self, upper: Run, lower: Run) -> None:
        """A run was cut into these; the lower one is the run as it was known."""
        use = upper.use = replace(_use(lower))
        if upper.stale:
            self._items.stale.add(upper)
        if use.until is not None:
            heappush(self._deadlines, (use.until, next(self._tickets), upper))
        if upper.users is None:
            self.add(upper)

    def retire(self, runs: Iterable[Run]) -> None:
        """All these runs, idle or not, are stale from now on. O(runs)."""
        runs = list(runs)
        for run in runs:
            run.stale = True
        self._items.retire(runs)

    # -- what happens to blocks -----------------------------------------------------------------------

    def stored(self, run: Run, path: Path, holding: Holding, known: int) -> None:
        """A new run, in use; the first `known` of its blocks are further copies of their keys."""
        self._tick += 1
        run.use = Use(self._tick, self._tick)
        before = run.before
        for at, key in enumerate(run.keys):
            if at < known:
                self._requeue(key)
            elif before is not None:
                self._children[before] = self._children.get(before, 0) + 1
            before = key
        self._note(path, [run], holding)

    def passed(self, runs: list[Run], path: Path, holding: Holding) -> None:
        """A request uses these runs of its path. They are in use."""
        for run in runs:
            _use(run).hits += 1
        self._note(path, runs, holding)

    def _note(self, path: Path, runs: list[Run], holding: Holding) -> None:
        """The last request that uses a block and asks for a priority says how long the block stays."""
        if "history" in self._uses:
            last = path.runs[-1]
            for run in path.runs:
                use = _use(run)
                use.history = max(use.history, (last.start + len(last.keys)) * self._block_size)
        for run in runs if _asks(holding) else ():
            priority, ttl = holding.retention.at(run.start * self._block_size, holding.prompt_length)
            if priority is None:
                continue
            use = _use(run)
            use.priority, use.until = priority, None
            if ttl is not None:
                use.until = self._now + ttl
                heappush(self._deadlines, (use.until, next(self._tickets), run))

    def spans(self, holding: Holding, start: int, end: int) -> list[int]:
        """Where the blocks [start, end) of a holding must be cut so that each part has one priority."""
        if not _asks(holding):
            return [end]
        size, retention, length = self._block_size, holding.retention, holding.prompt_length
        terms = [retention.at(at * size, length) for at in range(start, end)]
        return [at for at in range(start + 1, end) if terms[at - start] != terms[at - start - 1]] + [end]

    def released(self, runs: list[Run], step: int) -> None:
        """A request lets go of these runs, last scheduled in this step."""
        self._tick += 1
        for run in runs:
            use = _use(run)
            use.last_access, use.step = self._tick, step

    def expire(self, now: float) -> None:
        """Priorities whose time is over fall back to the default. O(log runs) each."""
        self._now = now
        while self._deadlines and self._deadlines[0][0] <= now:
            until, _, run = heappop(self._deadlines)
            use = _use(run)
            if use.until == until:
                use.priority, use.until = DEFAULT_PRIORITY, None
                if run.keys:
                    self._items.rerank(run)

    def trimmed(self, run: Run, key: bytes, gone: bool) -> None:
        """The last block of the first run was evicted, and with it its key, unless another block holds that."""
        before = run.keys[-1] if run.keys else run.before
        if not run.keys:
            self._items.discard(run)
            self._items.forget(run)
        elif self.must_have(run):
            self._items.rerank(run)
        else:
            self._items.discard(run)
        if not gone:
            self._lose_copy(key)
        elif before is not None:
            self._lose_child(before)

    def _lose_copy(self, key: bytes) -> None:
        """Where one copy is left, it is no leaf because of the others any more."""
        for run in self._index.copies_of(key):
            if run.keys[-1] == key and not self.must_have(run):
                self._items.discard(run)

    def _lose_child(self, key: bytes) -> None:
        left = self._children[key] - 1
        if left:
            self._children[key] = left
        else:
            del self._children[key]
            self._requeue(key)

    def _requeue(self, key: bytes) -> None:
        """Queue the idle runs that end with this key and have become leaves."""
        for run in self._index.copies_of(key):
            if run.users is None and run.keys[-1] == key:
                self.add(run)

    def check(self) -> None:
        """Assert that the children are counted right."""
        children: dict[bytes, set[bytes]] = {}
        for run in self._index:
            before = run.before
            for key in run.keys:
                if before is not None:
                    children.setdefault(before, set()).add(key)
                before = key
        if self._children != {key: len(found) for key, found in children.items()}:
            raise InvariantError("the cached children of a key are counted wrong")


def _use(run: Run) -> Use:
    assert run.use is not None
    return run.use


def _asks(holding: Holding) -> bool:
    """Whether the holding asks for any priority."""
    return bool(holding.retention.ranges) or holding.retention.decode_priority is not None
