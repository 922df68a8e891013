"""What an operator may see of an index: its nodes, whatever the design."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from prefixcache.keys.tokens import Buffer, to_tuple


@dataclass(frozen=True, slots=True)
class OutlineNode:
    """One node of the index: an edge of a tree, or a block of a chain.

    Attributes:
        parent: place in the outline of the node that it continues, -1 for the beginning of a prompt.
        tokens: the tokens of its blocks; empty where the design keeps none (`hash_chain`).
        blocks: the ids of its blocks, in prompt order; of a chain all copies of the one block; none for a hole.
        pins: how many hold it.
        keys: the keys of its blocks, as events name them; empty where none are made (events off).
    """

    parent: int
    tokens: tuple[int, ...]
    blocks: tuple[int, ...]
    pins: int
    keys: tuple[bytes, ...]


Row = tuple[Hashable, Hashable, Buffer, Sequence[int], int, Sequence[bytes]]  # node, its parent, then the fields


def outline_of(rows: Iterable[Row]) -> list[OutlineNode]:
    """Nodes, parents before children; a parent that is no row itself is a root. O(cached tokens)."""
    places: dict[Hashable, int] = {}
    outline: list[OutlineNode] = []
    for node, parent, tokens, blocks, pins, keys in rows:
        places[node] = len(outline)
        outline.append(OutlineNode(places.get(parent, -1), to_tuple(tokens), tuple(blocks), pins, tuple(keys)))
    return outline
