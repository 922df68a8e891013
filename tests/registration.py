"""The designs under test: one line each puts a design under all contract and model tests.

`options` are the values that randomised tests draw, besides what the design does by default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


def weak_hash(message: bytes) -> int:
    """A hash under which most blocks collide."""
    return sum(message) % 3


def same_hash(page: bytes) -> int:
    """A routing hash under which all children collide."""
    return 7


@dataclass(frozen=True)
class Traits:
    options: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    partial: bool = False  # a hit may end inside a block, unless told otherwise
    tails: bool = False  # the partial block at the end of a request stays findable


DESIGNS: dict[str, Traits] = {
    "naive": Traits(),
    "radix": Traits({"evict_unit": ("tail", "node"), "child_hash": (None, same_hash)}),
    "hash_chain": Traits({"hash": ("xxh3-128", weak_hash)}),
}
