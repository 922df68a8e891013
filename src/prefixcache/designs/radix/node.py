"""The nodes of the radix tree, and the names by which a request remembers a place in it."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, overload

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
        index: the children by the beginning of their first page, where there are many and it was needed.
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

    def last(self, pages: int) -> tuple[tuple[bytes, ...], bytes | None, array[int]]:
        """Its last pages: their keys, the key of the page before them, and their blocks."""
        at = len(self.blocks) - pages
        return self.page_keys[at:], key_before(self.parent, self, at), self.blocks[at:]


def key_before(node: Node | None, inside: Node | None, page: int) -> bytes | None:
    """The key of what comes before page `page` of `inside`, a child of `node`; None at the beginning of a prompt."""
    if inside is not None and page:
        return inside.page_keys[page - 1]
    return node.page_keys[-1] if node is not None and node.page_keys else None


class PathBlocks(Sequence[int]):
    """The blocks of a matched path, put together only when somebody looks: a probe just counts them.

    Valid as long as the tree is not changed.
    """

    __slots__ = ("_inside", "_length", "_page", "_pages", "_path")

    def __init__(self, path: list[Node], inside: Node | None, pages: int, page: int) -> None:
        self._path = path
        self._inside = inside
        self._pages = pages
        self._page = page
        self._length = (path[-1].end // page if path else 0) + pages

    def __len__(self) -> int:
        return self._length

    @property
    def idle(self) -> int:
        """How many are in nobody's table: the last ones, since a pinned node's parent is pinned. O(log nodes)."""
        if self._inside is not None and self._inside.pins:
            return 0
        pinned = bisect_left(self._path, True, key=lambda node: not node.pins)
        return self._length - (self._path[pinned - 1].end // self._page if pinned else 0)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> array[int]: ...
    def __getitem__(self, index: int | slice) -> int | array[int]:
        return self._together()[index]

    def __iter__(self) -> Iterator[int]:
        return iter(self._together())

    def _together(self) -> array[int]:
        blocks = array("i")
        for node in self._path:
            blocks.extend(node.blocks)
        if self._inside is not None:
            blocks.extend(self._inside.blocks[: self._pages])
        return blocks


class Moves(Sequence[tuple[int, int, int]]):
    """(table index, old block, new block) of runs of blocks that a request has moved, made when somebody looks.

    At page 1 there is one for each token of a prompt that somebody else was quicker to compute.
    """

    __slots__ = ("_length", "_runs")

    def __init__(self) -> None:
        self._runs: list[tuple[int, array[int], array[int]]] = []
        self._length = 0

    def add(self, index: int, old: array[int], new: array[int]) -> None:
        """The table's blocks from `index` on, `old` before and `new` now."""
        self._runs.append((index, old, new))
        self._length += len(old)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        for index, old, new in self._runs:
            yield from zip(range(index, index + len(old)), old, new, strict=True)

    @overload
    def __getitem__(self, index: int) -> tuple[int, int, int]: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[tuple[int, int, int]]: ...
    def __getitem__(self, index: int | slice) -> tuple[int, int, int] | Sequence[tuple[int, int, int]]:
        return list(self)[index]


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
