"""Random traffic with cancellations, for the soak of the tests and the long one of bench/."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from prefixcache.engine import Engine, Job, SamplingParams

SHARED = 6  # common beginnings


@dataclass
class Traffic:
    """Submits prompts that share beginnings, steps the engine, cancels at random; `check()` on the way.

    Attributes:
        finished, cancelled: jobs so far.
        live: jobs that are neither.
        on_finished: called with each job that came to its end.
    """

    engine: Engine
    seed: int
    vocabulary: int
    checks: bool = True
    finished: int = 0
    cancelled: int = 0
    live: list[Job] = field(default_factory=list)
    on_finished: Callable[[Job], None] = lambda job: None

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(self.seed)
        lengths = self._random.integers(5, 60, SHARED)
        self._beginnings = [self._tokens(int(length)) for length in lengths]

    def _tokens(self, count: int) -> np.ndarray:
        return self._random.integers(0, self.vocabulary, count)

    def _submit(self) -> None:
        random = self._random
        beginning = self._beginnings[int(random.integers(SHARED))]
        prompt = np.concatenate([beginning, self._tokens(int(random.integers(1, 20)))])
        params = SamplingParams(
            max_tokens=int(random.integers(1, 24)),
            temperature=float(random.choice([0.0, 0.0, 1.0])),
            n=int(random.choice([1, 1, 1, 3])),
            prompt_logprobs=0 if random.random() < 0.1 else None,
        )
        self.live.append(self.engine.submit(prompt, params, store=bool(random.random() < 0.9)))

    def step(self) -> None:
        """One step of the engine, and what comes in and goes out around it."""
        random = self._random
        while len(self.live) < 12 and random.random() < 0.5:
            self._submit()
        if self.live and random.random() < 0.06:
            self.engine.cancel(self.live[int(random.integers(len(self.live)))])
        self.engine.step()
        if self.checks:
            self.engine.cache.check()
        for job in [job for job in self.live if job.finished]:
            self.live.remove(job)
            if any(completion.finish_reason == "cancelled" for completion in job.completions):
                self.cancelled += 1
            else:
                self.finished += 1
                self.on_finished(job)

    def drain(self) -> None:
        """Let everything end and evict all that is cached."""
        while not self.engine.idle:
            self.engine.step()
        self.engine.cache.evict(self.engine.cache.capacity)
        self.engine.cache.check()
