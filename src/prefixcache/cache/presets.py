"""Presets: one release and class of an original each, as a design with options."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from prefixcache.blocks.eviction import Policy
from prefixcache.designs.hash_chain import BY_STEP


@dataclass(frozen=True, slots=True)
class Preset:
    """How to build a cache that decides as an original does.

    Attributes:
        design: name of the design.
        original: the release and class it follows.
        eviction: the original's policy, None for the design's own.
        options: the design's options.
        batch: "claim" where a batch is one two-phase claim, "loop" where it is a loop of open.
    """

    design: str
    original: str
    eviction: str | Policy | None = None
    options: dict[str, Any] = field(default_factory=dict)
    batch: str = "claim"


PRESETS: dict[str, Preset] = {
    "sglang": Preset(
        design="radix",
        original="SGLang 0.5.23, RadixCache",
        eviction="lru",
        options={
            "evict_unit": "node",
            "recency": "use",
            "refresh_on_split": True,
            "count_hits": "insert",
            "cut_at_prompt": True,
            "priorities": "any",
        },
        batch="loop",
    ),
    "vllm-0.8.5": Preset(
        design="hash_chain",
        original="vLLM 0.8.5, PrefixCachingBlockAllocator",
        eviction=BY_STEP,
        options={"visibility": "step"},
        batch="loop",
    ),
    "vllm-1": Preset(
        design="hash_chain",
        original="vLLM 0.33.0, the block pool of its v1 engine",
        eviction="lru",
        options={"duplicates": "keep", "hash": "sha256_cbor", "search": "linear", "must_fit": True},
        batch="loop",
    ),
    "trtllm": Preset(
        design="block_trie",
        original="TensorRT-LLM, its C++ KV cache manager after the batch claim (mid 2026), one window, no host memory",
        eviction="priority",
        options={
            "partial": "take",
            "store_last": False,
            "duplicates": "keep",
            "evict_from": "anywhere",
            "media": "block",
            "tails": "all",
        },
    ),
    "trtllm-v2": Preset(
        design="digest_chain",
        original="TensorRT-LLM, the block radix tree of its Python kv_cache_manager_v2 (mid 2026), one window",
        eviction="priority",
        options={"child_limit": 32, "evict_unit": "node"},
        batch="loop",
    ),
}
