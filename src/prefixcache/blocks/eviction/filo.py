"""filo: what was stored last leaves first."""

from __future__ import annotations

from prefixcache.blocks.eviction.base import Facts, Policy


def rank(facts: Facts) -> tuple[int, ...]:
    """By youth; of those stored together, the least recently used."""
    return (-facts.created, facts.last_access)


FILO = Policy("filo", rank)
