"""Leaves at which no hit can end: an attention group has evicted what hung from their last block.

    ── 1 2 ── 3 4 ── 5 6          window blocks of 1 2 only: a hit ends behind 2, and nothing behind 3 4 5 6 is read

SGLang deletes such a leaf at once. Here it goes before all others when room is needed: until then a probe can say what
is missing, and a request that computes it again finds the rest in place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import takewhile

from prefixcache.designs.radix.node import Node
from prefixcache.designs.radix.tree import RadixTree


class BareLeaves:
    """See the module. What is noted may be out of date; it is looked at when its turn comes."""

    def __init__(self, tree: RadixTree) -> None:
        self._tree = tree
        self._blocks: dict[int, None] = {}  # the first to be noticed first
        self._ends_a_hit: Callable[[int], bool] = lambda block: True

    def __bool__(self) -> bool:
        return bool(self._blocks)

    def watch(self, ends_a_hit: Callable[[int], bool]) -> None:
        """`add` is going to be called; the function says whether a hit can end at a block now."""
        self._tree.watch_ends()
        self._ends_a_hit = ends_a_hit

    def add(self, blocks: Iterable[int]) -> None:
        """No hit can end at these blocks any more."""
        self._blocks.update(dict.fromkeys(blocks))

    def take(self, most: int) -> tuple[Node, int] | None:
        """An idle leaf and how many of its last pages, at most `most`, are to be evicted now; None: there is none."""
        while self._blocks:
            block = next(iter(self._blocks))
            del self._blocks[block]
            node = self._tree.ends.get(block)
            if node is None or node.parent is None or node.pins or node.children:
                continue
            bare = takewhile(lambda last: not self._ends_a_hit(last), reversed(node.blocks))
            pages = min(sum(1 for _ in bare), most)
            if pages:
                before = node.blocks[:-pages] or node.parent.blocks
                self.add(before[-1:])  # the next end of a leaf, perhaps as bare
                return node, pages
        return None

    def clear(self) -> None:
        """All leaves are gone."""
        self._blocks.clear()
