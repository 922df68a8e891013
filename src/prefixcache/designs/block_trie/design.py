"""block_trie: one node per block, children keyed by the full block key (TensorRT-LLM's C++ manager).

A block is found below its parent by all that it depends on: its tokens with their extra ids, the media over
them, and, through the root of its scope, adapter, salt and whether extra ids are used. Where the exact way
ends, the child that shares the longest beginning is reusable in part: its tokens are copied, or an unused
leaf is taken over and extended in place. The last, partial block of a request is stored when it closes.

    scope ──▶ [1 2 3 4] ─┬─▶ [5 6 7 8]
                         └─▶ [5 9]              1 2 3 4 5 6 0: a whole block, then two tokens of [5 6 7 8]
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from prefixcache.blocks.retention import DEFAULT_PRIORITY
from prefixcache.designs.base import Design, Holding, Lower, Match, Partial, Prompt
from prefixcache.designs.block_trie.inside import Source, last_block, look_beside
from prefixcache.designs.block_trie.kept import Kept, KeptTables
from prefixcache.designs.block_trie.queues import PriorityQueues
from prefixcache.designs.block_trie.run import Run
from prefixcache.designs.block_trie.store import Store, cut_prompt
from prefixcache.designs.block_trie.tree import Trie
from prefixcache.designs.block_trie.uses import Uses
from prefixcache.designs.outline import OutlineNode, outline_of
from prefixcache.errors import InvariantError, OptionError
from prefixcache.keys.chain import ChainHash
from prefixcache.keys.tokens import TOKEN_BYTES


class BlockTrieDesign(Design):
    """See the module. Costs: a match is one dict lookup per branch on the way and one memcmp of its tokens;
    a hit inside a block is found in O(block_size) among any number of children.
    """

    name = "block_trie"
    defaults = {"partial": "copy"}  # noqa: RUF012
    can = {  # noqa: RUF012
        "visibility": ("computed",),
        "evict_unit": ("tail",),
        "child_hash": (None,),
        "lookahead_by": ("drop",),
        "evict_from": ("leaves", "anywhere"),
        "media": ("token", "block"),
        "tails": ("longest", "all"),
    }
    default_eviction = "priority"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        options = self.options
        self._partial = options.partial != "off" and self.block_size > 1
        self._keeps = options.duplicates == "keep"
        if self._keeps != (options.evict_from == "anywhere"):
            raise OptionError(
                f"block_trie cannot honour duplicates={options.duplicates!r} with evict_from={options.evict_from!r}: "
                "expected 'keep' with 'anywhere', or 'give_back' with 'leaves' (a block that nobody uses could "
                "not leave while a later request keeps its own copy of it and has more behind it)"
            )
        if self._keeps and self.eviction != "priority":
            raise OptionError(f"eviction is {self.eviction!r}: with evict_from='anywhere', expected 'priority'")
        self._chain = ChainHash(options.hash, self.block_size)
        self.trusted_keys = self._chain.trusted
        self._trie = Trie(self.block_size, self._partial, options.media == "block", options.child_limit)
        self._uses = Uses(self._trie, self.eviction, self._keeps, self.clock)
        self._store = Store(self._trie, self._uses, self.pool, self._chain, self.events, options.tails == "longest")
        self._kept = KeptTables(self._trie, self._uses, self._store, self.pool)
        self._queues = PriorityQueues(self._uses, self._store, self.pool, self.block_size)
        if self._keeps:
            self.pool.free_list = self._queues

    # -- lookup -----------------------------------------------------------------------------------

    def match(self, prompt: Prompt, limit: int) -> Match:
        size = self.block_size
        root = self._trie.roots.get(prompt.root)
        match = Match(0, array("i"), 0, None)
        if root is None or limit <= 0:
            return match
        path, inside, common = self._trie.walk(root, prompt.tokens, prompt.extras, 0, limit - limit % size)
        blocks = array("i")
        node: Run = root
        for run in path:
            if not run.blocks:  # a hole ends the way: what lies beside it is not tried
                return self._matched(match, blocks, node, node.end)
            blocks.extend(run.blocks)
            if not run.pins:
                match.idle += len(run.blocks)
            node = run
        self._matched(match, blocks, node, node.end)
        if inside is not None:
            if not inside.blocks:
                return match
            whole = common // size
            blocks.extend(inside.blocks[:whole])
            if not inside.pins:
                match.idle += whole
            self._matched(match, blocks, inside, node.end + common)
        if self._partial and match.tokens < limit:
            match.partial = self._best_partial(prompt, match, limit)
        return match

    def _matched(self, match: Match, blocks: array[int], run: Run, end: int) -> Match:
        match.tokens, match.blocks, match.anchor = end, blocks, (run, end)
        return match

    def _best_partial(self, prompt: Prompt, match: Match, limit: int) -> Partial | None:
        """The best hit inside the block behind the whole blocks of a match."""
        run, at = match.anchor
        tokens, extras = cut_prompt(prompt, at, min(at + self.block_size, limit))
        found = self._trie.partial(run, at, tokens, extras)
        if found is None:
            return None
        run, end, common = found
        idle = not run.pins
        last = end == run.end and not run.children
        return Partial(
            run.blocks[(end - 1 - run.start) // self.block_size], common, idle, idle and last, Source(run, end)
        )

    def beside(self, prompt: Prompt, limit: int, least: int, ends: bool) -> Iterator[tuple[int, Iterator[Partial]]]:
        return look_beside(self._trie, prompt, limit, least, ends) if self._partial else iter(())

    def divisible(self, partial: Partial) -> bool:
        return not self._trie.whole_only(partial.handle.carried(self.block_size))

    def last_block(self, match: Match, tokens: int) -> Partial | None:
        return last_block(self._trie, match, tokens) if self._partial else None

    def unfilled_end(self, prompt: Prompt, length: int) -> int:
        partial = self.match(prompt, length).partial
        return partial.source if partial is not None and partial.handle.end == length else -1

    # -- ownership --------------------------------------------------------------------------------

    def claim(self, holding: Holding, match: Match) -> None:
        if not match.tokens:
            return
        run = self._uses.boundary(*match.anchor)
        for passed in self._uses.path(run):
            self._uses.pin(passed)
            passed.hits += 1
        self._retain(holding, run)
        holding.anchor = Kept() if self._keeps else run
        holding.held = len(match.blocks)
        holding.table.extend(match.blocks)

    def _retain(self, holding: Holding, run: Run) -> None:
        """A full match overwrites the priority of blocks if it asks for one, and their time to live in any case."""
        retention, prompt_length, size = holding.retention, holding.prompt_length, self.block_size
        if retention.ranges:
            for edge in retention.edges(prompt_length):
                if 0 < (at := -(-edge // size) * size) < run.end:
                    self._uses.boundary(run, at)
        for passed in self._uses.path(run):
            priority, ttl = retention.at(passed.start, prompt_length)
            self._overwrite(passed, priority, ttl)

    @staticmethod
    def _overwrite(run: Run, priority: int | None, ttl: float | None) -> None:
        if priority is not None:
            run.priority = priority
        run.ttl = ttl

    def publish(self, holding: Holding, length: int, tail: bool = False) -> list[tuple[int, int, int]]:
        """See the base. The way is walked from where the request stands:

        [held ........ reached)            [reached ........ end)         [end .. length)
         the trie has it: own blocks go     new runs: the trie owns        with `tail` a partial block,
         back, the table moves there        these blocks from now on       unless a sibling covers it;
         (kept tables: see `kept`)                                         else private
        """
        tail = tail and self._partial
        if self._keeps:
            self.kept += self._kept.publish(holding, length, tail)
            return []
        size = self.block_size
        reached, end = holding.held * size, length - length % size
        if end < reached or (end == reached and not (tail and end < length)):
            return []
        self._uses.begin()
        prompt, moves = holding.prompt, list[tuple[int, int, int]]()
        node: Run = holding.anchor if holding.anchor is not None else self._trie.root(prompt)
        for run in self._uses.follow(node, prompt, reached, end):
            self._move_onto(holding, run, reached // size, moves)
            reached, node = run.end, run
        if reached < end:
            node = self._store.append(holding, node, reached, end)
        holding.held = end // size
        if tail and end < length:
            node = self._store.append_tail(holding, node, end, length) or node
        holding.anchor = node if node.parent is not None else None
        return moves

    def _move_onto(self, holding: Holding, run: Run, index: int, moves: list[tuple[int, int, int]]) -> None:
        """Swap the table's own blocks for the run's, from this index on."""
        own = holding.table[index : index + len(run.blocks)]
        moves.extend((i, mine, theirs) for i, (mine, theirs) in enumerate(zip(own, run.blocks, strict=True), index))
        holding.table[index : index + len(own)] = run.blocks
        self.pool.give(own)
        self._uses.pin(run)

    def cut(self, holding: Holding, blocks: int) -> None:
        if blocks >= holding.held:
            return
        self._uses.begin()
        if self._keeps:
            self._kept.cut(holding, blocks)
        else:
            holding.anchor = self._unpin_behind(holding.anchor, blocks * self.block_size)
        holding.held = blocks

    def release(self, holding: Holding) -> None:
        self._uses.begin()
        if self._keeps:
            self._kept.cut(holding, 0)
        elif holding.anchor is not None:
            self._unpin_behind(holding.anchor, 0)
        holding.anchor, holding.held = None, 0

    def share(self, holding: Holding, other: Holding, blocks: int) -> None:
        if not blocks:
            return
        if self._keeps:
            self._kept.share(holding, other, blocks)
            return
        run = self._uses.boundary(holding.anchor, blocks * self.block_size)
        self._pin_path(run)
        other.anchor, other.held = run, blocks
        other.table.extend(holding.table[:blocks])

    def idle_blocks(self, match: Match) -> Sequence[int]:
        if not self._keeps or not match.idle:
            return super().idle_blocks(match)
        run, end = match.anchor
        idle = array("i")
        for passed in self._uses.path(run):
            if not passed.pins:
                idle.extend(match.blocks[passed.start // self.block_size : min(passed.end, end) // self.block_size])
        return idle

    def handle(self, holding: Holding, index: int) -> Source:
        run = self._kept.run_at(holding, index) if self._keeps else holding.anchor
        assert run is not None
        return Source(run, (index + 1) * self.block_size)

    def hold(self, handle: Source) -> None:
        run = handle.run = self._uses.boundary(handle.run, handle.end)
        if not self._keeps:
            self._pin_path(run)
            return
        # The original copies at once and lets go of the source: that is its place in the order, whenever the
        # copy is really made. A run has one place, so the block becomes one of its own.
        if len(run.blocks) > 1:
            self._uses.split(run, run.length - self.block_size)
        self._uses.pin(run)
        self._uses.begin()
        self._uses.touch(run)

    def drop(self, handle: Source) -> None:
        if self._keeps:
            self._uses.drop(handle.run)
        else:
            self._uses.begin()
            self._unpin_behind(handle.run, 0)

    def claim_source(self, holding: Holding, partial: Partial) -> None:
        self.hold(partial.handle)
        if self._keeps and partial.idle:
            at = holding.held * self.block_size
            self._overwrite(partial.handle.run, *holding.retention.at(at, holding.prompt_length))

    def inherit(self, partial: Partial, block: int) -> None:
        if self._keeps:  # the original gives a copy the terms of its source
            run: Run = partial.handle.run
            self._store.terms.set(block, (run.priority, run.ttl))

    def take(self, holding: Holding, partial: Partial) -> None:
        run: Run = partial.handle.run
        priority, ttl = holding.retention.at(holding.held * self.block_size, holding.prompt_length)
        self._store.terms.set(partial.source, (run.priority if priority is None else priority, ttl))
        holding.table.extend(self._store.strip(run, 1, leaves_hole=self._keeps))

    def _pin_path(self, run: Run) -> None:
        for above in self._uses.path(run):
            self._uses.pin(above)

    def _unpin_behind(self, run: Run, end: int) -> Run | None:
        """Let go of the runs of this path behind token `end`, tail first; the last one that is kept."""
        last = self._uses.boundary(run, end) if end else None
        node: Run | None = run
        while node is not None and node is not last and node.parent is not None:
            above = node.parent
            self._uses.unpin(node)
            node = above
        return last

    # -- room -------------------------------------------------------------------------------------

    @property
    def idle(self) -> int:
        return self._uses.idle

    def allocate(self, holding: Holding, index: int, blocks: int) -> array[int]:
        if self._keeps:
            new, evicted = self._queues.draw(blocks)
            self.evicted += evicted
        else:
            new = super().allocate(holding, index, blocks)
        retention, prompt_length, terms = holding.retention, holding.prompt_length, self._store.terms
        if retention.ranges or retention.decode_priority is not None or retention.decode_ttl is not None:
            for at, block in enumerate(new, index):
                priority, ttl = retention.at(at * self.block_size, prompt_length)
                terms.set(block, (DEFAULT_PRIORITY if priority is None else priority, ttl))
        else:
            terms.forget(new)
        return new

    def _evict(self, blocks: int) -> int:
        if self._keeps:
            return self._queues.evict(blocks)
        gone = 0
        while gone < blocks and self._uses.idle:
            run = self._uses.items.peek()
            assert isinstance(run, Run)
            self.pool.give(taken := self._store.evict(run, min(blocks - gone, len(run.blocks))))
            gone += len(taken)
        return gone

    def owns(self, holding: Holding, index: int) -> bool:
        if not self._keeps:
            return super().owns(holding, index)
        return self._kept.run_at(holding, index) is not None

    def private(self, holding: Holding, start: int = 0) -> Sequence[int]:
        if not self._keeps:
            return super().private(holding, start)
        return [holding.table[index] for index in self._kept.private(holding, start)]

    def shrink(self, holding: Holding, held: int, blocks: int) -> None:
        if not self._keeps:
            super().shrink(holding, held, blocks)
            return
        private = self._kept.private(holding, blocks)
        self._uses.begin()
        self.cut(holding, held)
        self._queues.free(holding, private)

    def let_go(self, holding: Holding, in_flight: bool) -> array[int]:
        if not self._keeps:
            return super().let_go(holding, in_flight)
        private = self._kept.private(holding, 0)
        self.release(holding)
        if in_flight:
            return array("i", (holding.table[index] for index in private))
        self._queues.free(holding, private)
        return array("i")

    def demote_to(self, lower: Lower) -> None:
        self.lower = self._store.lower = lower

    def keys_behind(self, prompt: Prompt, match: Match) -> Iterator[bytes]:
        run, end = match.anchor or (None, 0)
        before = run.key_before((end - run.start) // self.block_size) if run is not None else None
        return self._chain.behind(prompt.root, before, prompt.tokens, match.tokens, prompt.extras)

    # -- for explanations ---------------------------------------------------------------------------

    def agreeing(self, prompt: Prompt, limit: int) -> int:
        root = self._trie.roots.get(prompt.root)
        if root is None or limit <= 0:
            return 0
        path, inside, common = self._trie.walk(root, prompt.tokens, prompt.extras, 0, limit - limit % self.block_size)
        run = path[-1] if path else root
        at = run.end + common
        tokens, extras = cut_prompt(prompt, at, min(at + self.block_size, limit))
        places = [(inside, common)] if inside is not None else [(child, 0) for child in run.children.values()]
        return at + max((child.common(skip, tokens, extras) for child, skip in places), default=0)

    def scopes(self) -> Iterable[bytes]:
        return self._trie.roots

    def keys_at(self, prompt: Prompt, start: int) -> list[bytes]:
        root = self._chain.root(prompt.root)
        before = self._chain.blocks(root, prompt.tokens, 0, start // self.block_size, prompt.extras)
        parent = before[-1] if before else root
        end = min(len(prompt.tokens) // TOKEN_BYTES, start + self.block_size)
        return [self._chain.block(parent, *cut_prompt(prompt, start, stop)) for stop in range(end, start, -1)]

    def outline(self) -> list[OutlineNode]:
        return outline_of((r, r.parent, r.tokens, r.blocks, r.pins, r.keys) for r in self._trie.runs())

    # -- life of the index --------------------------------------------------------------------------

    def expire(self) -> None:
        self._uses.expire()

    def retire(self) -> None:
        self._store.report_retired()
        self._uses.items.retire([run for run in self._trie.runs() if run.blocks])

    def clear(self) -> None:
        runs = [run for run in self._trie.runs() if run.blocks]
        self._trie.roots.clear()
        self._uses.begin()
        for run in runs:
            self._uses.leave(run)
            self._uses.idle -= len(run.blocks)
            run.parent = None
            self.pool.give(run.blocks)

    def blocks(self) -> Iterator[int]:
        for run in self._trie.runs():
            yield from run.blocks

    def unreachable(self) -> Iterator[int]:
        found = set(self._store.reachable())
        for run in self._trie.runs():
            if run not in found:
                yield from run.blocks

    def check(self) -> None:
        self._trie.check()
        items = self._uses.items
        idle = 0
        for run in self._trie.runs():
            parent = run.parent
            assert parent is not None
            if run.pins < 0:
                raise InvariantError(f"{run!r} has a negative pin count")
            if not self._keeps:
                if not run.blocks:
                    raise InvariantError(f"{run!r} is a hole where only leaves may leave")
                if parent.parent is not None and parent.pins < sum(child.pins for child in parent.children.values()):
                    raise InvariantError(f"{parent!r} has fewer pins than its children together")
            if self.events is not None and len(run.keys) != -(-run.length // self.block_size):
                raise InvariantError(f"{run!r} has {len(run.keys)} keys")
            if not run.pins:
                idle += len(run.blocks)
            if (run in items) != self._uses.queued(run):
                raise InvariantError(f"{run!r} is {'' if run in items else 'not '}queued for eviction")
            if any(block in self._store.terms for block in run.blocks):
                raise InvariantError(f"blocks of {run!r} still ask for terms of their own")
        if idle != self._uses.idle:
            raise InvariantError(f"{idle} blocks are idle, the book says {self._uses.idle}")
        if self._keeps:
            self._queues.check()
