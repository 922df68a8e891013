"""Which idle block goes next: policies as siblings behind one small interface."""

from __future__ import annotations

from prefixcache.blocks.eviction.base import Facts, IdleQueue, Owner
from prefixcache.blocks.eviction.lru import ReleaseOrder
from prefixcache.blocks.eviction.policies import POLICIES
from prefixcache.blocks.eviction.ranked import RankedQueue

__all__ = ["POLICIES", "Facts", "IdleQueue", "Owner", "RankedQueue", "ReleaseOrder"]
