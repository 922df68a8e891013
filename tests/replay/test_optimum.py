"""The yardsticks against the plainest programs that mean the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from prefixcache.replay.optimum import Ceiling, PlainLru
from prefixcache.replay.traces import Trace, TraceRequest
from tests.replay.writing import random_trace, request, trace


def _brute_force(of: Trace, among: Callable[[TraceRequest, TraceRequest], bool], output: bool) -> list[int]:
    """The longest beginning shared with any earlier request, token by token."""
    known: list[tuple[TraceRequest, list[int]]] = []
    found = []
    for now in of.requests:
        tokens = of.tokens(now).tolist()
        best = 0
        for earlier, text in known:
            if among(now, earlier):
                same = next((i for i, (a, b) in enumerate(zip(tokens, text, strict=False)) if a != b), None)
                best = max(best, min(len(tokens), len(text)) if same is None else same)
        found.append(best)
        computed = of.output_tokens(now).tolist()[: now.output_length - 1] if output else []
        known.append((now, tokens + computed))
    return found


@pytest.mark.parametrize("case", range(25))
@pytest.mark.parametrize("output", [False, True])
def test_the_ceiling_is_exact_to_the_token(case: int, output: bool, seed: int) -> None:
    made = random_trace(seed + case, scopes=1 + case % 3)
    ceiling = Ceiling(made)
    found = [ceiling.observe(r, output=output) for r in made.requests]
    assert [shared for shared, _ in found] == _brute_force(made, lambda now, then: True, output)
    own = _brute_force(made, lambda now, then: now.scope == then.scope, output)
    assert [same_scope for _, same_scope in found] == own
    assert sum(own) > 0


@pytest.mark.parametrize("case", range(10))
@pytest.mark.parametrize("output", [False, True])
def test_the_ceiling_of_a_trace_of_tokens(case: int, output: bool, seed: int) -> None:
    random = np.random.default_rng(seed + case)
    requests = [
        request(i, random.integers(0, 2, size=random.integers(1, 12)).tolist(), None, output=[1, 0, 1], output_length=3)
        for i in range(80)
    ]
    made = trace(requests, holds_tokens=True)
    ceiling = Ceiling(made)
    found = [ceiling.observe(r, output=output)[0] for r in made.requests]
    assert found == _brute_force(made, lambda now, then: True, output)


def test_a_piece_that_was_cut_short_is_shared_up_to_the_cut() -> None:
    made = trace(
        [
            request(0, [1, 2], None, length=16 + 5),
            request(1, [1, 2, 3], None, length=48),
            request(2, [1, 2], None, length=16 + 9),
        ],
        block_size=16,
    )
    ceiling = Ceiling(made)
    assert [ceiling.observe(r)[0] for r in made.requests] == [0, 21, 25]


def _slow_lru(of: Trace, capacity: int) -> list[int]:
    """A list of (whole beginning, size), least recently used first."""
    cached: list[tuple[tuple[int, ...], int]] = []
    hits = []
    for now in of.requests:
        pieces = now.pieces.tolist()
        sizes = now.lengths.tolist() if now.lengths is not None else [of.block_size] * len(pieces)
        named = len(pieces) - now.unnamed_tail
        prefixes = [tuple(pieces[: i + 1]) for i in range(named)]
        held = [prefix for prefix, _ in cached]
        run = next((i for i, prefix in enumerate(prefixes) if prefix not in held), named)
        hits.append(min(sum(sizes[:run]), now.length))
        for prefix, size in reversed(list(zip(prefixes, sizes, strict=False))):
            cached = [entry for entry in cached if entry[0] != prefix] + [(prefix, size)]
        while sum(size for _, size in cached) > capacity:
            cached.pop(0)
    return hits


@pytest.mark.parametrize("case", range(8))
def test_the_plain_lru_is_a_list_in_order_of_use(case: int, seed: int) -> None:
    made = random_trace(seed + case, cut=False)
    capacities = [20, 60, 150, 10_000]
    lru = PlainLru(made, capacities)
    found = [lru.hits(r) for r in made.requests]
    for column, capacity in enumerate(capacities):
        assert [hits[column] for hits in found] == _slow_lru(made, capacity)
    assert len({sum(column) for column in zip(*found, strict=True)}) == len(capacities)


def test_blocks_take_whole_blocks_and_tails_without_an_id_take_nothing() -> None:
    named = request(0, [1, 2], None, length=16 + 1)
    lru = PlainLru(trace([named], block_size=16), [31, 32])
    assert [lru.hits(named) for _ in range(2)] == [[0, 0], [16, 17]]
    tails = [replace(request(i, [i, 10 + i], None, length=16 + 1), unnamed_tail=True) for i in range(2)]
    lru = PlainLru(trace(tails, block_size=16), [16, 32])
    assert [lru.hits(tail) for tail in tails * 2] == [[0, 0], [0, 0], [0, 16], [0, 16]]
