"""The one door to a cache: `PrefixCache` and the `Request` it hands out."""

from prefixcache.cache.books import Books, Copy, Hit, Planned, RequestStats, Stats
from prefixcache.cache.explain import Explanation
from prefixcache.cache.lock import LockHolds
from prefixcache.cache.prefix_cache import PrefixCache
from prefixcache.cache.presets import PRESETS, Preset
from prefixcache.cache.request import Pin, Request

__all__ = [
    "PRESETS",
    "Books",
    "Copy",
    "Explanation",
    "Hit",
    "LockHolds",
    "Pin",
    "Planned",
    "PrefixCache",
    "Preset",
    "Request",
    "RequestStats",
    "Stats",
]
