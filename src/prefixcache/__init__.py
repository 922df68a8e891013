"""Prefix caching for LLM inference: four matching designs behind one contract."""

from prefixcache.blocks import CopyWorkers, KVStore, Transfer
from prefixcache.blocks.eviction import POLICIES, Policy, slru, tlru
from prefixcache.cache import (
    PRESETS,
    Books,
    Copy,
    Explanation,
    Hit,
    LockHolds,
    Pin,
    Planned,
    PrefixCache,
    Preset,
    Request,
    RequestStats,
    Stats,
)
from prefixcache.cache.scheduling import Waiting, defer_shared, depth_first_weight, longest_prefix_first
from prefixcache.designs import DESIGNS, Options, OutlineNode
from prefixcache.designs.groups import Full, Recurrent, Window
from prefixcache.errors import (
    InvariantError,
    NoSpace,
    OptionError,
    PrefixCacheError,
    RequestError,
    ScopeError,
    TokenError,
)
from prefixcache.events import Cleared, Event, Moved, Removed, Stored
from prefixcache.keys import Media, Scope

__version__ = "0.1.0"

__all__ = [
    "DESIGNS",
    "POLICIES",
    "PRESETS",
    "Books",
    "Cleared",
    "Copy",
    "CopyWorkers",
    "Event",
    "Explanation",
    "Full",
    "Hit",
    "InvariantError",
    "KVStore",
    "LockHolds",
    "Media",
    "Moved",
    "NoSpace",
    "OptionError",
    "Options",
    "OutlineNode",
    "Pin",
    "Planned",
    "Policy",
    "PrefixCache",
    "PrefixCacheError",
    "Preset",
    "Recurrent",
    "Removed",
    "Request",
    "RequestError",
    "RequestStats",
    "Scope",
    "ScopeError",
    "Stats",
    "Stored",
    "TokenError",
    "Transfer",
    "Waiting",
    "Window",
    "__version__",
    "defer_shared",
    "depth_first_weight",
    "longest_prefix_first",
    "slru",
    "tlru",
]
