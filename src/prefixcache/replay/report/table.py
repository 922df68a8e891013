"""The table: one line per setup; losses stand in the order in which they are subtracted from the ceiling."""

from __future__ import annotations

from rich.table import Table

from prefixcache.replay.report import numbers
from prefixcache.replay.results import CEILING, PLAIN_LRU, Comparison, Row

# Field of `Losses` -> heading, in the order of subtraction.
LOSSES = {
    "last_token": "last token",
    "scope": "scope",
    "limit": "limit",
    "boundary": "boundary",
    "eviction": "evicted",
    "refused": "refused",
}
REFERENCE_NAMES = {CEILING: "ceiling", PLAIN_LRU: "plain LRU"}
HIDDEN_GRAIN = "*"
# A replay gives no request a priority, and among equal priorities the least recently used goes first.
_POLICIES = {"lru": "LRU", "priority": "LRU"}


def title(comparison: Comparison) -> str:
    """What was replayed, in one line: requests, tokens, capacity, and what nobody can beat."""
    first = comparison.rows[0]
    parts = [f"{first.requests:,} requests", f"{numbers.tokens(first.prompt_tokens)} tokens"]
    if comparison.trace.seed is not None:
        parts.append(f"seed {comparison.trace.seed}")
    capacities = {row.capacity_tokens for row in _designs(comparison)}
    if len(capacities) == 1:
        only = capacities.pop()
        parts.append("unbounded capacity" if only is None else f"capacity {numbers.capacity(only)} tokens")
    host = max(row.host_tokens for row in _designs(comparison))
    if host:
        parts.append(f"host {numbers.capacity(host)} tokens")
    policies = {_POLICIES.get(str(row.eviction), str(row.eviction)) for row in _designs(comparison)}
    if len(policies) == 1:
        parts += policies
    ceiling = numbers.share(first.ideal_tokens, first.prompt_tokens)
    return f"{comparison.trace.name}: {', '.join(parts)}; ceiling {ceiling}"


def as_table(comparison: Comparison) -> Table:
    """The rows. A loss that is zero in every row has no column; shares are of all prompt tokens."""
    digits = 2 if any(row.is_reference for row in comparison.rows) else 1
    columns = [name for name in LOSSES if any(getattr(row.losses, name) for row in comparison.rows)]
    several = len({row.capacity_tokens for row in _designs(comparison)}) > 1
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("design", no_wrap=True)
    table.add_column("block", justify="right", no_wrap=True)
    if several:
        table.add_column("capacity", justify="right", no_wrap=True)
    below = ["from host"] if any(row.host_tokens for row in comparison.rows) else []
    for heading in ["reused", *below, *(LOSSES[name] for name in columns), "us p50", "us p99"]:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in comparison.rows:
        cells = [REFERENCE_NAMES.get(row.design, row.design), _block(row, comparison)]
        if several:
            cells.append("" if row.design == CEILING else numbers.capacity(row.capacity_tokens))
        cells.append(numbers.share(row.hit_tokens, row.prompt_tokens, digits))
        cells += [numbers.share(row.host_hit_tokens, row.prompt_tokens, digits) for _ in below]
        cells += [numbers.share(getattr(row.losses, name), row.prompt_tokens, digits) for name in columns]
        cells += [numbers.microseconds(row.us_p50), numbers.microseconds(row.us_p99)]
        table.add_row(*cells, style="dim" if row.is_reference else None)
    return table


def hides_grain(row: Row, comparison: Comparison) -> bool:
    """Whether the row's blocks are finer than anything the trace can show."""
    return not row.is_reference and row.block_size < comparison.trace.block_size


def _block(row: Row, comparison: Comparison) -> str:
    return f"{row.block_size}{HIDDEN_GRAIN if hides_grain(row, comparison) else ''}"


def _designs(comparison: Comparison) -> list[Row]:
    return [row for row in comparison.rows if not row.is_reference]
