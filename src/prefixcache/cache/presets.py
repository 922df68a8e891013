"""Presets: one release and class of an original each, as a design with options."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


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
    eviction: str | None = None
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
    "trtllm-v2": Preset(
        design="digest_chain",
        original="TensorRT-LLM, the block radix tree of its Python kv_cache_manager_v2 (mid 2026), one window",
        eviction="priority",
        options={"child_limit": 32, "evict_unit": "node"},
        batch="loop",
    ),
}
