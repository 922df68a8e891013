"""slru: LRU in two segments. What was used only once (a scan, a one-off prompt) leaves before all others."""

from __future__ import annotations

from prefixcache.blocks.eviction.base import Facts, Policy
from prefixcache.errors import OptionError


def slru(protected_hits: int = 2) -> Policy:
    """The policy with another border between its segments.

    Args:
        protected_hits: requests that must have passed an item before it is protected, at least 1.
    """
    if isinstance(protected_hits, bool) or not isinstance(protected_hits, int) or protected_hits < 1:
        raise OptionError(f"slru: protected_hits is {protected_hits!r}: expected a number of requests from 1 on")

    def rank(facts: Facts) -> tuple[int, ...]:
        """Unprotected items first; within a segment the least recently used."""
        return (facts.hits >= protected_hits, facts.last_access)

    return Policy("slru", rank, frozenset({"hits"}))


SLRU = slru()
