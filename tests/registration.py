"""The designs under test: one line each puts a design under all contract and model tests.

`options` are the values that randomised tests draw, besides what the design does by default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from prefixcache.blocks.eviction import POLICIES


def weak_hash(message: bytes) -> int:
    """A hash under which most blocks collide."""
    return sum(message) % 3


def same_hash(page: bytes) -> int:
    """A routing hash under which all children collide."""
    return 7


@dataclass(frozen=True)
class Traits:
    options: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    partial: str = "off"  # what the option is by default
    tails: bool = False  # the partial block at the end of a request stays findable
    lookahead_by: str = "drop"  # what the option is by default
    eviction: str = "lru"  # what it is by default
    block_sizes: tuple[int, ...] = (1, 2, 4, 16)  # what it can be built with, of those that tests draw


_COMMON: dict[str, tuple[Any, ...]] = {"store_last": (False,), "lookahead": (1,), "must_fit": (True,)}
_RANKED = {**_COMMON, "eviction": tuple(POLICIES)}
_RADIX = {
    "evict_unit": ("node",),
    "partial": ("copy",),
    "lookahead_by": ("drop",),
    "recency": ("use",),
    "refresh_on_split": (True,),
    "count_hits": ("insert",),
    "cut_at_prompt": (True,),
    "child_hash": (same_hash,),
}
_HASH_CHAIN = {
    "hash": ("xxh3-128", weak_hash),
    "search": ("linear", "galloping"),
    "lookahead_by": ("key",),
    "duplicates": ("keep",),
    "visibility": ("step",),
}
_BLOCK_TRIE = {"partial": ("off", "take"), "tails": ("all",), "child_limit": (1, 2, 32)}
_DIGEST_CHAIN = {"partial": ("off", "take"), "evict_unit": ("node",), "child_limit": (1, 2, 32)}

DESIGNS: dict[str, Traits] = {
    "naive": Traits(_COMMON),
    "radix": Traits(_RANKED | _RADIX, lookahead_by="key"),
    "hash_chain": Traits(_RANKED | _HASH_CHAIN),
    "block_trie": Traits(_RANKED | _BLOCK_TRIE, partial="copy", tails=True, eviction="priority"),
    "digest_chain": Traits(_RANKED | _DIGEST_CHAIN, partial="copy", tails=True, eviction="priority"),
    "token_trie": Traits(_COMMON, block_sizes=(1,)),
}
# The contract is told in examples of several tokens a block; what cannot have them is held by the model tests.
AT_ANY_BLOCK_SIZE = {name: traits for name, traits in DESIGNS.items() if 4 in traits.block_sizes}
