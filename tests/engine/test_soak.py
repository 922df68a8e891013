"""Random traffic under pressure: greedy answers right, every block given back. Long form: bench/engine_soak.py."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from prefixcache import DESIGNS, PRESETS
from prefixcache.engine import Engine, Job
from tests.engine.identity import under_pressure
from tests.engine.small import CONFIGURATIONS, VOCABULARY, engine, near_ties, small_model
from tests.engine.traffic import Traffic

STEPS = 150


@pytest.mark.parametrize("design", [*DESIGNS, *PRESETS])
def test_traffic_with_cancellations(design: str, seed: int) -> None:
    soak(engine(design=design, tokens=240, step_tokens=24), "llama", seed)


@pytest.mark.parametrize("family", CONFIGURATIONS)
def test_every_family_answers_as_without_a_cache(
    family: str, seed: int, record_property: Callable[[str, object], None]
) -> None:
    """Concurrency, preemption, cancellation and eviction at once: the same tokens, and logits within 1e-4."""
    found = under_pressure(family, "hash_chain", seed, steps=60)
    record_property("near ties", found.near_ties)
    assert found.answers > 5
    assert min(found.cancelled, found.preempted, found.evicted_blocks) > 0
    assert found.largest_difference <= 1e-4
    assert found.near_ties <= 1


def test_a_block_that_is_not_copied_is_noticed(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: hits inside a block, and forks, without the copy that they ask for."""
    monkeypatch.setattr("prefixcache.engine.kv_pool.KVPool.copy", lambda pool, copies: None)
    with pytest.raises(AssertionError):
        assert under_pressure("llama", "digest_chain", seed, steps=60).largest_difference <= 1e-4


def test_traffic_on_a_recurrent_model(seed: int) -> None:
    soak(engine("lfm2", tokens=240, step_tokens=24), "lfm2", seed)


def soak(served: Engine, family: str, seed: int) -> None:
    model = small_model(family)
    greedy: list[Job] = []
    traffic = Traffic(served, seed, VOCABULARY)
    traffic.on_finished = lambda job: greedy.append(job) if job.params.temperature == 0 else None
    for _ in range(STEPS):
        traffic.step()
    traffic.drain()
    stats = served.cache.stats()
    assert traffic.finished > 20
    assert traffic.cancelled > 2
    assert stats.preempted_requests > 0
    assert stats.evicted_blocks > 0
    assert served.cache.books().free == served.cache.capacity
    ties = 0
    for job in greedy:
        for completion in job.completions:
            assert completion.finish_reason == "length"
            ties += near_ties(model, job.tokens, list(completion.tokens))
    assert ties <= 1
