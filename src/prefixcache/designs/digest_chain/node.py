"""The nodes of the digest tree, and the name by which a request remembers a block in it."""

from __future__ import annotations

from array import array
from typing import Any

from prefixcache.designs.children import ChildIndex
from prefixcache.keys.extras import Extras

DIGEST_BYTES = 32

# What a leaf has for children. Most nodes are leaves, so none of them gets a dict of its own. Never written to.
NO_CHILDREN: dict[bytes, Any] = {}


class Node:
    """A run of full blocks, or one partial block: the tail of a request, which never has children.

    Attributes:
        parent: None for the root of a scope.
        tokens: the tokens of its blocks, joined.
        digests: one chained digest per block, joined; of a root the digest of its scope.
        blocks: block ids.
        extras: media and extra ids of its tokens.
        end: tokens from the beginning of the prompt to the end of this node.
        children: by the digest of their first block, in order of insertion.
        index: the same children by the tokens of their first block; None with fewer than two of them, and
            where hits inside a block are off.
        pins: requests whose path passes through here; never less than a child's.
        priority, ttl: retention of all its blocks.
        last_access, created: see `Facts`.
    """

    __slots__ = (
        "blocks",
        "children",
        "created",
        "digests",
        "end",
        "extras",
        "index",
        "last_access",
        "parent",
        "pins",
        "priority",
        "tokens",
        "ttl",
    )

    def __init__(
        self,
        parent: Node | None,
        tokens: bytes,
        digests: bytes,
        blocks: array[int],
        extras: Extras | None,
        end: int,
        terms: tuple[int, float | None],
        tick: int,
    ) -> None:
        self.parent = parent
        self.tokens = tokens
        self.digests = digests
        self.blocks = blocks
        self.extras = extras
        self.end = end
        self.children: dict[bytes, Node] = NO_CHILDREN
        self.index: ChildIndex[Node] | None = None
        self.pins = 0
        self.priority, self.ttl = terms
        self.created = self.last_access = tick

    def __repr__(self) -> str:
        return f"Node(end={self.end}, blocks={len(self.blocks)}, pins={self.pins}, children={len(self.children)})"

    @property
    def first_digest(self) -> bytes:
        """What the parent finds this node by."""
        return self.digests[:DIGEST_BYTES]

    @property
    def last_digest(self) -> bytes:
        """What a block behind this node continues from."""
        return self.digests[-DIGEST_BYTES:]

    @property
    def key_after(self) -> bytes | None:
        """The key of the block before whatever hangs from this node; None at the beginning of a prompt."""
        return self.last_digest if self.parent is not None else None

    def key_before(self, block: int) -> bytes | None:
        """The key of the block before this one of its own; None at the beginning of a prompt."""
        if block:
            return self.digests[(block - 1) * DIGEST_BYTES : block * DIGEST_BYTES]
        return self.parent.key_after if self.parent is not None else None

    def keys(self, first: int = 0) -> list[bytes]:
        """The digests from block `first` on, one by one."""
        digests = self.digests
        return [digests[at : at + DIGEST_BYTES] for at in range(first * DIGEST_BYTES, len(digests), DIGEST_BYTES)]


class Place:
    """One stored block: the one that ends at token `end` of the path through `node`, which ends there or behind."""

    __slots__ = ("end", "node")

    def __init__(self, node: Node, end: int) -> None:
        self.node = node
        self.end = end
