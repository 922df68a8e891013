"""What a cache counts: where its blocks are, and how well it did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from prefixcache.cache.lock import LockHolds


@dataclass(frozen=True, slots=True)
class Books:
    """Where the blocks are; the four add up to the capacity.

    Attributes:
        free: empty.
        idle: cached and used by nobody.
        pinned: in a live request's table, or the source of an unfinished copy.
        quarantined: released while work that may still write them is in flight.
    """

    free: int
    idle: int
    pinned: int
    quarantined: int


@dataclass(frozen=True, slots=True)
class Hit:
    """What a probe found.

    Attributes:
        cached: tokens that could be reused now.
        need: blocks that admission of the whole prompt would draw from free + idle, matched idle ones included.
        tiers: cached tokens by the tier they lie in.
        reason: why not more, in a word or two: "complete" (all but the last token), "last token" (whole
            blocks would have covered it), "boundary", "not found", "empty", "lookahead", "read off",
            "uncacheable", "old generation", "anchor missing" (a sliding window would read a block that has gone),
            "no checkpoint" (no recurrent state was kept further on).
    """

    cached: int
    need: int
    tiers: Mapping[str, int]
    reason: str


def rate(hits: int, total: int) -> float:
    """What share of the total was hit: the one definition of every hit rate here; 0.0 of nothing."""
    return hits / total if total else 0.0


@dataclass(frozen=True, slots=True)
class RequestStats:
    """The blocks of one request since its latest admission, as TensorRT-LLM counts them.

    Attributes:
        allocated: blocks taken for it, empty or evicted.
        new: of these, blocks that had never held tokens.
        generated: of the allocated ones, those behind the prompt.
        reused: blocks of the prompt whose KV was cached, whole or in part.
        missed: blocks of the prompt whose KV was not.
    """

    allocated: int = 0
    new: int = 0
    generated: int = 0
    reused: int = 0
    missed: int = 0

    @property
    def hit_rate(self) -> float:
        """reused / (reused + missed)."""
        return rate(self.reused, self.reused + self.missed)


@dataclass(frozen=True, slots=True)
class Stats:
    """Monotonic counters since construction, recorded once per admission; lookups and refusals do not count.

    Attributes:
        requests: admissions of new requests, those that bypass reading included.
        queries: prompt tokens that were looked up at admission.
        hits: of these, tokens that were found.
        prompt_tokens: prompt tokens of all new requests, bypassing ones included.
        cached_tokens: of these, tokens that need not be computed.
        preempted_requests, preempted_queries, preempted_hits: the same for requests that were resumed.
        block_queries: full blocks of prompts that were looked up, of new and of resumed requests.
        block_hits: of these, blocks that were reused.
        published_blocks, evicted_blocks, copied_blocks: blocks so far.
        spilled_blocks, loaded_blocks: blocks copied into the tier below the device, and out of it.
        duplicate_blocks: blocks given back because another request had computed the same.
        lookahead_tokens: tokens not reused because a draft model looks one token ahead.
        anchor_missing_tokens, no_checkpoint_tokens: cached tokens not reused because a window had a hole within its
            reach, or because no recurrent state was kept there.
        allocated_blocks, new_blocks, generated_blocks, reused_blocks, missed_blocks: sums of `RequestStats`.
        lock_holds: how long calls held the cache's lock, by kind ("open", "computed", "release", ...) and "all"; empty
            without the option `lock_times`. No counter of what was done: two `Stats` that differ in it are equal.
    """

    requests: int = 0
    queries: int = 0
    hits: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    preempted_requests: int = 0
    preempted_queries: int = 0
    preempted_hits: int = 0
    block_queries: int = 0
    block_hits: int = 0
    published_blocks: int = 0
    evicted_blocks: int = 0
    copied_blocks: int = 0
    spilled_blocks: int = 0
    loaded_blocks: int = 0
    duplicate_blocks: int = 0
    lookahead_tokens: int = 0
    anchor_missing_tokens: int = 0
    no_checkpoint_tokens: int = 0
    allocated_blocks: int = 0
    new_blocks: int = 0
    generated_blocks: int = 0
    reused_blocks: int = 0
    missed_blocks: int = 0
    lock_holds: Mapping[str, LockHolds] = field(default_factory=dict, compare=False)

    @property
    def hit_rate(self) -> float:
        """hits / queries; 0.0 before the first query."""
        return rate(self.hits, self.queries)

    @property
    def block_hit_rate(self) -> float:
        """block_hits / block_queries, as vLLM 0.8.5 counts; 0.0 before the first query."""
        return rate(self.block_hits, self.block_queries)

    @property
    def reuse_rate(self) -> float:
        """reused_blocks / (reused_blocks + missed_blocks), as TensorRT-LLM counts."""
        return rate(self.reused_blocks, self.reused_blocks + self.missed_blocks)

    @property
    def hit_tokens(self) -> int:
        """The same as `hits`: a hit is counted in tokens."""
        return self.hits


@dataclass(slots=True)
class Counters:
    """The part of `Stats` that the cache itself counts, while it runs."""

    requests: int = 0
    queries: int = 0
    hits: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    preempted_requests: int = 0
    preempted_queries: int = 0
    preempted_hits: int = 0
    block_queries: int = 0
    block_hits: int = 0
    published_blocks: int = 0
    copied_blocks: int = 0
    duplicate_blocks: int = 0
    lookahead_tokens: int = 0
    anchor_missing_tokens: int = 0
    no_checkpoint_tokens: int = 0
    allocated_blocks: int = 0
    new_blocks: int = 0
    generated_blocks: int = 0
    reused_blocks: int = 0
    missed_blocks: int = 0


@dataclass(slots=True)
class BlockCounters:
    """`RequestStats` while the request runs."""

    allocated: int = 0
    new: int = 0
    generated: int = 0
    reused: int = 0
    missed: int = 0


@dataclass(frozen=True, slots=True)
class Planned:
    """What one request of a batch would get from `open_batch` now.

    Attributes:
        cached: tokens that need not be computed.
        need: blocks it would draw from free + idle; with `must_fit` those that its whole prompt would draw.
        fits: whether it would be admitted with those before it; else it would come back as `NoSpace`.
        wait: whether an earlier request, of the batch or live, is computing the next block that this one
            needs: a step later it would be a hit.
        reason: why not more, as in `Hit`.
    """

    cached: int
    need: int
    fits: bool
    wait: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Copy:
    """KV to be copied before a request writes: the first `tokens` slots of one block into another.

    Attributes:
        source, target: block ids, each in its tier.
        tokens: slots from the beginning of the block.
        group: attention group the blocks belong to.
        source_tier, target_tier: where they lie: "device", or "host" for a block that is loaded or spilled.
    """

    source: int
    target: int
    tokens: int
    group: int = 0
    source_tier: str = "device"
    target_tier: str = "device"

    @property
    def own(self) -> int:
        """The block of the request's table: the target, or of a copy into the tier below the source."""
        return self.target if self.target_tier == "device" else self.source


def snapshot(blocks: Any) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Block ids as a read-only int32 array that shares no memory with the cache."""
    table = np.array(blocks, dtype=np.int32)
    table.setflags(write=False)
    return table
