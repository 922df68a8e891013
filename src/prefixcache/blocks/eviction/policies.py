"""The policies by name, in their default form."""

from __future__ import annotations

from prefixcache.blocks.eviction.base import Policy
from prefixcache.blocks.eviction.fifo import FIFO
from prefixcache.blocks.eviction.filo import FILO
from prefixcache.blocks.eviction.lfu import LFU
from prefixcache.blocks.eviction.lru import LRU
from prefixcache.blocks.eviction.mru import MRU
from prefixcache.blocks.eviction.priority import PRIORITY
from prefixcache.blocks.eviction.slru import SLRU
from prefixcache.blocks.eviction.tlru import TLRU
from prefixcache.errors import OptionError

POLICIES: dict[str, Policy] = {policy.name: policy for policy in (LRU, LFU, FIFO, MRU, FILO, PRIORITY, SLRU, TLRU)}


def read_policy(eviction: str | Policy) -> Policy:
    """The policy of this name, or the given one. Raises `OptionError` for an unknown name."""
    if isinstance(eviction, Policy):
        return eviction
    if not isinstance(eviction, str) or eviction not in POLICIES:
        raise OptionError(f"eviction is {eviction!r}: expected one of {', '.join(POLICIES)}, or a Policy")
    return POLICIES[eviction]
