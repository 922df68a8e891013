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
from prefixcache.designs.block_trie.tree import Trie
from prefixcache.designs.block_trie.uses import Uses


class Kept:
    """The anchor of such a holding.

    Attributes:
        duplicates: own copies of blocks that the trie has from others.
        tail: its partial block in the trie, if any.
    """

    __slots__ = ("duplicates", "tail")

    def __init__(self, duplicates: int = 0) -> None:
        self.duplicates = duplicates
        self.tail: Run | None = None


class KeptTables:
    """Which blocks of a table the trie owns: those that stand in the trie where the request's prompt leads.

    Nothing is written down about it, because what lies above a pinned run may come and go; every question is
    one walk along the prompt.
    """

    def __init__(self, trie: Trie, uses: Uses, pool: BlockPool) -> None:
        self._trie = trie
        self._uses = uses
        self._pool = pool

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
