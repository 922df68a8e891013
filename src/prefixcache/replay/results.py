"""What a replay found out: plain values, the same for the table, JSON and whoever calls the library."""

from __future__ import annotations

from dataclasses import dataclass

from prefixcache.replay.losses import Losses
from prefixcache.replay.traces import Trace

# Rows that are no design.
CEILING, PLAIN_LRU = "ceiling", "plain_lru"


@dataclass(frozen=True, slots=True)
class Row:
    """What one setup made of a trace; sums over the counted requests.

    Attributes:
        design: name of the design or preset; `ceiling` and `plain_lru` are no designs.
        is_reference: a yardstick, not a design.
        eviction: name of the policy that ranks what may go; None in the ceiling, which evicts nothing.
        block_size: tokens per block; of a yardstick the trace's own.
        capacity_tokens: None = unbounded.
        host_tokens: room in the host tier below; 0 = there is none.
        requests, prompt_tokens: what was counted, the same in every row of a trace.
        ideal_tokens: what an unbounded cache could have reused to the token.
        hit_tokens: what was reused.
        host_hit_tokens: of these, what was loaded from the host tier.
        losses: why not more; they add up to ideal_tokens - hit_tokens.
        evicted_blocks: blocks evicted.
        refused_requests: requests that found no room.
        us_p50, us_p99: CPU microseconds in the cache's own calls per request; None where there are none.
    """

    design: str
    is_reference: bool
    eviction: str | None
    block_size: int
    capacity_tokens: int | None
    requests: int
    prompt_tokens: int
    ideal_tokens: int
    hit_tokens: int
    losses: Losses
    evicted_blocks: int
    refused_requests: int
    us_p50: float | None
    us_p99: float | None
    host_tokens: int = 0
    host_hit_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Example:
    """One request that shows what the grain of a design costs.

    Attributes:
        number: its place in the replay, from 1.
        shared: tokens that a cache of its scope could have reused.
        best, worst: the rows with the most and the fewest tokens reused, by index.
        best_hit, worst_hit: tokens these two reused.
    """

    number: int
    shared: int
    best: int
    worst: int
    best_hit: int
    worst_hit: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """The replay of one trace.

    Attributes:
        trace: the trace.
        rows: the setups in their order, then the yardsticks.
        warm_up: requests at the beginning that were replayed but not counted.
        outputs: whether generated tokens went through the caches too.
        example: a request to show, when there is one.
    """

    trace: Trace
    rows: tuple[Row, ...]
    warm_up: int
    outputs: bool
    example: Example | None
