"""What stands under the table: where this traffic loses what, in words, and what a reader must know."""

from __future__ import annotations

from prefixcache.replay.report import numbers
from prefixcache.replay.report.table import HIDDEN_GRAIN, LOSSES, hides_grain
from prefixcache.replay.results import Comparison, Row

_WHERE = {
    "last_token": "to the last token of repeated prompts, which is always computed",
    "scope": "to scopes, the same text under another model, adapter or salt",
    "limit": "to a rule of the design",
    "boundary": "at block boundaries",
    "eviction": "to eviction",
    "refused": "to refused requests, which found no room",
}
_WORTH_A_WORD = 0.0005


def sentences(comparison: Comparison) -> list[str]:
    """Two sentences on what is reused and what is lost, an example where there is one, then notes."""
    designs = [row for row in comparison.rows if not row.is_reference]
    said = [_reused(designs), _lost(designs)]
    if comparison.example is not None:
        said.append(_example(comparison))
    return said + _notes(comparison)


def _reused(designs: list[Row]) -> str:
    best = max(designs, key=lambda row: row.hit_tokens)
    total = best.prompt_tokens
    return (
        f"{numbers.share(best.ideal_tokens, total)} of the prompt tokens begin as an earlier request did; "
        f"{_name(best, designs)} reuses the most, {numbers.share(best.hit_tokens, total)}."
    )


def _lost(designs: list[Row]) -> str:
    """The two reasons that cost most, each with the row where it costs most."""
    total = designs[0].prompt_tokens
    worst = {name: max(designs, key=lambda row: getattr(row.losses, name)) for name in LOSSES}
    cost = {name: getattr(row.losses, name) for name, row in worst.items()}
    ranked = sorted(LOSSES, key=lambda name: -cost[name])
    if not cost[ranked[0]]:
        return "Nothing is lost: every design here reuses all that repeats."
    parts = [
        f"{_WHERE[name]}, up to {numbers.share(cost[name], total)} ({_detail(name, worst[name], designs)})"
        for name in ranked[:2]
        if name == ranked[0] or cost[name] / total >= _WORTH_A_WORD
    ]
    return f"Most is lost {', then '.join(parts)}."


def _detail(name: str, row: Row, designs: list[Row]) -> str:
    detail = _name(row, designs)
    if name == "boundary":
        return f"{detail}: {row.losses.boundary / row.requests:,.0f} tokens a request"
    if name == "eviction":
        whole = row.hit_tokens + row.losses.eviction + row.losses.refused
        return f"{detail}; with unbounded capacity it would reuse {numbers.share(whole, row.prompt_tokens)}"
    if name == "refused":
        return f"{detail}: {row.refused_requests:,} requests"
    return detail


def _example(comparison: Comparison) -> str:
    example = comparison.example
    assert example is not None
    best, worst = comparison.rows[example.best], comparison.rows[example.worst]
    designs = [row for row in comparison.rows if not row.is_reference]
    return (
        f"Request {example.number:,} shares {example.shared:,} tokens: {_name(best, designs)} reuses "
        f"{example.best_hit:,}, {_name(worst, designs)} only {example.worst_hit:,}; "
        f"{example.best_hit - example.worst_hit:,} tokens sit in a partial block."
    )


def _notes(comparison: Comparison) -> list[str]:
    trace = comparison.trace
    notes = []
    if any(hides_grain(row, comparison) for row in comparison.rows):
        notes.append(
            f"{HIDDEN_GRAIN} Grain not visible in this trace: it is written in blocks of {trace.block_size} "
            "tokens, so smaller ones show no difference."
        )
    if comparison.warm_up:
        notes.append(f"The first {comparison.warm_up:,} requests filled the caches and are not counted.")
    if comparison.outputs:
        notes.append("Generated tokens went through the caches too; shares are of prompt tokens.")
    if trace.skipped:
        lines = "1 malformed line was" if trace.skipped == 1 else f"{trace.skipped:,} malformed lines were"
        notes.append(f"{lines} skipped.")
    if trace.holds_tokens and any(row.is_reference for row in comparison.rows):
        notes.append("A trace of tokens has no ids of its own, so there is no plain LRU over them.")
    return notes


def _name(row: Row, designs: list[Row]) -> str:
    """The design, with what it takes to tell it from the other rows."""
    name = row.design
    others = [other for other in designs if other is not row and other.design == row.design]
    if any(other.block_size != row.block_size for other in others):
        name += f" at {row.block_size}"
    if any(other.capacity_tokens != row.capacity_tokens for other in others):
        name += f" with {numbers.capacity(row.capacity_tokens)}"
    return name
