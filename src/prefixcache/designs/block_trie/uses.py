"""Who uses which run, and in which order the unused ones leave."""

from __future__ import annotations

from collections.abc import Callable

from prefixcache.blocks.eviction import Facts, IdleItems, Policy, RankedQueue, idle_items, read_policy
from prefixcache.blocks.eviction.deadlines import Deadlines
from prefixcache.blocks.retention import DEFAULT_PRIORITY
from prefixcache.designs.base import Prompt
from prefixcache.designs.block_trie.queues import QUEUES, Empty
from prefixcache.designs.block_trie.run import Run
from prefixcache.designs.block_trie.tree import Trie
from prefixcache.errors import InvariantError


class Uses:
    """Pins, the order of what is idle, and the times to live.

    Args:
        trie: whose runs these are.
        eviction: the policy that ranks what may go.
        anywhere: every idle run may go, and empty blocks wait in the same order; else leaves alone.
        clock: seconds.

    Attributes:
        items: what waits, in order.
        idle: cached blocks that nobody uses.
        tick, now: number and time of the latest release.
    """

    def __init__(self, trie: Trie, eviction: str | Policy, anywhere: bool, clock: Callable[[], float]) -> None:
        self._trie = trie
        self._clock = clock
        self._anywhere = anywhere
        self._timed = "priority" in read_policy(eviction).uses
        if anywhere:
            self.items: IdleItems[Run | Empty] = IdleItems(RankedQueue(QUEUES, self, takes_all=True))
        else:
            self.items = idle_items(eviction, self)
        self._all = self.items.takes_all
        self._deadlines: Deadlines[Run | Empty] = Deadlines()
        self.idle = 0
        self.tick = 0
        self.now = 0.0

    def begin(self) -> None:
        """What is let go of from now on was let go of together, later than all before."""
        self.tick += 1
        self.now = self._clock()

    # -- pins ---------------------------------------------------------------------------------------

    def pin(self, run: Run) -> None:
        """One more user of the run."""
        if not run.pins:
            self.idle -= len(run.blocks)
            self.items.discard(run)
            self._deadlines.discard(run)
        run.pins += 1

    def unpin(self, run: Run) -> None:
        """One user less, now."""
        self.touch(run)
        self.drop(run)

    def touch(self, run: Run) -> None:
        """The run counts as let go of now, even if that is done later."""
        run.last_access, run.since = self.tick, self.now

    def drop(self, run: Run) -> None:
        """One user less; recency stays. What nobody uses any more becomes idle."""
        if run.pins <= 0:
            raise InvariantError(f"{run!r} is unpinned more often than pinned")
        run.pins -= 1
        if not run.pins:
            self.idle += len(run.blocks)
            self.wait(run)

    def wait(self, item: Run | Empty) -> None:
        """The item is idle: it may go, unless something hangs on it and leaves alone may."""
        if self._all or isinstance(item, Empty) or not item.children:
            self.items.add(item)
        if item.ttl is not None and self._timed and item.priority != DEFAULT_PRIORITY:
            self._deadlines.add(item, item.since + item.ttl, item.last_access, item.end)

    def shortened(self, run: Run) -> None:
        """The idle run ends earlier. In the priority queues what was cut off keeps its place, before the rest."""
        if not self._anywhere:
            return
        self.items.rerank(run)
        if run in self._deadlines:
            assert run.ttl is not None
            self._deadlines.add(run, run.since + run.ttl, run.last_access, run.end)

    def leave(self, item: Run | Empty) -> None:
        """The idle item is gone."""
        self.items.discard(item)
        self._deadlines.discard(item)
        self.items.forget(item)

    # -- runs ---------------------------------------------------------------------------------------

    def split(self, run: Run, at: int) -> Run:
        """Cut a run behind its first `at` tokens; the upper part, which waits right behind the lower one."""
        upper = self._trie.split(run, at)
        if run in self.items.stale:
            self.items.stale.add(upper)
        if upper.blocks and not upper.pins:
            if self._all:
                self.items.add(upper)
            if run in self._deadlines:
                assert run.ttl is not None
                self._deadlines.add(upper, run.since + run.ttl, run.last_access, upper.end)
        return upper

    def boundary(self, run: Run, end: int) -> Run:
        """The run of this path that ends at token `end`, split off when `end` lies inside one."""
        while run.parent is not None and run.parent.end >= end:
            run = run.parent
        if run.end > end:
            run = self.split(run, end - run.start)
        return run

    def follow(self, node: Run, prompt: Prompt, start: int, end: int) -> list[Run]:
        """The runs behind `node` that hold the prompt's tokens [start, end), split where the prompt leaves one."""
        path, inside, common = self._trie.walk(node, prompt.tokens, prompt.extras, start, end)
        if inside is not None:
            path.append(self.split(inside, common))
        return path

    @staticmethod
    def path(run: Run) -> list[Run]:
        """The runs from the beginning of the prompt to this one."""
        path = []
        node: Run | None = run
        while node is not None and node.parent is not None:
            path.append(node)
            node = node.parent
        path.reverse()
        return path

    # -- order --------------------------------------------------------------------------------------

    def facts(self, item: Run | Empty) -> Facts:
        """What an eviction policy may know of an item."""
        if isinstance(item, Empty):
            return Facts(item.last_access, 0, 0, item.priority, item.end, 0, item.end)
        return Facts(item.last_access, item.created, item.hits, item.priority, item.end, item.length, item.end)

    def expire(self) -> None:
        """Items whose time is over fall to the default priority.

        Their recency stays; in the priority queues they go to the end of the default one, in the order of expiry.
        """
        if not len(self._deadlines):
            return
        for item in self._deadlines.due(self._clock()):
            item.priority = DEFAULT_PRIORITY
            if self._anywhere:
                self.tick += 1
                item.last_access = self.tick
            self.items.rerank(item)

    def queued(self, run: Run) -> bool:
        """Whether the run must be waiting."""
        return bool(run.blocks) and not run.pins and (self._all or not run.children)
