"""The replay: rows against an independent simulation, sums, and what is and is not counted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from prefixcache.cache import PRESETS
from prefixcache.designs import DESIGNS
from prefixcache.errors import OptionError
from prefixcache.keys import Scope
from prefixcache.replay.setups import Setup
from prefixcache.replay.simulate import compare
from prefixcache.replay.traces import Trace, read_trace
from prefixcache.replay.workloads import built_in
from tests.replay.block_lru import simulate
from tests.replay.writing import random_trace, request, trace

EXACT = [("radix", 1), ("radix", 4), ("radix", 16), ("hash_chain", 1), ("hash_chain", 4), ("hash_chain", 16)]


def _check_against_simulation(of: Trace, setups: list[Setup], *, outputs: bool = False) -> None:
    rows = compare(of, setups, outputs=outputs).rows
    for row, setup in zip(rows, setups, strict=True):
        capacity = setup.capacity_tokens
        assert capacity is not None
        hits, evicted = simulate(of, setup.block_size, capacity // setup.block_size, outputs=outputs)
        assert row.hit_tokens == sum(hit or 0 for hit in hits), setup
        assert row.refused_requests == sum(hit is None for hit in hits), setup
        assert row.evicted_blocks == evicted, setup


@pytest.mark.parametrize("case", range(6))
@pytest.mark.parametrize("outputs", [False, True])
def test_rows_are_those_of_an_independent_simulation(case: int, outputs: bool, seed: int) -> None:
    made = random_trace(seed + case, requests=120, scopes=1 + case % 2)
    setups = [Setup(name, size, capacity) for name, size in EXACT for capacity in (64, 160, 400, 10**6)]
    _check_against_simulation(made, setups, outputs=outputs)


@pytest.mark.parametrize("name", ["ragpulse_0_trace.jsonl.zst", "mooncake_conversation.jsonl.zst"])
def test_rows_of_a_real_trace_are_those_of_the_simulation(name: str, shared_dir: Path) -> None:
    whole = read_trace(shared_dir / "traces" / name)
    part = replace(whole, requests=whole.requests[:300])
    _check_against_simulation(part, [Setup("radix", 16, 200_000), Setup("hash_chain", 64, 200_000)])


@pytest.mark.parametrize("name", [*DESIGNS, *PRESETS])
@pytest.mark.parametrize("outputs", [False, True])
def test_losses_add_up_in_every_design_and_preset(name: str, outputs: bool, seed: int) -> None:
    made = random_trace(seed, requests=80, scopes=2)
    for capacity in (96, 320, None):
        row = compare(made, [Setup(name, 16, capacity)], outputs=outputs, warm_up=0.1).rows[0]
        losses = row.losses
        assert losses.total() == row.ideal_tokens - row.hit_tokens
        assert min(losses.last_token, losses.scope, losses.limit, losses.boundary) >= 0
        if capacity == 96:
            assert losses.eviction > 0
        if capacity is None:
            assert losses.eviction == losses.refused == row.evicted_blocks == 0


@pytest.mark.parametrize("name", [*DESIGNS, *PRESETS])
@pytest.mark.parametrize("outputs", [False, True])
def test_a_host_tier_gives_back_what_is_evicted(name: str, outputs: bool, seed: int) -> None:
    made = random_trace(seed, requests=120, scopes=2)
    small, tiered, large = compare(
        made, [Setup(name, 16, 320), Setup(name, 16, 320, 10**6), Setup(name, 16, None)], outputs=outputs
    ).rows
    assert small.host_hit_tokens == large.host_hit_tokens == 0
    assert 0 < tiered.host_hit_tokens <= tiered.hit_tokens
    assert small.hit_tokens < tiered.hit_tokens
    assert tiered.losses.total() == tiered.ideal_tokens - tiered.hit_tokens
    if name in ("radix", "hash_chain"):  # whole blocks alone, which all go down: nothing is lost for good
        assert tiered.hit_tokens + tiered.losses.refused == large.hit_tokens


@pytest.mark.parametrize("name", DESIGNS)
@pytest.mark.parametrize("size", [1, 4, 16])
def test_what_an_unbounded_cache_finds_is_arithmetic(name: str, size: int, seed: int) -> None:
    """No design hides anything by default: what is not on its grain is all that it loses."""
    row = compare(random_trace(seed, requests=150), [Setup(name, size, None)]).rows[0]
    assert row.losses.limit == row.losses.eviction == 0
    assert row.losses.last_token > 0


def test_a_warm_up_fills_the_caches_and_is_not_counted(seed: int) -> None:
    made = random_trace(seed, requests=100)
    setups = [Setup("radix", 1, 200), Setup("hash_chain", 16, 200)]
    whole = compare(made, setups, reference=True)
    late = compare(made, setups, reference=True, warm_up=0.5)
    early = compare(replace(made, requests=made.requests[:50]), setups, reference=True)
    assert late.warm_up == 50
    for all_of_it, second, first in zip(whole.rows, late.rows, early.rows, strict=True):
        assert second.requests == 50
        for field in ("prompt_tokens", "ideal_tokens", "hit_tokens", "evicted_blocks"):
            assert getattr(second, field) == getattr(all_of_it, field) - getattr(first, field), field
        assert second.losses.total() == second.ideal_tokens - second.hit_tokens


@pytest.mark.parametrize("warm_up", [-0.1, 1.0, 2.0, float("nan")])
def test_a_warm_up_is_a_share(warm_up: float) -> None:
    with pytest.raises(OptionError, match="expected a share"):
        compare(random_trace(1), [Setup("radix", 1, None)], warm_up=warm_up)


def test_a_prompt_that_does_not_fit_is_refused_and_its_reuse_is_lost() -> None:
    made = trace([request(0, [1], [10]), request(1, [1, 2], [10, 90]), request(2, [1], [10])])
    row = compare(made, [Setup("radix", 1, 50)]).rows[0]
    assert (row.refused_requests, row.losses.refused) == (1, 10)
    assert (row.hit_tokens, row.losses.last_token) == (9, 1)


def test_other_scopes_are_a_loss_of_their_own() -> None:
    requests = [request(i, [1, 10 + i], [40, 5], scope=Scope(adapter=name)) for i, name in enumerate("abab")]
    row = compare(trace(requests), [Setup("hash_chain", 16, None)]).rows[0]
    assert row.ideal_tokens == 3 * 40
    assert (row.hit_tokens, row.losses.scope, row.losses.boundary) == (2 * 32, 40, 2 * 8)


def test_outputs_are_reused_by_the_next_turn_only_when_they_count() -> None:
    first = request(0, [1], [20], output=[2], output_length=30)
    second = request(1, [1, 2, 3], [20, 30, 10])
    made = trace([first, second])
    setups = [Setup("radix", 1, None), Setup("hash_chain", 16, None)]
    assert [row.hit_tokens for row in compare(made, setups).rows] == [20, 16]
    counted = compare(made, setups, outputs=True).rows
    assert [row.hit_tokens for row in counted] == [49, 48]  # the last token generated has no KV
    assert {row.ideal_tokens for row in counted} == {49}


def test_an_output_without_room_is_cut_off() -> None:
    made = trace([request(0, [1], [20], output=[2], output_length=30), request(1, [1, 3], [20, 1])])
    row = compare(made, [Setup("radix", 1, 40)], outputs=True).rows[0]
    assert (row.hit_tokens, row.refused_requests) == (20, 0)


def test_the_yardsticks_are_marked_and_add_up(seed: int) -> None:
    made = random_trace(seed)
    rows = compare(made, [Setup("radix", 1, 100), Setup("radix", 1, None)], reference=True).rows
    assert [(row.design, row.capacity_tokens, row.is_reference) for row in rows] == [
        *(("radix", 100, False), ("radix", None, False), ("ceiling", None, True), ("plain_lru", 100, True))
    ]
    assert rows[2].hit_tokens == rows[2].ideal_tokens
    assert all(row.losses.total() == row.ideal_tokens - row.hit_tokens for row in rows)
    tokens = trace([request(0, [1, 2, 3], None)], holds_tokens=True)
    assert len(compare(tokens, [Setup("radix", 1, 100)], reference=True).rows) == 2


def test_the_example_is_a_request_that_only_a_block_cost_something() -> None:
    made = trace([request(i, [1, 10 + i], [2047, 100]) for i in range(4)])
    setups = [Setup("hash_chain", 128, None), Setup("radix", 1, None), Setup("hash_chain", 16, None)]
    example = compare(made, setups).example
    assert example is not None
    assert (example.number, example.shared, example.best, example.worst) == (2, 2047, 1, 0)
    assert (example.best_hit, example.worst_hit) == (2047, 1920)
    assert compare(made, [Setup("radix", 1, None)]).example is None
    again = compare(trace([request(i, [1], [40]) for i in range(2)]), setups[1:]).example
    assert again is not None
    assert (again.shared, again.best_hit, again.worst_hit) == (39, 39, 32)  # the last token is nobody's to reuse


@pytest.mark.parametrize("kind", ["mixed", "chat", "agent", "rag"])
def test_built_in_traffic_comes_from_its_seed(kind: str) -> None:
    one, same, other = (built_in(kind, requests=120, seed=s) for s in (1, 1, 2))
    assert len(one.requests) == 120
    tokens = [one.tokens(r).tolist() for r in one.requests]
    assert tokens == [same.tokens(r).tolist() for r in same.requests]
    assert tokens != [other.tokens(r).tolist() for r in other.requests]
    assert [r.timestamp for r in one.requests] == sorted(r.timestamp for r in one.requests)


@pytest.mark.parametrize("kind", ["chat", "agent", "rag"])
def test_what_built_in_traffic_shares_ends_inside_blocks(kind: str) -> None:
    row = compare(built_in(kind, requests=300), [Setup("hash_chain", 16, None)]).rows[0]
    assert row.ideal_tokens > 0.5 * row.prompt_tokens
    # A block of 16 that prompts do not align with leaves 7.5 tokens on average.
    assert 3 < row.losses.boundary / row.requests < 12


def test_built_in_traffic_of_an_unknown_kind() -> None:
    with pytest.raises(OptionError, match="expected mixed, chat, agent, rag"):
        built_in("video")
    with pytest.raises(OptionError, match="from 1 on"):
        built_in(requests=0)
