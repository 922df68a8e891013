"""The policies as ranks: the smaller leaves first. Sources: SGLang 0.5.23, evict policies of its radix cache."""

from __future__ import annotations

from typing import Any

from prefixcache.blocks.eviction.base import Facts


def lru(facts: Facts) -> tuple[Any, ...]:
    """Least recently used first."""
    return (facts.last_access,)


POLICIES = {"lru": lru}
