"""Consecutive blocks of one chain that have the same users.

The map of hash_chain is flat, but its blocks come and go in runs: a request publishes its prompt in one call,
uses a prefix of it, and lets go of all of it at once. A run is the unit of that, so pinning a prompt costs as
much as it has runs. Where a request uses only a part of a run, the run is cut.

    published by one request     [ system ........ question 1 ]
    used by another in part      [ system ........ ][ question 1 ]       two runs from now on
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prefixcache.designs.hash_chain.content import Held
    from prefixcache.designs.hash_chain.leaf_ranks import Use


class Link:
    """A place in a doubly linked list."""

    __slots__ = ("after", "ahead")

    def __init__(self) -> None:
        self.ahead: Link | None = None
        self.after: Link | None = None


class Run(Link):
    """See the module.

    Attributes:
        keys, blocks: one each per block, in prompt order.
        start: index of its first block in the prompt.
        before: the key that its first one continues from; None at the beginning of a prompt.
        users: the paths that hold it; None when it is idle.
        stale: of an old generation: nothing can reach it any more.
        use: what a policy may know of it, where one asks.
        held: what its blocks hold, where the keys do not prove it.
    """

    __slots__ = ("before", "blocks", "held", "keys", "stale", "start", "use", "users")

    def __init__(self, keys: list[bytes], blocks: array[int], start: int, before: bytes | None) -> None:
        super().__init__()
        self.keys = keys
        self.blocks = blocks
        self.start = start
        self.before = before
        self.users: set[Path] | None = None
        self.stale = False
        self.use: Use | None = None
        self.held: Held | None = None

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def last_key(self) -> bytes | None:
        """The key of the block before whatever is added to it, or was cut off it."""
        return self.keys[-1] if self.keys else self.before

    def __repr__(self) -> str:
        users = len(self.users) if self.users else 0
        return f"Run(blocks={self.blocks.tolist()}, start={self.start}, users={users})"


class Path:
    """The runs that one request (or pin, or source of a copy) uses, from the beginning of its prompt.

    Attributes:
        runs: in the order of the prompt.
        own: the one that it has stored last.
    """

    __slots__ = ("own", "runs")

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self.own: Run | None = None
