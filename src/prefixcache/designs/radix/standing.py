"""What an eviction policy is told of the nodes: when they were used, how often, and how much is asked for them.

Only what the policy's ranks rest on is kept up to date.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from prefixcache.blocks.eviction import Facts, Policy
from prefixcache.blocks.eviction.deadlines import Deadlines
from prefixcache.blocks.retention import DEFAULT_PRIORITY
from prefixcache.designs.base import Holding
from prefixcache.designs.options import Options
from prefixcache.designs.radix.node import Node


class Standing:
    """Keeps the facts of nodes.

    Args:
        policy: the eviction policy.
        options: which uses and hits count.
        page: tokens per page.

    Attributes:
        tick: the time, in operations and new nodes.
        by_use: whether a use sets the recency of a path (else its release does).
    """

    def __init__(self, policy: Policy, options: Options, page: int) -> None:
        self.tick = 0
        self.by_use = options.recency == "use"
        self._at_match = options.count_hits == "match"
        self._marks = bool(policy.uses & {"hits", "priority"})
        self._histories = "history" in policy.uses
        self._default_priority = 0 if options.priorities == "any" else DEFAULT_PRIORITY
        self._page = page
        self._ttl: dict[Node, float] = {}  # seconds that a priority lasts from the last release on, where it ends
        self._deadlines: Deadlines[Node] = Deadlines()

    def now(self) -> int:
        """The next tick."""
        self.tick += 1
        return self.tick

    def facts(self, node: Node) -> Facts:
        """The facts of one leaf now."""
        length = len(node.blocks) * self._page
        return Facts(node.last_access, node.created, node.hits, node.priority, node.end, length, node.history)

    # -- what requests do ---------------------------------------------------------------------------

    def matched(self, holding: Holding, end: int) -> None:
        """A request was admitted with this hit."""
        if self.by_use:
            self.touch(holding.anchor)
        if self._marks and self._at_match:
            self.mark(holding, end)

    def published(self, holding: Holding, end: int) -> None:
        """A request has published, or found published, its first `end` tokens."""
        if self._marks:
            self.mark(holding, end)

    def touch(self, node: Node) -> None:
        """The path to `node` is used now."""
        tick = self.now()
        while node.parent is not None:
            node.last_access = tick
            node = node.parent

    def mark(self, holding: Holding, end: int) -> None:
        """Count the holding's hit, once per node, and raise the priority of what it had not marked yet."""
        node, counted = holding.anchor, holding.counted
        while node.parent is not None and node.end > counted:
            node.hits += 1
            priority, ttl = self._asked(holding, node.parent.end)
            if priority >= node.priority:
                self._keep(node, priority, ttl)
            node = node.parent
        holding.counted = max(counted, end)

    def prefer_prompt(self, holding: Holding, node: Node) -> None:
        """The path to `node` is a prompt: one more priority than what is generated behind it."""
        priority = self._asked(holding, 0)[0] + 1
        while node.parent is not None:
            if priority > node.priority:
                node.priority = priority
            node = node.parent

    def _asked(self, holding: Holding, position: int) -> tuple[int, float | None]:
        """The priority and the time to live that a request asks for at this token."""
        priority, ttl = holding.retention.at(position, holding.prompt_length)
        return self._default_priority if priority is None else priority, ttl

    def _keep(self, node: Node, priority: int, ttl: float | None) -> None:
        node.priority = priority
        if ttl is not None:
            self._ttl[node] = ttl
        elif self._ttl:
            self._ttl.pop(node, None)

    def spans(self, holding: Holding, start: int, end: int) -> list[int]:
        """Where the runs of pages in [start, end) end that ask for one retention: a node has just one."""
        retention, page = holding.retention, self._page
        if not self._marks or not retention.ranges:
            return [end]
        edges = {-(-edge // page) * page for edge in retention.edges(holding.prompt_length)}
        inner = sorted(edge for edge in edges if start < edge < end)
        asked = {edge: self._asked(holding, edge) for edge in (start, *inner)}
        return [edge for before, edge in pairwise((start, *inner)) if asked[edge] != asked[before]] + [end]

    # -- what happens to nodes ----------------------------------------------------------------------

    def same(self, node: Node, holding: Holding, start: int) -> bool:
        """Whether the request asks for the retention that the node has."""
        priority, ttl = self._asked(holding, start)
        return not self._marks or (node.priority == priority and self._ttl.get(node) == ttl)

    def stored(self, node: Node, holding: Holding, start: int) -> None:
        """A leaf is new, or has grown, from token `start` on. Its branch may now be longer than it ever was."""
        node.last_access = self.tick
        if self._marks:
            self._keep(node, *self._asked(holding, start))
        if not self._histories:
            return
        depth = node.end
        node.history = max(node.history, depth)
        above = node.parent
        while above is not None and above.history < depth:  # one that knew of a longer branch has told all above it
            above.history = depth
            above = above.parent

    def split(self, child: Node, upper: Node) -> None:
        """A node was cut: the upper half is asked for as much as the whole was."""
        if child in self._ttl:
            self._ttl[upper] = self._ttl[child]

    @property
    def timed(self) -> bool:
        """Whether any priority ends: only then `pinned`, `idle` and `gone` have to be told."""
        return bool(self._ttl)

    def pinned(self, node: Node) -> None:
        """The node is in use: its time does not run."""
        self._deadlines.discard(node)

    def idle(self, node: Node, now: float) -> None:
        """The last user has let go."""
        if node in self._ttl:
            self._deadlines.add(node, now + self._ttl[node], self.tick, node.end)

    def gone(self, node: Node) -> None:
        """The node has left the tree."""
        self._ttl.pop(node, None)
        self._deadlines.discard(node)

    def clear(self) -> None:
        """All nodes are gone."""
        self._ttl.clear()
        self._deadlines = Deadlines()

    def expire(self, now: float) -> Iterator[Node]:
        """The nodes whose priority ends now, each set back to the default."""
        for node in self._deadlines.due(now):
            del self._ttl[node]
            node.priority = self._default_priority
            yield node

    def check(self, node: Node) -> str:
        """What is wrong with the facts of a node, "" when nothing is."""
        if self._histories and node.parent is not None and node.parent.history < node.history:
            return "was longer once than its parent knows"
        return ""
