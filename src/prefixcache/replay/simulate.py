"""The replay: every setup sees the same requests, one after the other, in one pass over the trace.

A request is opened, its prompt computed, its output appended and computed if outputs count, and closed,
before the next one is opened. The prompt is expanded once for all setups and dropped again.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from time import thread_time_ns

import numpy as np

from prefixcache.cache import PrefixCache
from prefixcache.errors import NoSpace, OptionError
from prefixcache.replay.losses import Losses, explain
from prefixcache.replay.optimum import Ceiling, PlainLru
from prefixcache.replay.results import CEILING, PLAIN_LRU, Comparison, Example, Row
from prefixcache.replay.setups import Setup
from prefixcache.replay.traces import Trace, TraceRequest
from prefixcache.replay.traces.base import NOTHING, UInt32s

_NS_PER_US = 1000.0
# Options that decide what is evicted, or how it is found, but not what a cache that never evicts can find.
# One that is not here is taken for a rule of the design, which costs a second replay and is never wrong.
_HIDES_NOTHING = frozenset(
    [
        *("partial", "duplicates", "hash", "visibility", "search", "must_fit", "media", "tails", "lookahead_by"),
        *("evict_unit", "evict_from", "recency", "refresh_on_split", "count_hits", "cut_at_prompt", "priorities"),
        *("events", "event_buffer", "removals", "lock_times"),
    ]
)


def compare(
    trace: Trace,
    setups: Sequence[Setup],
    *,
    warm_up: float = 0.0,
    outputs: bool = False,
    reference: bool = False,
    progress: Callable[[], None] = lambda: None,
) -> Comparison:
    """Replay a trace through every setup.

    Args:
        trace: the requests.
        setups: one row each.
        warm_up: share of the requests at the beginning that fill the caches but are not counted, below 1.
        outputs: generated tokens are appended and computed too, and may be reused by later turns.
        reference: add the rows that are no design: the ceiling, and for a trace of ids a plain LRU per
            bounded capacity.
        progress: called after each request.

    Raises `OptionError` for a setup or a share that makes no sense. Time and memory are those of the
    caches and of one expanded prompt.
    """
    if not 0.0 <= warm_up < 1.0:
        raise OptionError(f"warm-up is {warm_up}: expected a share from 0 up to, not including, 1")
    replay = _Replay(trace, setups, int(len(trace.requests) * warm_up), outputs, reference)
    for number, request in enumerate(trace.requests, 1):
        replay.play(number, request)
        progress()
    return replay.comparison()


class _Replay:
    """All setups and yardsticks of one trace, on their way through it."""

    def __init__(self, trace: Trace, setups: Sequence[Setup], warm_up: int, outputs: bool, reference: bool) -> None:
        self.trace, self.warm_up, self.outputs = trace, warm_up, outputs
        self.runs = [_Run(setup) for setup in setups]
        self.ceiling = Ceiling(trace)
        self.reference = reference
        bounded = list(dict.fromkeys(s.capacity_tokens for s in setups if s.capacity_tokens is not None))
        self.lru_capacities = bounded if reference and not trace.holds_tokens else []
        self.lru = PlainLru(trace, self.lru_capacities)
        self.lru_hit_tokens = [0] * len(self.lru_capacities)
        self.requests = self.prompt_tokens = self.ideal_tokens = 0
        self.example: Example | None = None
        self.example_loss = 0

    def play(self, number: int, request: TraceRequest) -> None:
        if number == self.warm_up + 1:
            for run in self.runs:
                run.start_counting()
        tokens = self.trace.tokens(request)
        output = self.trace.output_tokens(request) if self.outputs else NOTHING
        shared, own = self.ceiling.observe(request, output=self.outputs)
        played = [run.play(tokens, output, request) for run in self.runs]
        lru_hits = self.lru.hits(request) if self.lru_capacities else []
        if number <= self.warm_up:
            return
        self.requests += 1
        self.prompt_tokens += request.length
        self.ideal_tokens += shared
        lost = [run.count(request, outcome, shared, own) for run, outcome in zip(self.runs, played, strict=True)]
        self.lru_hit_tokens = [total + hit for total, hit in zip(self.lru_hit_tokens, lru_hits, strict=True)]
        self._show(number, min(own, request.length - 1), [outcome.hit for outcome in played], lost)

    def _show(self, number: int, usable: int, hits: list[int | None], lost: list[Losses]) -> None:
        """Keep the request whose widest gap between two rows is due to blocks alone."""
        if usable not in hits:
            return
        for row, (hit, losses) in enumerate(zip(hits, lost, strict=True)):
            if hit and losses.boundary > self.example_loss and hit + losses.boundary == usable:
                self.example_loss = losses.boundary
                self.example = Example(number, usable, hits.index(usable), row, usable, hit)

    def comparison(self) -> Comparison:
        totals = (self.requests, self.prompt_tokens, self.ideal_tokens)
        rows = [run.row(*totals) for run in self.runs]
        if self.reference:
            rows.append(_reference_row(CEILING, self.trace, None, self.ideal_tokens, totals))
            rows += [
                _reference_row(PLAIN_LRU, self.trace, capacity, hit_tokens, totals)
                for capacity, hit_tokens in zip(self.lru_capacities, self.lru_hit_tokens, strict=True)
            ]
        return Comparison(self.trace, tuple(rows), self.warm_up, self.outputs, self.example)


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What one cache did with one request.

    Attributes:
        hit: tokens reused; None when it was refused.
        unbounded: the same for a cache of this kind without bounds, where arithmetic does not tell.
        nanoseconds: time inside the cache.
    """

    hit: int | None
    unbounded: int | None
    nanoseconds: int


class _Run:
    """One setup on its way through the trace."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.cache = setup.build()
        options = self.cache.options
        self.grain = 1 if options.partial != "off" else setup.block_size
        self.has_rules = options.partial == "take" or any(
            getattr(options, option.name) != option.default
            for option in fields(options)
            if option.name not in _HIDES_NOTHING
        )
        second = self.has_rules and setup.capacity_tokens is not None
        self.unbounded = setup.build(bounded=False) if second else None
        self.hit_tokens = self.refused = self.evicted_before = self.loaded_before = 0
        self.losses = Losses()
        self.nanoseconds = array("q")

    def play(self, tokens: UInt32s, output: UInt32s, request: TraceRequest) -> _Outcome:
        hit, nanoseconds = _play(self.cache, tokens, output, request)
        if self.unbounded is not None:
            return _Outcome(hit, _play(self.unbounded, tokens, output, request)[0], nanoseconds)
        return _Outcome(hit, hit if self.has_rules else None, nanoseconds)

    def start_counting(self) -> None:
        stats = self.cache.stats()
        self.evicted_before, self.loaded_before = stats.evicted_blocks, stats.loaded_blocks

    def count(self, request: TraceRequest, outcome: _Outcome, shared: int, own: int) -> Losses:
        """Add one request to the sums; returns what it lost."""
        losses = explain(
            length=request.length,
            shared=shared,
            own=own,
            grain=self.grain,
            unbounded=outcome.unbounded,
            hit=outcome.hit,
        )
        self.hit_tokens += outcome.hit or 0
        self.refused += outcome.hit is None
        self.losses.add(losses)
        self.nanoseconds.append(outcome.nanoseconds)
        return losses

    def row(self, requests: int, prompt_tokens: int, ideal_tokens: int) -> Row:
        stats = self.cache.stats()
        p50, p99 = np.percentile(np.frombuffer(self.nanoseconds, dtype=np.int64), (50, 99)) / _NS_PER_US
        return Row(
            design=self.setup.design,
            is_reference=False,
            eviction=self.setup.eviction,
            block_size=self.setup.block_size,
            capacity_tokens=self.setup.capacity_tokens,
            requests=requests,
            prompt_tokens=prompt_tokens,
            ideal_tokens=ideal_tokens,
            hit_tokens=self.hit_tokens,
            losses=self.losses,
            evicted_blocks=stats.evicted_blocks - self.evicted_before,
            refused_requests=self.refused,
            us_p50=float(p50),
            us_p99=float(p99),
            host_tokens=self.setup.host_tokens,
            host_hit_tokens=(stats.loaded_blocks - self.loaded_before) * self.setup.block_size,
        )


def _play(cache: PrefixCache, tokens: UInt32s, output: UInt32s, request: TraceRequest) -> tuple[int | None, int]:
    """(tokens reused, None when refused; nanoseconds in the cache).

    Only the cache's own calls are timed, in CPU time of this thread: what else the machine does is not theirs.
    """
    started = thread_time_ns()
    try:
        live = cache.open(tokens, request.scope)
    except NoSpace:
        return None, thread_time_ns() - started
    live.copied()
    live.computed(request.length)
    if output.size:
        try:
            live.append(output)
        except NoSpace:
            pass  # an output that finds no room is cut off
        else:
            live.copied()
            live.computed(request.length + output.size - 1)
    live.close()
    return live.cached, thread_time_ns() - started


def _reference_row(name: str, trace: Trace, capacity: int | None, hit_tokens: int, totals: tuple[int, int, int]) -> Row:
    requests, prompt_tokens, ideal_tokens = totals
    return Row(
        design=name,
        is_reference=True,
        eviction=None if name == CEILING else "lru",
        block_size=trace.block_size,
        capacity_tokens=capacity,
        requests=requests,
        prompt_tokens=prompt_tokens,
        ideal_tokens=ideal_tokens,
        hit_tokens=hit_tokens,
        losses=Losses(eviction=ideal_tokens - hit_tokens),
        evicted_blocks=0,
        refused_requests=0,
        us_p50=None,
        us_p99=None,
    )
