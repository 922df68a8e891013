"""Which idle block goes next: policies as siblings behind one small interface."""

from __future__ import annotations

from prefixcache.blocks.eviction.base import Facts, IdleQueue, Item, Owner
from prefixcache.blocks.eviction.idle import IdleItems
from prefixcache.blocks.eviction.lru import ReleaseOrder
from prefixcache.blocks.eviction.policies import POLICIES
from prefixcache.blocks.eviction.ranked import RankedQueue
from prefixcache.errors import OptionError

__all__ = ["POLICIES", "Facts", "IdleItems", "IdleQueue", "Owner", "RankedQueue", "ReleaseOrder", "idle_items"]


def idle_items(policy: str, owner: Owner[Item]) -> IdleItems[Item]:
    """The idle items of `owner` under the policy of this name. Raises `OptionError` for an unknown one."""
    if policy == "lru":
        return IdleItems(ReleaseOrder())
    if policy not in POLICIES:
        raise OptionError(f"eviction is {policy!r}: expected one of {', '.join(POLICIES)}")
    return IdleItems(RankedQueue(POLICIES[policy], owner))
