"""fifo: what was stored first leaves first."""

from __future__ import annotations

from prefixcache.blocks.eviction.base import Facts, Policy


def rank(facts: Facts) -> tuple[int, ...]:
    """By age; of those stored together, the least recently used."""
    return (facts.created, facts.last_access)


FIFO = Policy("fifo", rank)
