"""mru: the most recently used leaves first. For scans that are longer than the cache."""

from __future__ import annotations

from prefixcache.blocks.eviction.base import Facts, Policy


def rank(facts: Facts) -> tuple[int, ...]:
    """By the last access, the latest first."""
    return (-facts.last_access,)


MRU = Policy("mru", rank)
