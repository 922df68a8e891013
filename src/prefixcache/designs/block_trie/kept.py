"""Tables that keep their own copies: what a request holds where the trie has somebody else's block as well.

Two requests compute the same block; the trie keeps the first one, and the second keeps its own in its table
until it ends. So the blocks that a request pins have gaps, and what lies above one of them may be evicted:

    trie     [a: blocks 0 1] ──▶ [c: block 7]        table of the second request   0' 1' 7
                                                      its own copies, then a block that the trie has from it
"""

from __future__ import annotations

from array import array

from prefixcache.blocks.pool import BlockPool
from prefixcache.designs.base import Holding
from prefixcache.designs.block_trie.run import Run
from prefixcache.designs.block_trie.store import Store
from prefixcache.designs.block_trie.tree import Trie
from prefixcache.designs.block_trie.uses import Uses


class Kept:
    """The anchor of such a holding.

    Attributes:
        duplicates: own copies of blocks that the trie has from others.
        tail: its partial block in the trie, if any.
    """

    __slots__ = ("duplicates", "tail")

    def __init__(self, duplicates: int = 0, tail: Run | None = None) -> None:
        self.duplicates = duplicates
        self.tail = tail


class KeptTables:
    """Which blocks of a table the trie owns: those that stand in the trie where the request's prompt leads.

    Nothing is written down about it, because what lies above a pinned run may come and go; every question is
    one walk along the prompt.
    """

    def __init__(self, trie: Trie, uses: Uses, store: Store, pool: BlockPool) -> None:
        self._trie = trie
        self._uses = uses
        self._store = store
        self._pool = pool

    def publish(self, holding: Holding, length: int, tail: bool) -> int:
        """Store what the trie does not have; how many more (or, negative, fewer) own copies are kept now.

        The whole way is walked each time, because a hole that has come in it since is filled with an own copy:

            trie     [a a] [hole] [c]         stored    [a a] [own] [c]         kept    the table's own first two
        """
        size, prompt = self._trie.block_tokens, holding.prompt
        last = length // size
        own = last < holding.held and not self._pool.shared(holding.table[last]) and self.run_at(holding, last) is None
        if tail and own:
            holding.held = last  # it went back inside an own copy, and stores what is left of that
        start, end = holding.held * size, length - length % size
        tail = tail and length > max(start, end)
        before = holding.anchor.duplicates if holding.anchor is not None else 0
        if end <= start and not tail and not before:
            return 0
        self._uses.begin()
        node, duplicates, reached = self._pass(holding, end)
        holding.held = max(holding.held, reached // size)
        stored: Run | None = None
        if tail and reached == end:
            stored = self._store.append_tail(holding, node or self._trie.root(prompt), end, length)
        if end < start:
            duplicates = max(duplicates, before)  # those behind `end` were not looked at
        holding.anchor = Kept(duplicates, stored)
        return duplicates - before

    def _pass(self, holding: Holding, end: int) -> tuple[Run | None, int, int]:
        """Walk the prompt's tokens [0, end), filling holes, and store what is missing at its end.

        Returns the last run, the own copies of blocks of others on the way, and how far it came: it stops
        at a block that a fork has a claim on, which nobody may store.
        """
        size, prompt, table = self._trie.block_tokens, holding.prompt, holding.table
        node: Run | None = self._trie.roots.get(prompt.root)
        duplicates = reached = 0
        for run in self._uses.follow(node, prompt, 0, end) if node is not None else ():
            own = table[reached // size : run.end // size]
            if run.blocks:
                duplicates += len(own) if run.blocks != own else 0
            elif self._pool.any_shared(own):
                return node, duplicates, reached
            else:
                self._store.fill(run, own)
            reached, node = run.end, run
        if reached < end and not self._pool.any_shared(table[reached // size : holding.held]):
            node = self._store.append(holding, node or self._trie.root(prompt), reached, end)
            reached = end
        return node, duplicates, reached

    def owned(self, holding: Holding) -> list[Run]:
        """The runs of the trie that hold blocks of this table, from the beginning on."""
        kept: Kept | None = holding.anchor
        root = self._trie.roots.get(holding.prompt.root)
        if kept is None or root is None:
            return []
        size, prompt = self._trie.block_tokens, holding.prompt
        whole = holding.held - (kept.tail is not None)
        path, _, _ = self._trie.walk(root, prompt.tokens, prompt.extras, 0, whole * size)
        owned = [run for run in path if run.blocks and run.blocks == holding.table[run.start // size : run.end // size]]
        if kept.tail is not None:
            owned.append(kept.tail)
        return owned

    def run_at(self, holding: Holding, index: int) -> Run | None:
        """The run that holds the block at this table index; None when that is the request's own."""
        at = index * self._trie.block_tokens
        return next((run for run in self.owned(holding) if run.start <= at < run.end), None)

    def private(self, holding: Holding, start: int) -> list[int]:
        """The table indices from `start` on whose blocks the trie does not own."""
        size, at = self._trie.block_tokens, start
        private: list[int] = []
        for run in self.owned(holding):
            private.extend(range(at, run.start // size))
            at = max(at, -(-run.end // size))
        private.extend(range(at, len(holding.table)))
        return private

    def cut(self, holding: Holding, blocks: int) -> None:
        """Let go of what the trie owns from table index `blocks` on, tail first."""
        end = blocks * self._trie.block_tokens
        for run in reversed(self.owned(holding)):
            if run.end <= end:
                break
            if run.start < end:
                self._uses.split(run, end - run.start)
            self._uses.unpin(run)
        if holding.anchor is not None:
            holding.anchor.tail = None

    def share(self, holding: Holding, other: Holding, blocks: int) -> None:
        """Pin the first `blocks` blocks of the table for `other` too; private ones get another claim."""
        end = blocks * self._trie.block_tokens
        for run in self.owned(holding):
            if run.start < end:
                self._uses.pin(self._uses.boundary(run, min(run.end, end)))
        for index in self.private(holding, 0):
            if index < blocks:
                self._pool.share(holding.table[index])
        other.anchor, other.held = Kept(holding.anchor.duplicates), blocks
        other.table.extend(array("i", holding.table[:blocks]))
