"""The JSON: every row of every trace as one flat object, for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from prefixcache.replay.report.sentences import sentences
from prefixcache.replay.results import Comparison, Row


def as_document(comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """An object of JSON types: `traces`, one per comparison, and `rows`, those of all of them in order."""
    return {
        "traces": [_trace(comparison) for comparison in comparisons],
        "rows": [_row(comparison, row) for comparison in comparisons for row in comparison.rows],
    }


def _trace(comparison: Comparison) -> dict[str, Any]:
    trace = comparison.trace
    return {
        "trace": trace.name,
        "path": trace.path,
        "format": trace.format,
        "seed": trace.seed,
        "block_size": trace.block_size,
        "warm_up_requests": comparison.warm_up,
        "output_counted": comparison.outputs,
        "skipped_lines": trace.skipped,
        "sentences": sentences(comparison),
    }


def _row(comparison: Comparison, row: Row) -> dict[str, Any]:
    losses = row.losses
    return {
        "trace": comparison.trace.name,
        "design": row.design,
        "is_reference": row.is_reference,
        "eviction": row.eviction,
        "block_size": row.block_size,
        "capacity_tokens": row.capacity_tokens,
        "host_tokens": row.host_tokens,
        "requests": row.requests,
        "prompt_tokens": row.prompt_tokens,
        "hit_tokens": row.hit_tokens,
        "host_hit_tokens": row.host_hit_tokens,
        "ideal_tokens": row.ideal_tokens,
        "lost_last_token_tokens": losses.last_token,
        "lost_scope_tokens": losses.scope,
        "lost_limit_tokens": losses.limit,
        "lost_boundary_tokens": losses.boundary,
        "lost_eviction_tokens": losses.eviction,
        "lost_refused_tokens": losses.refused,
        "evicted_blocks": row.evicted_blocks,
        "refused_requests": row.refused_requests,
        "us_p50": row.us_p50,
        "us_p99": row.us_p99,
    }
