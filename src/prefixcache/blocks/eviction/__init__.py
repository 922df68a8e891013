"""Which idle block goes next: policies as siblings behind one small interface."""

from __future__ import annotations

from prefixcache.blocks.eviction.base import Facts, IdleQueue, Item, Owner, Policy
from prefixcache.blocks.eviction.idle import IdleItems
from prefixcache.blocks.eviction.lru import ReleaseOrder
from prefixcache.blocks.eviction.policies import POLICIES, read_policy
from prefixcache.blocks.eviction.ranked import RankedQueue
from prefixcache.blocks.eviction.slru import slru
from prefixcache.blocks.eviction.tlru import tlru

__all__ = [
    "POLICIES",
    "Facts",
    "IdleItems",
    "IdleQueue",
    "Owner",
    "Policy",
    "RankedQueue",
    "ReleaseOrder",
    "idle_items",
    "read_policy",
    "slru",
    "tlru",
]


def idle_items(
    eviction: str | Policy, owner: Owner[Item], by_release: bool = True, interior: bool = False
) -> IdleItems[Item]:
    """The idle items of `owner` under a policy. Raises `OptionError` for an unknown one.

    Args:
        eviction: a name of `POLICIES`, or a policy.
        owner: the design, asked for facts.
        by_release: recency is set by releases alone, so that LRU needs no ranks.
        interior: an item may leave before what hangs on it, if its rank says so.
    """
    policy = read_policy(eviction)
    if by_release and policy is POLICIES["lru"]:
        return IdleItems(ReleaseOrder())
    return IdleItems(RankedQueue(policy, owner, interior))
