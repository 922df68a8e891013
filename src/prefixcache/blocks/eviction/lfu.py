"""lfu: the least often used leaves first."""

from __future__ import annotations

from prefixcache.blocks.eviction.base import Facts, Policy


def rank(facts: Facts) -> tuple[int, ...]:
    """By the number of requests that passed; of equally many, the least recently used."""
    return (facts.hits, facts.last_access)


LFU = Policy("lfu", rank, frozenset({"hits"}))
