"""SGLang's RadixCache (0.5.23) by its rules, small and slow: what the preset `sglang` is compared with.

Written from the rules and not from a design of ours: whole-tree scans, tuples compared element by element, no
block ids. A node is a run of units (tokens, or pairs of neighbouring tokens for draft models). Time is a counter.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from itertools import pairwise

Unit = Hashable


class Refused(Exception):
    def __init__(self, need: int, available: int) -> None:
        super().__init__(f"needs {need} of {available}")
        self.need, self.available = need, available


@dataclass(eq=False)
class Node:
    units: tuple[Unit, ...]
    parent: Node | None
    children: list[Node] = field(default_factory=list)
    locks: int = 0
    access: int = 0
    created: int = 0
    hits: int = 0
    priority: int = 0

    @property
    def end(self) -> int:
        return len(self.units) + (self.parent.end if self.parent else 0)

    def path(self) -> list[Node]:
        """From this node up, without the root."""
        return [self, *self.parent.path()] if self.parent else []


RANKS: dict[str, Callable[[Node], tuple[int, ...]]] = {
    "lru": lambda node: (node.access,),
    "mru": lambda node: (-node.access,),
    "fifo": lambda node: (node.created,),
    "filo": lambda node: (-node.created,),
    "lfu": lambda node: (node.hits, node.access),
    "slru": lambda node: (int(node.hits >= 2), node.access),
    "priority": lambda node: (node.priority, node.access),
}


class Tree:
    """The original's tree: match and insert touch, insert counts, both split."""

    def __init__(self, page: int, policy: str) -> None:
        self.page, self.rank = page, RANKS[policy]
        self.root = Node((), None)
        self.time = 0

    def now(self) -> int:
        self.time += 1
        return self.time

    def aligned(self, units: tuple[Unit, ...]) -> tuple[Unit, ...]:
        return units[: len(units) - len(units) % self.page]

    def find(self, units: tuple[Unit, ...]) -> tuple[list[Node], Node | None, int]:
        """Nodes matched whole, the node left in the middle, and where in it. Changes nothing."""
        found, node = [], self.root
        units = self.aligned(units)
        while units:
            child = next((c for c in node.children if c.units[: self.page] == units[: self.page]), None)
            if child is None:
                break
            common = 0
            while child.units[common : common + self.page] == units[common : common + self.page] != ():
                common += self.page
            if common < len(child.units):
                return found, child, common
            found.append(child)
            node, units = child, units[common:]
        return found, None, 0

    def split(self, node: Node, at: int) -> Node:
        assert node.parent is not None
        upper = Node(node.units[:at], node.parent, [node], node.locks)
        upper.access = upper.created = self.now()
        upper.hits, upper.priority = node.hits, node.priority
        siblings = node.parent.children
        siblings[siblings.index(node)] = upper
        node.units, node.parent = node.units[at:], upper
        return upper

    def touch(self, units: tuple[Unit, ...]) -> list[Node]:
        """Match: the whole path and the node that is cut are used now, and the cut is made."""
        found, inside, at = self.find(units)
        time = self.now()
        for node in [*found, *([inside] if inside else [])]:
            node.access = time
        return [*found, self.split(inside, at)] if inside else found

    def insert(self, units: tuple[Unit, ...], priority: int, inserted: int) -> int:
        """How many units were there already."""
        units = self.aligned(units)
        if not units:
            return 0
        path = self.touch(units)
        present = path[-1].end if path else 0
        for node in path:
            node.priority = max(node.priority, priority)
            node.hits += node.end > inserted
        if present < len(units):
            leaf = Node(units[present:], path[-1] if path else self.root)
            leaf.access = leaf.created = self.now()
            leaf.priority, leaf.hits = priority, int(len(units) > inserted)
            assert leaf.parent is not None
            leaf.parent.children.append(leaf)
        return present

    def nodes(self) -> list[Node]:
        found, stack = [], list(self.root.children)
        while stack:
            found.append(stack.pop())
            stack += found[-1].children
        return found

    def evict(self, units: int) -> int:
        gone = 0
        while gone < units:
            leaves = [node for node in self.nodes() if not node.children and not node.locks]
            if not leaves:
                break
            victim = min(leaves, key=self.rank)
            assert victim.parent is not None
            victim.parent.children.remove(victim)
            gone += len(victim.units)
        return gone


@dataclass
class Live:
    tokens: list[int]
    prompt: int  # length of the original prompt
    tree: str
    priority: int
    computed: int
    held: int  # units that the tree owns and this request locks
    blocks: int
    inserted: int = 0
    end: Node | None = None


class SGLang:
    """The original's tree under a pool, driven through the words of our contract.

    Args:
        page: tokens per page.
        capacity: pages.
        policy: eviction policy.
        ahead: 1 when keys are pairs of neighbouring tokens.
    """

    def __init__(self, page: int, capacity: int, policy: str, ahead: int = 0) -> None:
        self.page, self.capacity, self.ahead = page, capacity, ahead
        self.tree = Tree(page, policy)
        self.private = 0
        self.live: dict[int, Live] = {}

    def units(self, scope: str, tokens: list[int]) -> tuple[Unit, ...]:
        """Another scope shares not even a first page."""
        if self.ahead:
            return tuple((scope, *pair) for pair in pairwise(tokens))
        return tuple((scope, token) for token in tokens)

    def books(self) -> tuple[int, int]:
        """(free, idle) pages."""
        cached = sum(len(node.units) for node in self.tree.nodes())
        idle = sum(len(node.units) for node in self.tree.nodes() if not node.locks)
        return self.capacity - cached // self.page - self.private, idle // self.page

    def matched(self, scope: str, tokens: list[int]) -> tuple[int, int]:
        """(units cached, of which idle pages) of at most all tokens but the last."""
        found, inside, at = self.tree.find(self.units(scope, tokens)[: len(tokens) - 1])
        lengths = [(node, len(node.units)) for node in found] + ([(inside, at)] if inside else [])
        idle = sum(length for node, length in lengths if not node.locks)
        return sum(length for _, length in lengths), idle // self.page

    def probe(self, scope: str, tokens: list[int]) -> int:
        return self.matched(scope, tokens)[0]

    def open(self, name: int, scope: str, tokens: list[int], priority: int, prompt: int | None = None) -> int:
        cached, idle = self.matched(scope, tokens)
        fresh = -(-len(tokens) // self.page) - cached // self.page
        self.require(fresh + idle)
        path = self.tree.touch(self.units(scope, tokens)[: len(tokens) - 1])
        live = Live(list(tokens), prompt or len(tokens), scope, priority, cached, cached, cached // self.page + fresh)
        live.end = path[-1] if path else None
        self.lock(live.end, 1)
        self.take(fresh)
        self.live[name] = live
        return cached

    def require(self, need: int) -> None:
        available = sum(self.books())
        if need > available:
            raise Refused(need, available)

    def take(self, pages: int) -> None:
        free, _ = self.books()
        if pages > free:
            self.tree.evict((pages - free) * self.page)
        self.private += pages

    @staticmethod
    def lock(node: Node | None, by: int) -> None:
        for above in node.path() if node else []:
            above.locks += by
            assert above.locks >= 0

    def computed(self, name: int, n: int) -> int:
        """How many units beyond the held ones were there already."""
        live = self.live[name]
        live.computed = n
        return self.checkpoint(live)

    def checkpoint(self, live: Live) -> int:
        tree = self.tree
        held = live.held
        # A key that looks ahead ends one unit before the last computed token, but never before what is held.
        units = tree.aligned(self.units(live.tree, live.tokens[: max(live.computed, held + self.ahead)]))
        present = tree.insert(units, live.priority, live.inserted)
        live.inserted = max(live.inserted, len(units))
        prompt = tree.aligned(self.units(live.tree, live.tokens[: live.prompt]))
        if 0 < len(prompt) < len(units):
            tree.insert(prompt, live.priority + 1, len(prompt))
        path = tree.touch(units)
        self.private -= (len(units) - held) // self.page
        self.lock(path[-1] if path else None, 1)
        self.lock(live.end, -1)
        live.end, live.held = path[-1] if path else None, len(units)
        return max(present - held, 0)

    def append(self, name: int, token: int) -> None:
        live = self.live[name]
        more = -(-(len(live.tokens) + 1) // self.page) - live.blocks
        self.require(more)
        self.take(more)
        live.blocks += more
        live.tokens.append(token)

    def end(self, name: int, how: str) -> None:
        live = self.live.pop(name)
        if how == "close" or (how == "abort" and live.computed >= live.prompt):
            self.checkpoint(live)
        self.private -= live.blocks - live.held // self.page
        self.lock(live.end, -1)

    def evict(self, pages: int) -> int:
        return self.tree.evict(pages * self.page) // self.page
