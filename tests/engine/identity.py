"""Are the answers those of transformers alone, whatever happens around them? Also for bench/engine_identity.py."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from prefixcache.engine import Job
from tests.engine.small import VOCABULARY, engine, logits_of, near_ties, small_model
from tests.engine.traffic import Traffic


@dataclass(frozen=True)
class Identity:
    """What came out of random traffic under pressure.

    Attributes:
        answers, tokens: greedy ones, those of cancelled prompts included.
        near_ties: answers that leave those of transformers where its two best logits differ by less than 1e-4.
        largest_difference: of a logit, as a share of the largest one where that exceeds 1.
        cancelled, preempted, evicted_blocks: the pressure.
    """

    family: str
    answers: int
    tokens: int
    near_ties: int
    largest_difference: float
    cancelled: int
    preempted: int
    evicted_blocks: int


def under_pressure(family: str, design: str, seed: int, steps: int) -> Identity:
    """Run traffic that preempts, cancels and evicts; fails where an answer differs by more than rounding."""
    model = small_model(family)
    served = engine(family, design=design, tokens=160, step_tokens=24)
    seen: dict[tuple[Job, int], list[torch.Tensor]] = {}
    take = served._take

    def noted(sequence, logits):
        seen.setdefault((sequence.job, sequence.index), []).append(logits.clone())
        return take(sequence, logits)

    served._take = noted
    traffic = Traffic(served, seed, VOCABULARY)
    for _ in range(steps):
        traffic.step()
    traffic.drain()
    assert served.cache.books().free == served.cache.capacity
    answers = tokens = ties = 0
    largest = 0.0
    for (job, index), rows in seen.items():
        if job.params.temperature:
            continue
        got = list(job.completions[index].tokens)
        assert len(got) == len(rows)
        whole = logits_of(model, np.concatenate([job.tokens, got]))
        expected = whole[len(job.tokens) - 1 : -1]
        difference = float((torch.stack(rows) - expected).abs().max()) / max(1.0, float(expected.abs().max()))
        largest = max(largest, difference)
        ties += near_ties(model, job.tokens, got)
        answers += 1
        tokens += len(got)
    stats = served.cache.stats()
    pressure = (traffic.cancelled, stats.preempted_requests, stats.evicted_blocks)
    return Identity(family, answers, tokens, ties, largest, *pressure)
