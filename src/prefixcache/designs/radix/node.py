"""The nodes of the radix tree, and the names by which a request remembers a place in it."""

from __future__ import annotations

from array import array
from collections.abc import Hashable
from typing import Any

from prefixcache.designs.children import ChildIndex
from prefixcache.keys.extras import Extras

# What a leaf has for children. Most nodes are leaves, so none of them gets a dict of its own: memory, and one
# object less for the garbage collector to walk. Never written to.
NO_CHILDREN: dict[Hashable, Any] = {}


class Node:
    """A run of pages: `key` are their tokens, `blocks` one block id per page.

    Attributes:
        parent: None for the root of a scope.
        key: the tokens; with keys that look one token ahead, the token behind the last page as well.
        children: by routing key (the first page).
        index: the children by the beginning of their first page, where there are many and it is needed.
        extras: media and extra ids of its tokens.
        pins: requests whose path passes through here; never less than a child's.
        end: tokens from the beginning of the prompt to the end of this node.
        page_keys: chained digests of the pages, for events only.
        last_access, created, hits, priority, history: see `Facts`.
    """

    __slots__ = (
        "blocks",
        "children",
        "created",
        "end",
        "extras",
        "history",
        "hits",
        "index",
        "key",
        "last_access",
        "page_keys",
        "parent",
        "pins",
        "priority",
    )

    def __init__(
        self, parent: Node | None, key: bytes, blocks: array[int], extras: Extras | None, end: int, tick: int
    ) -> None:
        self.parent = parent
        self.key = key
        self.blocks = blocks
        self.extras = extras
        self.end = end
        self.children: dict[Hashable, Node] = NO_CHILDREN
        self.index: ChildIndex[Node] | None = None
        self.pins = 0
        self.created = self.last_access = tick
        self.hits = 0
        self.priority = 0
        self.history = end
        self.page_keys: tuple[bytes, ...] = ()  # a tuple of bytes is left alone by the garbage collector

    def __repr__(self) -> str:
        return f"Node(end={self.end}, pages={len(self.blocks)}, pins={self.pins}, children={len(self.children)})"


class Place:
    """One stored block: the page that ends at token `end` of the path through `node`, which ends there or behind."""

    __slots__ = ("end", "node")

    def __init__(self, node: Node, end: int) -> None:
        self.node = node
        self.end = end


class Routed(bytes):
    """A first page whose hash a test has replaced: equal hashes must still reach different children."""

    forced: int

    def __hash__(self) -> int:
        return self.forced
