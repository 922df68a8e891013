"""block_trie: one node per block, children keyed by the full block key (TensorRT-LLM's C++ manager).

A block is found below its parent by all that it depends on: its tokens with their extra ids, the media over
them, and, through the root of its scope, adapter, salt and whether extra ids are used. Where the exact way
ends, the child that shares the longest beginning is reusable in part: its tokens are copied, or an unused
leaf is taken over and extended in place. The last, partial block of a request is stored when it closes.

    scope ──▶ [1 2 3 4] ─┬─▶ [5 6 7 8]
                         └─▶ [5 6]              1 2 3 4 5 6 9:  two whole tokens less than [5 6] and 9
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

from prefixcache.blocks.retention import DEFAULT_PRIORITY
from prefixcache.designs.base import Design, Holding, Match, Partial, Prompt
from prefixcache.designs.block_trie.kept import Kept, KeptTables
from prefixcache.designs.block_trie.queues import Empty, EmptyBlocks
from prefixcache.designs.block_trie.run import Run, key_of
from prefixcache.designs.block_trie.tree import Trie
from prefixcache.designs.block_trie.uses import Uses
from prefixcache.designs.outline import OutlineNode, outline_of
from prefixcache.errors import InvariantError, OptionError
from prefixcache.keys.chain import ChainHash
from prefixcache.keys.extras import Extras
from prefixcache.keys.tokens import TOKEN_BYTES

# A leaf that only its writer uses grows in place instead of getting a child per decoded block; beyond this
# many tokens a new leaf is begun, so that growing costs no more than copying this much.
_GROW_LIMIT = 2048

Terms = tuple[int, float | None]  # priority, time to live
_DEFAULT_TERMS: Terms = (DEFAULT_PRIORITY, None)


class Source:
    """A stored block that a request reuses in part: the one that ends at token `end`, in `run`.

    `run` is kept right while the block is held, whatever is split above or below.
    """

    __slots__ = ("end", "run")

    def __init__(self, run: Run, end: int) -> None:
        self.run = run
        self.end = end


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
        "evict_from": ("leaves", "anywhere"),
        "media": ("token", "block"),
        "tails": ("longest", "all"),
    }
    default_eviction = "priority"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        options = self.options
        self._partial = options.partial != "off" and self.block_size > 1
        self._longest = options.tails == "longest"
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
        self._trie = Trie(self.block_size, self._partial, options.media == "block", options.child_limit)
        self._uses = Uses(self._trie, self.eviction, self._keeps, self.clock)
        self._terms: dict[int, Terms] = {}  # what private blocks ask for, where it is not the default
        self._kept = KeptTables(self._trie, self._uses, self.pool)
        self._empty = EmptyBlocks(self)
        if self._keeps:
            self.pool.free_list = self._empty

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
        tokens, extras = self._cut(prompt, at, min(at + self.block_size, limit))
        found = self._trie.partial(run, at, tokens, extras)
        if found is None:
            return None
        run, end, common = found
        idle = not run.pins
        last = end == run.end and not run.children
        return Partial(
            run.blocks[(end - 1 - run.start) // self.block_size], common, idle, idle and last, Source(run, end)
        )

    def _cut(self, prompt: Prompt, start: int, end: int) -> tuple[bytes, Extras | None]:
        """The prompt's tokens [start, end) and what they carry."""
        extras = prompt.extras.cut(start, end) if prompt.extras is not None else None
        return bytes(prompt.tokens[start * TOKEN_BYTES : end * TOKEN_BYTES]), extras

    # -- ownership --------------------------------------------------------------------------------

    def claim(self, holding: Holding, match: Match) -> None:
        if not match.tokens:
            return
        uses = self._uses
        run = uses.boundary(*match.anchor)
        for passed in uses.path(run):
            uses.pin(passed)
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
         the trie has it: the table moves   new runs: the trie owns        with `tail` a partial block,
         there and own blocks go back, or   these blocks from now on       unless a sibling covers it;
         stay where they are (`keep`);                                     else private
         a hole is filled with own blocks
        """
        size = self.block_size
        if self._keeps and tail and length // size < holding.held and not self.owns(holding, length // size):
            holding.held = length // size  # went back inside an own copy: it is stored as what is left of it
        start = holding.held * size
        end = length - length % size  # behind `start` after going back, where only own copies are looked after
        tail = tail and self._partial and length > max(start, end)
        kept: Kept | None = holding.anchor if self._keeps else None
        if end <= start and not tail and not (kept is not None and kept.duplicates):
            return []
        self._uses.begin()
        prompt, moves = holding.prompt, list[tuple[int, int, int]]()
        node: Run | None = None if self._keeps else holding.anchor
        reached = start if node is not None else 0
        node = node or self._trie.roots.get(prompt.root)
        duplicates = 0
        for run in [] if node is None else self._found(node, prompt, reached, end):
            index = reached // size
            own = holding.table[index : run.end // size]
            if not run.blocks:
                if self.pool.any_shared(own):
                    break
                self._fill(run, own)
            elif self._keeps:
                duplicates += len(own) if run.blocks != own else 0
            else:
                self._move_onto(holding, run, index, own, moves)
            reached, node = run.end, run
        else:
            if reached < end and not self.pool.any_shared(holding.table[reached // size : holding.held]):
                node = self._append(holding, node or self._trie.root(prompt), reached, end)
                reached = end
        holding.held = max(holding.held, reached // size)
        if self._keeps:
            before = kept.duplicates if kept is not None else 0
            if end < start:
                duplicates = max(duplicates, before)
            self.kept += duplicates - before
            holding.anchor = Kept(duplicates)
        elif node is not None and node.parent is not None:
            holding.anchor = node
        if tail and reached == end:
            self._append_tail(holding, node or self._trie.root(prompt), end, length)
        return moves

    def _found(self, node: Run, prompt: Prompt, start: int, end: int) -> list[Run]:
        """The runs behind `node` that hold the prompt's tokens [start, end), split where the prompt leaves one."""
        path, inside, common = self._trie.walk(node, prompt.tokens, prompt.extras, start, end)
        if inside is not None:
            path.append(self._uses.split(inside, common))
        return path

    def _move_onto(
        self, holding: Holding, run: Run, index: int, own: array[int], moves: list[tuple[int, int, int]]
    ) -> None:
        """Swap the table's own blocks for the run's, from this index on."""
        moves.extend((i, mine, theirs) for i, (mine, theirs) in enumerate(zip(own, run.blocks, strict=True), index))
        holding.table[index : index + len(own)] = run.blocks
        self.pool.give(own)
        self._uses.pin(run)

    def _fill(self, hole: Run, own: array[int]) -> None:
        """The request's own blocks take the place of evicted ones; what lies behind them can be reached again."""
        self.pool.note_written(own)
        for terms, blocks in list(self._pieces(own)):
            run = hole
            if len(blocks) * self.block_size < hole.length:
                run = self._uses.split(hole, len(blocks) * self.block_size)
            run.blocks = blocks
            run.pins = 1
            run.priority, run.ttl = terms
            run.created = self._uses.tick
            self._trie.family.show(run)
            self._forget_terms(blocks)
            self._report_stored(run)
            for below in self._trie.reachable(run) if self.events is not None else ():
                self._report_stored(below)

    def _pieces(self, blocks: array[int]) -> Iterator[tuple[Terms, array[int]]]:
        """Runs of neighbours that ask for the same."""
        if not self._terms:
            yield _DEFAULT_TERMS, blocks
            return
        for terms, group in groupby(blocks, lambda block: self._terms.get(block, _DEFAULT_TERMS)):
            yield terms, array("i", group)

    def _forget_terms(self, blocks: Sequence[int]) -> None:
        if self._terms:
            for block in blocks:
                self._terms.pop(block, None)

    def _append(self, holding: Holding, node: Run, start: int, end: int) -> Run:
        """Store the prompt's blocks in [start, end) behind `node`, pinned by the holding; the last run."""
        size = self.block_size
        for terms, blocks in list(self._pieces(holding.table[start // size : end // size])):
            stop = start + len(blocks) * size
            tokens, extras = self._cut(holding.prompt, start, stop)
            node = self._append_run(holding, node, tokens, extras, blocks, terms)
            start = stop
        return node

    def _append_run(
        self, holding: Holding, node: Run, tokens: bytes, extras: Extras | None, blocks: array[int], terms: Terms
    ) -> Run:
        parent_key = node.keys[-1] if node.keys else None
        keys: list[bytes] = []
        if self.events is not None:
            before = parent_key if parent_key is not None else self._chain.root(holding.prompt.root)
            if len(tokens) < self.block_size * TOKEN_BYTES:
                keys = [self._chain.block(before, tokens, extras)]
            else:
                keys = self._chain.blocks(before, tokens, 0, len(blocks), extras)
        covered = self._covered_tail(node, tokens, extras)
        self.pool.note_written(blocks)
        self._forget_terms(blocks)
        if self._grows(holding, node, tokens, extras, terms):
            node.tokens += tokens
            node.blocks.extend(blocks)
            node.keys += keys
            node.end += len(tokens) // TOKEN_BYTES
            node.last_access = self._uses.tick
            run = node
        else:
            run = self._trie.append(node, tokens, extras, blocks, keys, self._uses.tick)
            run.priority, run.ttl = terms
            run.pins = 1
        if self.events is not None:
            self.events.stored(keys, parent_key, tokens, holding.prompt.scope)
        if covered is not None:
            self.pool.give(self._strip(covered, 1))
        return run

    def _grows(self, holding: Holding, node: Run, tokens: bytes, extras: Extras | None, terms: Terms) -> bool:
        """Whether `node` is a leaf of the same terms that this request alone uses, and short enough."""
        if node.pins != 1 or node.children or extras is not None or node.extras is not None:
            return False
        index = node.end // self.block_size - 1
        return (
            (node.priority, node.ttl) == terms
            and len(node.tokens) < _GROW_LIMIT * TOKEN_BYTES
            and len(tokens) % (self.block_size * TOKEN_BYTES) == 0
            and index < holding.held
            and node.blocks[-1] == holding.table[index]
        )

    def _append_tail(self, holding: Holding, node: Run, start: int, end: int) -> None:
        """Store the prompt's tokens [start, end), less than a block, unless they are there already."""
        tokens, extras = self._cut(holding.prompt, start, end)
        if key_of(tokens, extras) in node.children:
            return
        if self._longest and node.children:
            found = self._trie.family.best(node, tokens, extras)
            if found is not None and found[1] == end - start:
                return
        block = holding.table[start // self.block_size]
        terms = self._terms.get(block, _DEFAULT_TERMS)
        run = self._append_run(holding, node, tokens, extras, array("i", (block,)), terms)
        holding.held += 1
        if self._keeps:
            holding.anchor.tail = run
        else:
            holding.anchor = run

    def _covered_tail(self, node: Run, tokens: bytes, extras: Extras | None) -> Run | None:
        """The unused tail that a new child with these tokens goes beyond.

        It is the best match, if there is one: another child with more in common would have replaced it.
        """
        if not (self._longest and self._partial and node.children):
            return None
        first = tokens[: self.block_size * TOKEN_BYTES]
        own = extras.cut(0, len(first) // TOKEN_BYTES) if extras is not None else None
        found = self._trie.family.best(node, first, own)
        if found is None or found[0].pins or found[1] != found[0].length or found[1] == self.block_size:
            return None
        return found[0]

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
            self._set_terms(block, (run.priority, run.ttl))

    def take(self, holding: Holding, partial: Partial) -> None:
        run: Run = partial.handle.run
        priority, ttl = holding.retention.at(holding.held * self.block_size, holding.prompt_length)
        self._set_terms(partial.source, (run.priority if priority is None else priority, ttl))
        holding.table.extend(self._strip(run, 1))

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

    def _set_terms(self, block: int, terms: Terms) -> None:
        if terms == _DEFAULT_TERMS:
            self._terms.pop(block, None)
        else:
            self._terms[block] = terms

    # -- room -------------------------------------------------------------------------------------

    @property
    def idle(self) -> int:
        return self._uses.idle

    def facts(self, item: Run | Empty) -> Any:
        """What an eviction policy may know of an item."""
        return self._uses.facts(item)

    def allocate(self, holding: Holding, index: int, blocks: int) -> array[int]:
        new = self._draw(blocks) if self._keeps else super().allocate(holding, index, blocks)
        retention, prompt_length = holding.retention, holding.prompt_length
        if retention.ranges or retention.decode_priority is not None or retention.decode_ttl is not None:
            for at, block in enumerate(new, index):
                priority, ttl = retention.at(at * self.block_size, prompt_length)
                self._set_terms(block, (DEFAULT_PRIORITY if priority is None else priority, ttl))
        else:
            self._forget_terms(new)
        return new

    def _draw(self, n: int) -> array[int]:
        """The next n blocks in the order of priority queues, empty or cached. Blocks never used wait first at 35."""
        items, drawn = self._uses.items, array("i")
        while len(drawn) < n:
            item = items.peek() if len(items) else None
            more = n - len(drawn)
            behind = item is None or (item.priority >= DEFAULT_PRIORITY and item not in items.stale)
            if behind and self.pool.unused:
                drawn.extend(self.pool.take_unused(min(more, self.pool.unused)))
            elif isinstance(item, Empty):
                drawn.extend(self.draw_empty(item, more))
            else:
                assert item is not None
                taken = self._strip(item, min(more, len(item.blocks)))
                self.evicted += len(taken)
                drawn.extend(taken)
        return drawn

    def draw_empty(self, item: Empty, n: int) -> array[int]:
        """The last n blocks (all, when there are fewer) of an item of empty ones."""
        taken = self._empty.draw(item, n)
        if not item.blocks:
            self._uses.leave(item)
        return taken

    def queue_empty(self, blocks: Sequence[int]) -> None:
        """Empty blocks wait at their priority, let go of now."""
        self._uses.begin()
        self._queue_empty(blocks, 0)

    def _queue_empty(self, blocks: Sequence[int], index: int) -> None:
        """Empty blocks wait as neighbours in a table, from this index on, that were let go of with the latest."""
        for terms, some in list(self._pieces(array("i", blocks))) if blocks else ():
            index += len(some)
            self._forget_terms(some)
            self._wait_empty(Empty(some, *terms, self._uses.now, self._uses.tick, index * self.block_size))

    def _wait_empty(self, item: Empty) -> None:
        self._empty.put(item)
        self._uses.wait(item)

    def _evict(self, blocks: int) -> int:
        """See the base. An evicted block of the priority queues keeps its place there, empty."""
        items, gone, passed = self._uses.items, 0, list[Empty]()
        while gone < blocks and self._uses.idle:
            item = items.peek()
            if isinstance(item, Empty):
                items.discard(item)
                passed.append(item)
                continue
            end, before = item.end, len(item.blocks)
            taken = self._strip(item, min(blocks - gone, before))
            gone += len(taken)
            if self._keeps:
                taken.reverse()
                self._wait_empty(Empty(taken, item.priority, item.ttl, item.since, item.last_access, end))
            else:
                self.pool.give(taken)
        for empty in passed:
            items.add(empty)
        return gone

    def _strip(self, run: Run, n: int) -> array[int]:
        """Take the last n blocks of an idle run out of the index, the last one first."""
        keep = len(run.blocks) - n
        taken = run.blocks[keep:]
        taken.reverse()
        if run.children:  # what lies behind stays, and cannot be reached until the hole is filled
            if not self._keeps:
                raise InvariantError(f"{run!r} is to be evicted and has children")
            if keep:
                self._uses.split(run, keep * self.block_size)
            self._report_removed(run, 0)
            self._uses.leave(run)
            self._trie.family.hide(run)
            run.blocks = array("i")
        elif keep:
            self._report_removed(run, keep)
            self._trie.shorten(run, keep)
            if self._keeps:
                self._uses.shortened(run)
        else:
            self._report_removed(run, 0)
            self._uses.leave(run)
            parent = self._trie.remove(run)
            if parent is not None and self._uses.queued(parent) and parent not in self._uses.items:
                self._uses.wait(parent)
        self._uses.idle -= n
        return taken

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
        self._free(holding, private)

    def let_go(self, holding: Holding, in_flight: bool) -> array[int]:
        if not self._keeps:
            return super().let_go(holding, in_flight)
        private = self._kept.private(holding, 0)
        self.release(holding)
        if in_flight:
            return array("i", (holding.table[index] for index in private))
        self._free(holding, private)
        return array("i")

    def _free(self, holding: Holding, private: list[int]) -> None:
        """Own blocks at these table indices wait between those that were let go of with them, the tail first."""
        for _, group in groupby(enumerate(private), lambda pair: pair[1] - pair[0]):
            indices = [index for _, index in group]
            self._queue_empty(self.pool.unclaim([holding.table[index] for index in indices]), indices[0])

    # -- for explanations ---------------------------------------------------------------------------

    def agreeing(self, prompt: Prompt, limit: int) -> int:
        root = self._trie.roots.get(prompt.root)
        if root is None or limit <= 0:
            return 0
        path, inside, common = self._trie.walk(root, prompt.tokens, prompt.extras, 0, limit - limit % self.block_size)
        run = path[-1] if path else root
        at = run.end + common
        tokens, extras = self._cut(prompt, at, min(at + self.block_size, limit))
        places = [(inside, common)] if inside is not None else [(child, 0) for child in run.children.values()]
        return at + max((child.common(skip, tokens, extras) for child, skip in places), default=0)

    def scopes(self) -> Iterable[bytes]:
        return self._trie.roots

    def keys_at(self, prompt: Prompt, start: int) -> list[bytes]:
        root = self._chain.root(prompt.root)
        before = self._chain.blocks(root, prompt.tokens, 0, start // self.block_size, prompt.extras)
        parent = before[-1] if before else root
        end = min(len(prompt.tokens) // TOKEN_BYTES, start + self.block_size)
        return [self._chain.block(parent, *self._cut(prompt, start, stop)) for stop in range(end, start, -1)]

    def outline(self) -> list[OutlineNode]:
        return outline_of((r, r.parent, r.tokens, r.blocks, r.pins, r.keys) for r in self._trie.runs())

    # -- life of the index --------------------------------------------------------------------------

    def expire(self) -> None:
        self._uses.expire()

    def retire(self) -> None:
        stale = self._uses.items.stale
        for root in self._trie.roots.values() if self.events is not None else ():
            for run in self._trie.reachable(root):
                if run not in stale:
                    self._report(run.keys)
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
        found = {run for root in self._trie.roots.values() for run in self._trie.reachable(root)}
        for run in self._trie.runs():
            if run not in found:
                yield from run.blocks

    def _report(self, keys: Sequence[bytes]) -> None:
        if self.events is not None:
            self.events.removed(keys)

    def _report_removed(self, run: Run, first: int) -> None:
        """The blocks of a run from index `first` on leave; what lies behind them is out of reach, too."""
        if self.events is None or run in self._uses.items.stale:
            return
        above = run.parent
        while above is not None and above.parent is not None:
            if not above.blocks:
                return  # said when the hole came
            above = above.parent
        self._report(run.keys[first:])
        for below in self._trie.reachable(run):
            self._report(below.keys)

    def _report_stored(self, run: Run) -> None:
        if self.events is not None and run.parent is not None:
            root = self._trie.root_of(run)
            self.events.stored(run.keys, run.parent.keys[-1] if run.parent.keys else None, run.tokens, root.scope)

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
            if not self._terms.keys().isdisjoint(run.blocks):
                raise InvariantError(f"blocks of {run!r} still ask for terms of their own")
        if idle != self._uses.idle:
            raise InvariantError(f"{idle} blocks are idle, the book says {self._uses.idle}")
        if any(isinstance(item, Empty) and not item.blocks for item in items):
            raise InvariantError("an item without blocks is queued for eviction")
