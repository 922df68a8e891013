"""Several samples of one prompt: they share it, and nothing of one gets into another."""

from __future__ import annotations

import numpy as np
import pytest

from prefixcache.engine import SamplingParams
from tests.engine.small import (
    VOCABULARY,
    all_given_back,
    answer,
    engine,
    finish,
    prompts,
)


@pytest.mark.parametrize("family", ["llama", "lfm2"])
def test_samples_of_one_prompt_share_it(family: str) -> None:
    served = engine(family)
    prompt = list(range(42))
    params = SamplingParams(max_tokens=8, n=3, temperature=1.5, seed=5)
    job = served.generate([prompt], params)[0]
    assert served.computed_tokens == 42 + 3 * 7
    samples = [answer(job, index) for index in range(3)]
    assert len({tuple(sample) for sample in samples}) == 3
    assert [completion.index for completion in job.completions] == [0, 1, 2]
    # The same as three prompts of their own: nothing of one sample gets into another.
    alone = engine(family, max_running=1).generate([prompt], params)[0]
    assert [answer(alone, index) for index in range(3)] == samples
    assert all_given_back(served)


def test_samples_under_pressure(seed: int) -> None:
    prompt = np.random.default_rng(seed).integers(0, VOCABULARY, 42)
    params = SamplingParams(max_tokens=24, n=4, temperature=1.0, seed=1)
    served = engine(tokens=80)
    job = served.generate([prompt], params)[0]
    assert served.cache.stats().preempted_requests > 0
    roomy = engine().generate([prompt], params)[0]
    assert [answer(job, index) for index in range(4)] == [answer(roomy, index) for index in range(4)]
    assert all_given_back(served)


def test_a_seed_gives_the_same_tokens_whatever_else_runs(seed: int) -> None:
    params = SamplingParams(max_tokens=12, temperature=0.9, top_p=0.9, top_k=40, seed=3)
    prompt, *others = prompts(np.random.default_rng(seed), 10, [8, 9, 10, 11])
    alone = answer(engine().generate([prompt], params)[0])
    served = engine(step_tokens=16)
    jobs = [served.submit(prompt, SamplingParams(max_tokens=20, temperature=1.0)) for prompt in others]
    job = served.submit(prompt, params)
    finish(served, [*jobs, job])
    assert answer(job) == alone
    assert answer(engine().generate([prompt], SamplingParams(max_tokens=12, temperature=0.9, seed=4))[0]) != alone
