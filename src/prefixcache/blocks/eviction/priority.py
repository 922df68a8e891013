"""priority: the least retention priority leaves first, even if it was just used."""

from __future__ import annotations

from prefixcache.blocks.eviction.base import Facts, Policy


def rank(facts: Facts) -> tuple[int, ...]:
    """By priority; of equal ones, the least recently used."""
    return (facts.priority, facts.last_access)


PRIORITY = Policy("priority", rank, frozenset({"priority"}))
