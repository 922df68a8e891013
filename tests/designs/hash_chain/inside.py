"""A look inside a cache, for tests of what cannot be seen from outside."""

from __future__ import annotations

from prefixcache import PrefixCache
from prefixcache.designs.hash_chain import HashChainDesign


def design_of(cache: PrefixCache) -> HashChainDesign:
    design = cache._core.design
    assert isinstance(design, HashChainDesign)
    return design
