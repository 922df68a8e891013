"""Leaves at which no hit can end: an attention group has evicted what hung from their last block.

    ── 1 2 ── 3 4 ── 5 6          window blocks of 1 2 only: a hit ends behind 2, and nothing behind 3 4 5 6 is read

SGLang deletes such a leaf at once. Here it goes before all others when room is needed: until then a probe can say what
is missing, and a request that computes it again finds the rest in place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice, takewhile

from prefixcache.designs.radix.node import Node
from prefixcache.designs.radix.tree import RadixTree


class BareLeaves:
    """See the module. What is noted may be out of date; it is looked at when its turn comes.

    Attributes:
        watched: whether anything is to be noted.
    """

    def __init__(self, tree: RadixTree) -> None:
        self.watched = False
        self._tree = tree
        self._blocks: dict[int, None] = {}  # the first to be noticed first
        self._ends_a_hit: Callable[[int], bool] = lambda block: True

    def __bool__(self) -> bool:
        return bool(self._blocks)

    def watch(self, ends_a_hit: Callable[[int], bool]) -> None:
        """From now on leaves are noted; the function says whether a hit can end at a block, or inside it, now."""
        self.watched = True
        self._tree.watch_ends()
        self._ends_a_hit = ends_a_hit

    def add(self, blocks: Iterable[int]) -> None:
        """No hit can end at these blocks any more."""
        self._blocks.update(dict.fromkeys(blocks))

    def note(self, node: Node) -> None:
        """The node is idle, or ends elsewhere, or has lost a child: it may be such a leaf now."""
        if node.blocks and not node.pins and not node.children and not self._ends_a_hit(node.blocks[-1]):
            self._blocks[node.blocks[-1]] = None

    def take(self, most: int, whole: bool) -> tuple[Node, int] | None:
        """An idle leaf and how many of its last pages are to be evicted now; None: there is none. O(pages).

        At most `most` pages; with `whole` all of its pages, or the leaf is none.
        """
        while self._blocks:
            block = next(iter(self._blocks))
            del self._blocks[block]
            node = self._tree.ends.get(block)
            if node is None or node.parent is None or node.pins or node.children:
                continue
            last = reversed(node.blocks) if whole else islice(reversed(node.blocks), most)
            pages = sum(1 for _ in takewhile(lambda block: not self._ends_a_hit(block), last))
            if pages and (not whole or pages == len(node.blocks)):
                return node, pages
        return None

    def clear(self) -> None:
        """All leaves are gone."""
        self._blocks.clear()
