"""Who uses what: pins, recency, retention, and the order in which unused blocks leave."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from prefixcache.blocks.eviction import Facts, Policy, idle_items, read_policy
from prefixcache.blocks.eviction.deadlines import Deadlines
from prefixcache.blocks.retention import DEFAULT_PRIORITY
from prefixcache.designs.digest_chain.node import Node
from prefixcache.errors import InvariantError
from prefixcache.keys.tokens import TOKEN_BYTES

if TYPE_CHECKING:
    from prefixcache.designs.digest_chain.tree import DigestTree


class Uses:
    """The users of a tree's nodes. Whoever pins a node pins its whole path.

    Args:
        tree: what is used.
        eviction: the policy that ranks what nobody uses.
        anywhere: a node may leave before its children, if its rank says so; else leaves alone.
        clock: seconds, for times to live.

    Attributes:
        items: nodes that may go, in order.
        idle: blocks in the tree that nobody uses.
        replaced: partial blocks out of the tree that somebody still copies from.
        tick: number of the latest change; larger is later.
    """

    def __init__(self, tree: DigestTree, eviction: str | Policy, anywhere: bool, clock: Callable[[], float]) -> None:
        self._tree = tree
        self._clock = clock
        self._timed = "priority" in read_policy(eviction).uses
        self._deadlines: Deadlines[Node] = Deadlines()
        self.items = idle_items(eviction, self, interior=anywhere)
        self.idle = 0
        self.replaced: set[Node] = set()
        self.tick = 0

    def begin(self) -> None:
        """What is stored or let go of from now on is later than all before."""
        self.tick += 1

    def facts(self, item: Node) -> Facts:
        """What an eviction policy may know of a node."""
        length = len(item.tokens) // TOKEN_BYTES
        return Facts(item.last_access, item.created, 0, item.priority, item.end, length, item.end)

    # -- pins ---------------------------------------------------------------------------------------

    def pin(self, node: Node, until: Node | None = None) -> None:
        """One more user of every node from `node` up to (without) `until`, or to the root."""
        while node is not until and node.parent is not None:
            if not node.pins:
                self.idle -= len(node.blocks)
                self.items.discard(node)
                self._deadlines.discard(node)
            node.pins += 1
            node = node.parent

    def unpin(self, node: Node, until: Node | None = None) -> list[int]:
        """One user less of each, tail first. Returns blocks that were replaced and that nobody needs any more."""
        tick, takes_all = self.tick, self.items.takes_all
        unneeded: list[int] = []
        while node is not until and node.parent is not None:
            if node.pins <= 0:
                raise InvariantError(f"{node!r} is unpinned more often than pinned")
            node.pins -= 1
            node.last_access = tick
            if not node.pins:
                if node in self.replaced:
                    self.replaced.discard(node)
                    unneeded.extend(node.blocks)
                else:
                    self.idle += len(node.blocks)
                    if takes_all or not node.children:
                        self.items.add(node)
                    if node.ttl is not None and self._timed:
                        self._deadlines.add(node, self._clock() + node.ttl, tick, node.end)
            node = node.parent
        return unneeded

    # -- changes of the tree --------------------------------------------------------------------------

    def split(self, child: Node, at: int) -> Node:
        """Cut `child` behind its first `at` tokens; returns the new upper node, to be pinned at once.

        The cut is no use of the lower part: its recency stays, and the upper part is as old as before.
        """
        upper = self._tree.split(child, at)
        if child in self.items.stale:
            self.items.stale.add(upper)
        if not upper.pins and self.items.takes_all:
            self.items.add(upper)
        return upper

    def replace(self, tail: Node) -> list[int]:
        """Take a partial block out of the tree, whose place a longer one takes now. Returns it if nobody uses it."""
        self._tree.detach(tail, keep_root=True)
        if tail.pins:
            self.replaced.add(tail)
            return []
        self._leave(tail)
        return tail.blocks.tolist()

    def cut_off(self, node: Node, keep: int) -> list[int]:
        """Take all but the first `keep` blocks of an unused node without children out of the tree; returns them."""
        gone = node.blocks[keep:].tolist()
        if keep:
            self._tree.shorten(node, keep)
            self.idle -= len(gone)
            self.items.rerank(node)
            return gone
        parent = self._tree.detach(node)
        self._leave(node)
        if not parent.children and parent.parent is not None and not parent.pins and not self.items.takes_all:
            self.items.add(parent)
        return gone

    def _leave(self, node: Node) -> None:
        self.items.discard(node)
        self.items.forget(node)
        self._deadlines.discard(node)
        self.idle -= len(node.blocks)
        node.parent = None

    # -- who goes next --------------------------------------------------------------------------------

    def next_leaf(self, blocks: int) -> tuple[Node, int]:
        """The next to leave, and how many of its first blocks stay when `blocks` are to go."""
        node = self.items.peek()
        return node, max(len(node.blocks) - blocks, 0)

    def next_anywhere(self, blocks: int) -> Iterator[tuple[Node, int]]:
        """As `next_leaf` until `blocks` blocks are chosen; these leave the order but not yet the tree."""
        while blocks > 0 and self.items:
            node, keep = self.next_leaf(blocks)
            blocks -= len(node.blocks) - keep
            if not keep:
                self.items.pop()
            yield node, keep

    def expire(self) -> None:
        """What nobody has used for its time to live falls back to the default priority."""
        for node in self._deadlines.due(self._clock()) if self._deadlines else ():
            node.priority, node.ttl = DEFAULT_PRIORITY, None
            self.items.rerank(node)

    def check(self) -> None:
        """Assert that pins, the order and the counts agree; raises `InvariantError`."""
        idle = 0
        users: dict[Node, int] = {}
        for node in (*self._tree.nodes(), *self.replaced):
            assert node.parent is not None
            users[node.parent] = users.get(node.parent, 0) + node.pins
        for node in self._tree.nodes():
            if node.pins < users.get(node, 0):
                raise InvariantError(f"{node!r} has fewer pins than its children together")
            if not node.pins:
                idle += len(node.blocks)
            queued = node in self.items
            if queued != (not node.pins and (self.items.takes_all or not node.children)):
                raise InvariantError(f"{node!r} is {'' if queued else 'not '}queued for eviction")
        if not all(node.pins for node in self.replaced):
            raise InvariantError("a partial block that was replaced is kept for nobody")
        if idle != self.idle:
            raise InvariantError(f"{idle} blocks are idle, the book says {self.idle}")
