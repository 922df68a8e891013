"""What an engine is made of: its memory, its cache, and what it says about them at the start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from prefixcache.blocks.pool import MAX_BLOCKS
from prefixcache.cache import PRESETS, PrefixCache
from prefixcache.designs import BASELINES, DESIGNS
from prefixcache.engine.kv_pool import KVPool
from prefixcache.engine.layout import Layout
from prefixcache.engine.memory import free_memory, gibibytes
from prefixcache.errors import OptionError, whole_number

SHARE_OF_FREE_MEMORY = 0.5


def end_tokens(model: Any, tokenizer: Any) -> frozenset[int]:
    """The tokens with which the model ends its answers."""
    given = getattr(model.generation_config, "eos_token_id", None)
    ends = {given} if isinstance(given, int) else set(given or ())
    own = getattr(tokenizer, "eos_token_id", None)
    return frozenset(ends | {own} if own is not None else ends)


def make_pool(model: Any, layout: Layout, block_size: int, memory: int | None, tiers: Any = None) -> KVPool:
    """A pool of this many bytes, or by default of half of what is free, in whole blocks; `tiers` as of a cache."""
    below = 0
    if isinstance(tiers, Mapping) and "host" in tiers:
        below = whole_number(tiers["host"], "tiers['host']", least=1, most=MAX_BLOCKS)
    if memory is None:
        memory = int(free_memory(model.device) * SHARE_OF_FREE_MEMORY)
    per_block = layout.numbers_per_token * block_size * model.dtype.itemsize
    blocks = whole_number(memory, "memory") // per_block
    if not blocks:
        raise OptionError(f"memory={memory} holds no block: one of {block_size} tokens takes {per_block:,} bytes")
    blocks = min(blocks, 2**31 // block_size)  # block ids are 32-bit integers
    try:
        return KVPool(
            layout.shapes,
            blocks=blocks,
            block_size=block_size,
            dtype=model.dtype,
            device=model.device,
            host_blocks=below,
        )
    except (MemoryError, torch.OutOfMemoryError):
        raise OptionError(
            f"memory={memory} cannot be had on {model.device}{f', nor {below:,} blocks on the host' if below else ''}: "
            f"{gibibytes(free_memory(model.device))} are free"
        ) from None


def make_cache(design: str, block_size: int, blocks: int, options: dict[str, Any]) -> PrefixCache:
    """A cache of a design or a preset. Raises `OptionError` for other names and for what the engine decides itself."""
    if "capacity" in options:
        raise OptionError("capacity cannot be given: it follows from memory")
    if options.get("groups") is not None:
        raise OptionError("groups cannot be given: the engine keeps the KV of all layers in blocks of one table")
    if not isinstance(design, str):
        raise OptionError(f"design is {design!r}: expected a name")
    if design in DESIGNS | BASELINES:
        return PrefixCache(design, block_size=block_size, capacity=blocks, **options)
    if design in PRESETS:
        return PrefixCache.preset(design, block_size=block_size, capacity=blocks, **options)
    raise OptionError(f"design is {design!r}: expected one of {', '.join([*DESIGNS, *BASELINES, *PRESETS])}")


def state_memory(pool: KVPool, model: Any, by_default: bool) -> str:
    """One sentence that says how much KV memory there is, and why."""
    why = ", half of the free memory" if by_default else ""
    kind = str(model.dtype).removeprefix("torch.")
    return (
        f"KV memory: {gibibytes(pool.nbytes)} on {model.device}{why}: {pool.blocks:,} blocks of {pool.block_size} "
        f"tokens in {kind}"
    )
