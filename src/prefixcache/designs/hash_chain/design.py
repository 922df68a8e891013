"""hash_chain: a flat map from chained block digests to blocks (vLLM).

The digest of a block covers its whole prefix, so a cached block stands for the cached prefix up to its end.
As long as no block leaves before the blocks behind it, the hits along a prompt read yes .. yes no .. no,
and a binary search finds the last yes in O(log N) lookups. Only full blocks have a digest.

    prompt       | block 0 | block 1 | block 2 | tail
    digest           d0  ──▶   d1  ──▶   d2
    map            {d0: 7,   d1: 3,    d2: 9}
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from typing import Any

from prefixcache.blocks.eviction import POLICIES, read_policy
from prefixcache.designs.base import Design, Holding, Lower, Match, Prompt
from prefixcache.designs.hash_chain.content import Content
from prefixcache.designs.hash_chain.edges import Edges
from prefixcache.designs.hash_chain.index import Index, Part
from prefixcache.designs.hash_chain.leaf_ranks import LeafRanks
from prefixcache.designs.hash_chain.release_list import ReleaseList
from prefixcache.designs.hash_chain.run import Path, Run
from prefixcache.designs.hash_chain.scheduling import Unseen
from prefixcache.designs.hash_chain.search import SEARCHES
from prefixcache.designs.outline import OutlineNode
from prefixcache.errors import InvariantError
from prefixcache.keys.layouts import make_chain
from prefixcache.keys.memo import ChainMemo
from prefixcache.keys.tokens import TOKEN_BYTES


class HashChainDesign(Design):
    """See the module. Costs: a prompt is hashed once per distinct prefix, then O(log N) lookups and O(runs)."""

    name = "hash_chain"
    can = {  # noqa: RUF012
        "partial": ("off",),
        "evict_unit": ("tail",),
        "child_limit": (None,),
        "child_hash": (None,),
        "search": tuple(SEARCHES),
        "recency": ("release",),
        "refresh_on_split": (False,),
        "count_hits": ("match",),
        "cut_at_prompt": (False,),
        "priorities": ("0..100",),
    }

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.ahead = self.options.lookahead if self.options.lookahead_by == "key" else 0
        self._chain = make_chain(self.options.hash, self.block_size, self.ahead)
        self._memo = ChainMemo(self._chain)
        self._search = SEARCHES[self.options.search]
        self.lookups = 0  # of the last search, for tests
        self._index = Index(self.pool)
        self.trusted_keys = self._chain.trusted
        vouched_for = self._chain.trusted and self._chain.covers_extras
        self._content = None if vouched_for else Content(self._chain, self._index)
        self._edges = Edges(self.block_size) if self.ahead else None
        self._unseen = Unseen(self.events) if self.options.visibility == "step" else None
        self._is_cached = self._index.oldest.__contains__ if self._unseen is None else self._is_seen
        policy = read_policy(self.eviction)
        self._order: ReleaseList | LeafRanks = (
            ReleaseList() if policy is POLICIES["lru"] else LeafRanks(self._index, policy, self.block_size)
        )
        self._idle_blocks = 0

    # -- lookup -----------------------------------------------------------------------------------

    def match(self, prompt: Prompt, limit: int) -> Match:
        blocks, idle = array("i"), 0
        parts = self._find(prompt, limit)
        for run, start, end in parts:
            blocks += run.blocks[start - run.start : end - run.start]
            if run.users is None:
                idle += end - start
        match = Match(len(blocks) * self.block_size, blocks, idle, parts)
        if self._edges is not None and match.tokens + self.block_size <= limit:
            keys, at = self._keys(prompt), len(blocks)
            if at < len(keys) and self._edges.lacks_next_token(prompt, keys, at, self._is_cached):
                match.dropped = self.block_size
        return match

    def stored_blocks(self, prompt: Prompt, length: int) -> Sequence[int]:
        parts = self._find(prompt, length, unseen=True)
        return [block for run, start, end in parts for block in run.blocks[start - run.start : end - run.start]]

    def _find(self, prompt: Prompt, limit: int, unseen: bool = False) -> list[Part]:
        """Where the longest cached prefix of the first `limit` tokens lies; `unseen`: registered in this step, too."""
        if limit < self.block_size:
            return []
        keys = self._keys(prompt)
        is_cached = self._index.oldest.__contains__ if unseen else self._is_cached
        found, self.lookups = self._search(keys, min(limit // self.block_size, len(keys)), is_cached)
        parts = self._index.parts(keys, 0, found)
        if self._content is not None:
            confirmed = self._content.confirmed(prompt, parts)
            if self._unseen is not None and self._unseen.keys:  # a search may have jumped over such a key
                confirmed = sum(1 for _ in takewhile(is_cached, keys[:confirmed]))
            return self._index.shortened(parts, confirmed)
        if found and (not parts or parts[-1][2] < found):
            raise InvariantError("a key is cached without the keys before it: no search can be trusted")
        return parts

    def _keys(self, prompt: Prompt) -> list[bytes]:
        """Keys of all keyed blocks of a prompt, remembered in the prompt."""
        keys, most = prompt.keys, self._chain.keyed(len(prompt.tokens) // TOKEN_BYTES)
        if keys is None:
            keys = prompt.keys = self._memo.keys(prompt.root, prompt.tokens, most, prompt.extras, prompt.scope)
        elif len(keys) < most:
            parent = keys[-1] if keys else self._memo.root(prompt.root)
            keys += self._chain.blocks(parent, prompt.tokens, len(keys), most, prompt.extras, prompt.scope)
        return keys

    def _is_seen(self, key: bytes) -> bool:
        assert self._unseen is not None
        return key in self._index.oldest and key not in self._unseen.keys

    # -- ownership --------------------------------------------------------------------------------

    def claim(self, holding: Holding, match: Match) -> None:
        if match.blocks:
            holding.table.extend(match.blocks)
            holding.held = len(match.blocks)
            self._use(holding, match.anchor)

    def publish(self, holding: Holding, length: int, tail: bool = False) -> list[tuple[int, int, int]]:
        """See the base. A parent never leaves before its children, so along the range:

        [held .......... known)       [known ......... end)        [end .. length)
         key known: own blocks go       keys are new: the index       no key yet:
         back and the table moves,      owns these blocks now         stays private
         or they are further copies
        """
        start, end = holding.held, length // self.block_size
        if end <= start:
            return []
        keys = self._keys(holding.prompt)
        end = min(end, len(keys))
        if self._content is None:
            known = self._index.known(keys, start, end)
        else:
            known, end = self._content.storable(holding.prompt, keys, start, end, holding.anchor)
        moves: list[tuple[int, int, int]] = []
        if known and self.options.duplicates == "give_back":
            moves = self._move_onto(holding, self._index.parts(keys, start, start + known))
            start, known = start + known, 0
        if start < end:
            self.kept += known
            self._store(holding, keys, start, end, known)
        holding.held = end
        return moves

    def _move_onto(self, holding: Holding, parts: list[Part]) -> list[tuple[int, int, int]]:
        """Swap the table's own blocks behind the held ones for these, which hold the same."""
        start, end = parts[0][1], parts[-1][2]
        own = holding.table[start:end]
        theirs = array("i")
        for run in self._use(holding, parts):
            theirs += run.blocks
        holding.table[start:end] = theirs
        self.pool.give(own)
        return list(zip(range(start, end), own, theirs, strict=True))

    def _store(self, holding: Holding, keys: list[bytes], start: int, end: int, known: int) -> None:
        """The index takes over the blocks [start, end) of the table, used by the holding.

        The first `known` of their keys are cached already: these are further copies.
        """
        for stop in self._order.spans(holding, start, end):
            self._store_run(holding, keys, start, stop, min(known, stop - start))
            known -= min(known, stop - start)
            start = stop

    def _store_run(self, holding: Holding, keys: list[bytes], start: int, end: int, known: int) -> None:
        prompt, path = holding.prompt, _path(holding)
        new, blocks = keys[start:end], holding.table[start:end]
        run = self._growing(path) if not known else None
        if run is not None:
            run.keys += new
            run.blocks += blocks
            self._index.add(run, len(run.keys) - len(new), 0)
            if self._content is not None:
                self._content.grown(run, prompt)
        else:
            run = Run(new, blocks, start, keys[start - 1] if start else None)
            if self._content is not None:
                self._content.store(run, prompt, path, self._index.parts(keys, start, start + known))
            self._index.add(run, 0, known)
            run.users = {path}
            path.runs.append(run)
            path.own = run
            self._order.stored(run, path, holding, known)
        if self._edges is not None:
            self._edges.add(prompt, keys, start + known, end)
        self._announce(prompt, keys, start + known, end)

    def _growing(self, path: Path) -> Run | None:
        """The last run of a path, where what follows it can be added to it: this path has made and alone uses it.

        So an answer that is published block by block is one run. Not under policies that know blocks by their
        age and use: there a run is what was published together.
        """
        run = path.own
        if run is None or not path.runs or run is not path.runs[-1]:
            return None
        return run if self._order.whole and not run.stale and len(run.users or ()) == 1 else None

    def _announce(self, prompt: Prompt, keys: list[bytes], start: int, end: int) -> None:
        """The keys [start, end) of a prompt are new."""
        if start == end or (self.events is None and self._unseen is None):
            return
        step = self.block_size * TOKEN_BYTES
        before = keys[start - 1] if start else None
        stored = keys[start:end], before, bytes(prompt.tokens[start * step : end * step]), prompt.scope
        if self._unseen is not None:
            self._unseen.add(*stored)
        elif self.events is not None:
            self.events.stored(*stored)

    def cut(self, holding: Holding, blocks: int) -> None:
        if blocks < holding.held:
            path = _path(holding)
            self._let_go(path, self._border(path, blocks), holding.step)
            holding.held = blocks

    def release(self, holding: Holding) -> None:
        self._let_go(_path(holding), 0, holding.step)
        holding.anchor, holding.held = None, 0

    def share(self, holding: Holding, other: Holding, blocks: int) -> None:
        other.anchor = self._prefix(holding, blocks)
        self._join(other.anchor, other.anchor.runs)
        other.table.extend(holding.table[:blocks])
        other.held = blocks

    def idle_blocks(self, match: Match) -> Sequence[int]:
        parts: list[Part] = match.anchor
        blocks = array("i")
        for run, start, end in parts:
            if run.users is None:
                blocks += run.blocks[start - run.start : end - run.start]
        return blocks

    def handle(self, holding: Holding, index: int) -> Path:
        return self._prefix(holding, index + 1)  # who pins a block pins all blocks before it

    def hold(self, handle: Path) -> None:
        self._join(handle, handle.runs)

    def drop(self, handle: Path) -> None:
        self._leave(handle, 0, self.step)

    def _use(self, holding: Holding, parts: list[Part]) -> list[Run]:
        """The holding's path goes on over these parts of runs, which are cut out where they are not whole."""
        path = _path(holding)
        runs = []
        for run, start, end in parts:
            for stop in self._order.spans(holding, start, end):
                if stop < run.start + len(run.keys):
                    runs.append(self._cut(run, stop))
                else:
                    runs.append(run)
                if start > runs[-1].start:
                    self._cut(runs[-1], start)
                start = stop
        self._join(path, runs)
        path.runs += runs
        self._order.passed(runs, path, holding)
        return runs

    def _cut(self, run: Run, block: int) -> Run:
        """Cut a run before this block of its prompt; returns the upper part, the lower one stays itself."""
        upper = self._index.cut(run, block - run.start)
        if self._content is not None:
            self._content.cut(upper, run)
        self._order.cut(upper, run)
        return upper

    def _border(self, path: Path, block: int) -> int:
        """Which run of a path begins at this block of its prompt, after a cut if none did; all of them: the end."""
        for at, run in enumerate(path.runs):
            if run.start >= block:
                return at
            if run.start + len(run.keys) > block:
                self._cut(run, block)
                return at + 1
        return len(path.runs)

    def _prefix(self, holding: Holding, blocks: int) -> Path:
        """A path over the first blocks that a holding uses. It does not use them yet."""
        path, prefix = _path(holding), Path()
        border = self._border(path, blocks)
        prefix.runs = path.runs[:border]
        return prefix

    def _join(self, path: Path, runs: list[Run]) -> None:
        """One more user of these runs."""
        for run in runs:
            if run.users is None:
                run.users = {path}
                self._idle_blocks -= len(run.keys)
                self._order.discard(run)
            else:
                run.users.add(path)

    def _let_go(self, path: Path, first: int, step: int) -> None:
        """A request gives up blocks: what was registered in this step is seen from now on."""
        if self._unseen is not None:
            self.end_step()
        self._leave(path, first, step)

    def _leave(self, path: Path, first: int, step: int) -> None:
        """One user less of the path's runs from `first` on, tail first; what nobody uses any more becomes idle."""
        runs = path.runs[first:]
        del path.runs[first:]
        self._order.released(runs, step)
        for run in reversed(runs):
            assert run.users is not None
            run.users.remove(path)
            if not run.users:
                run.users = None
                self._idle_blocks += len(run.keys)
                self._order.add(run)

    # -- room -------------------------------------------------------------------------------------

    @property
    def idle(self) -> int:
        return self._idle_blocks

    def allocate(self, holding: Holding, index: int, blocks: int) -> array[int]:
        """See the base. Evicted blocks stand behind empty ones, in the order in which they left (as in vLLM)."""
        empty = min(blocks, self.pool.free)
        taken = self.pool.take(empty)
        if empty < blocks:
            self.evict(blocks - empty)
            taken += self.pool.take(blocks - empty)
        return taken

    def _evict(self, blocks: int) -> int:
        victims, keys = self._take_out(blocks, self.lower)
        if self.events is not None:
            self.events.removed(keys)
        victims.reverse()  # the pool hands out what came last
        self.pool.give(victims)
        return len(victims)

    def _take_out(self, blocks: int, lower: Lower | None) -> tuple[array[int], list[bytes]]:
        """Take idle blocks out of the index: these in the order in which they leave, and what is found no more."""
        order, victims = self._order, array("i")
        removed: list[bytes] = []
        while len(victims) < blocks and (run := order.first()) is not None:
            last = run.keys[-1]
            trimmed, keys, lost = self._index.trim(run, min(len(run.keys), blocks - len(victims)) if order.whole else 1)
            victims += trimmed
            gone = keys[:lost]
            if self._edges is not None:
                self._edges.remove(gone)
            if not run.stale:
                removed += gone
                if lower is not None:
                    before = keys[lost] if lost < len(keys) else run.last_key
                    proved = self._proved(run, lost, len(keys))
                    lower.evicting(gone[::-1][:proved], before, trimmed[:lost][::-1][:proved])
            if self._content is not None:
                self._content.trimmed(run)
            order.trimmed(run, last, bool(gone))
        self._idle_blocks -= len(victims)
        return victims, removed

    def _proved(self, run: Run, gone: int, trimmed: int) -> int:
        """Of the blocks that a trimmed run has lost for good, how many leading ones their keys alone prove."""
        plain = run.held.plain if run.held is not None else len(run.keys) + run.start + trimmed
        return max(min(plain - run.start - len(run.keys) - trimmed + gone, gone), 0)

    def keys_behind(self, prompt: Prompt, match: Match) -> Sequence[bytes]:
        keys = self._keys(prompt)
        return keys[len(match.blocks) : None if self._content is None else self._content.plain(prompt, len(keys))]

    # -- for explanations ---------------------------------------------------------------------------

    def scopes(self) -> Iterable[bytes]:
        return self._memo.scopes

    def keys_at(self, prompt: Prompt, start: int) -> Sequence[bytes]:
        index = start // self.block_size
        return self._keys(prompt)[index : index + 1]

    def outline(self) -> list[OutlineNode]:
        return self._index.outline()

    # -- life of the index --------------------------------------------------------------------------

    def expire(self) -> None:
        self._order.expire(self.clock())

    def end_step(self) -> None:
        super().end_step()
        if self._unseen is not None:
            self._unseen.show()

    def retire(self) -> None:
        unseen = self._unseen.forget() if self._unseen is not None else set()
        if self.events is not None:
            found = [key for key, run in self._index.oldest.items() if not run.stale and key not in unseen]
            self.events.removed(found)
        self._order.retire(self._index)

    def clear(self) -> None:
        self.pool.give(self._take_out(self._idle_blocks, None)[0])

    def blocks(self) -> Iterator[int]:
        for run in self._index:
            yield from run.blocks

    def check(self) -> None:
        self._index.check()
        self._order.check()
        queued = list(self._order)
        if len(set(queued)) != len(queued):
            raise InvariantError("a run is queued for eviction twice")
        idle = 0
        for run in self._index:
            if run.users is None:
                idle += len(run.keys)
            if (run in queued) != (run.users is None and self._order.must_have(run)):
                raise InvariantError(f"{run!r} is {'' if run in queued else 'not '}queued for eviction")
        if idle != self._idle_blocks:
            raise InvariantError(f"{idle} blocks are idle, the book says {self._idle_blocks}")
        if self._unseen is not None and not self._unseen.keys <= self._index.oldest.keys():
            raise InvariantError("a key registered in this step is not cached")
        if self._content is not None:
            self._content.check()
        if self._edges is not None:
            self._edges.check(self._index.oldest)


def _path(holding: Holding) -> Path:
    """The path of a holding; a new one where it has none."""
    path: Path | None = holding.anchor
    if path is None:
        path = holding.anchor = Path()
    return path
