"""Time to first token, cold and warm, beside the floor: what transformers alone needs when the prefix is there.

Every run takes another suffix, so that a warm one finds the prefix and nothing more. Runs of the kinds
alternate, so that a busy machine disturbs them alike; medians are compared.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache

from prefixcache.engine.engine import Engine
from prefixcache.engine.layout import Layout, read_layout
from prefixcache.engine.sampling import SamplingParams
from prefixcache.errors import OptionError

CHECKED_TOKENS = 8
_RUNS_PER_COLD = 3


@dataclass(frozen=True, slots=True)
class Case:
    """One shape of traffic: a prefix that all prompts share, and a suffix of their own.

    Attributes:
        name: for the table.
        prefix, suffix: tokens.
        block_size: tokens per block of designs that have more than one, where the case is about blocks.
    """

    name: str
    prefix: int
    suffix: int
    block_size: int | None = None


# The article's examples: a system prompt, the token that spoils the alignment, and a document.
CASES = (
    Case("system prompt", 2048, 32),
    Case("one token more", 2049, 32, block_size=128),
    Case("RAG", 3072, 32),
)


@dataclass(frozen=True, slots=True)
class Measurement:
    """One design on one case.

    Attributes:
        case, design, block_size: what was measured.
        cold_seconds, warm_seconds, floor_seconds: time to first token, one per run; cold ones are fewer.
        cold_tokens, warm_tokens: tokens run through the model until then.
        reused_tokens: tokens of the warm prompt that were not computed.
        identical: the first tokens of every warm answer are those that transformers alone gives.
    """

    case: Case
    design: str
    block_size: int
    cold_seconds: tuple[float, ...]
    warm_seconds: tuple[float, ...]
    floor_seconds: tuple[float, ...]
    cold_tokens: int
    warm_tokens: int
    reused_tokens: int
    identical: bool

    @property
    def cold(self) -> float:
        """Median seconds with nothing cached."""
        return statistics.median(self.cold_seconds)

    @property
    def warm(self) -> float:
        """Median seconds with the prefix cached."""
        return statistics.median(self.warm_seconds)

    @property
    def floor(self) -> float:
        """Median seconds of the suffix alone, on a cache of transformers that holds the prefix."""
        return statistics.median(self.floor_seconds)

    @property
    def over_floor(self) -> float:
        """Median over the runs of warm / floor: neighbours in time are compared with each other."""
        return statistics.median(w / f for w, f in zip(self.warm_seconds, self.floor_seconds, strict=True))


class Floor:
    """The prefix in a cache of transformers, with no engine around it.

    Args:
        model: the model.
        prefix: the shared tokens.
    """

    def __init__(self, model: Any, prefix: np.ndarray) -> None:
        self._model = model
        self._cache = DynamicCache(config=model.config)
        self._forward(prefix, self._cache)

    def _forward(self, tokens: np.ndarray, cache: Any) -> int:
        with torch.inference_mode():
            output = self._model(
                input_ids=torch.from_numpy(tokens.astype(np.int64))[None].to(self._model.device),
                cache=cache,
                use_cache=True,
                logits_to_keep=1,
            )
        return int(output.logits[0, -1].argmax())

    def run(self, suffix: np.ndarray, count: int) -> tuple[float, list[int]]:
        """Seconds to the first token behind this suffix, and the first `count` greedy tokens."""
        cache = copy.deepcopy(self._cache)  # not every kind of layer can be cut back
        start = time.perf_counter()
        tokens = [self._forward(suffix, cache)]
        seconds = time.perf_counter() - start
        while len(tokens) < count:
            tokens.append(self._forward(np.array(tokens[-1:]), cache))
        return seconds, tokens


def measure(
    model: Any, setups: Sequence[tuple[str, int]], cases: Sequence[Case] = CASES, *, runs: int, seed: int = 0
) -> Iterator[Measurement]:
    """Measure every setup, a design and its block size, on every case, one `Measurement` after the other."""
    layout = read_layout(model)
    config = model.config.get_text_config(decoder=True)
    vocabulary = config.vocab_size
    if 2 * runs + 1 > vocabulary:
        raise OptionError(
            f"runs is {runs}: a vocabulary of {vocabulary} tokens has too few first ones for the suffixes"
        )
    context = getattr(config, "max_position_embeddings", None)
    for case in cases:
        tokens = case.prefix + case.suffix + CHECKED_TOKENS
        if context is not None and tokens > context:
            raise OptionError(
                f"prefix {case.prefix}, suffix {case.suffix} and {CHECKED_TOKENS} checked tokens are {tokens}: "
                f"the model's context holds {context}"
            )
    for case in cases:
        random = np.random.default_rng(seed)
        prefix = random.integers(0, vocabulary, case.prefix, dtype=np.uint32)
        suffixes = random.integers(0, vocabulary, (2 * runs + 1, case.suffix), dtype=np.uint32)
        # A suffix that began as another did would find more than the prefix.
        suffixes[:, 0] = random.permutation(vocabulary)[: len(suffixes)]
        floor = Floor(model, prefix)
        for design, block_size in dict.fromkeys((design, _block_size(case, size)) for design, size in setups):
            yield _Bench(model, layout, design, block_size, case, prefix, floor).run(suffixes)


def _block_size(case: Case, usual: int) -> int:
    return case.block_size if case.block_size is not None and usual > 1 else usual


class _Bench:
    """One design on one case."""

    def __init__(
        self, model: Any, layout: Layout, design: str, block_size: int, case: Case, prefix: np.ndarray, floor: Floor
    ) -> None:
        self.case, self.design, self.block_size = case, design, block_size
        self.prefix, self.floor = prefix, floor
        tokens = 2 * case.prefix + 100 * (case.suffix + block_size)  # nothing that is measured is evicted
        self.engine = Engine(
            model,
            design=design,
            block_size=block_size,
            memory=tokens * layout.numbers_per_token * int(model.dtype.itemsize),
            # Recurrent layers are resumed where a chunk ended; for others chunks would only slow the cold runs down.
            step_tokens=512 if layout.recurrent else 2**20,
        )

    def run(self, suffixes: np.ndarray) -> Measurement:
        """A warm run and a floor run for every second suffix, and before every third of them a cold one."""
        cold, warm, floor = [], [], []
        cold_tokens = warm_tokens = 0
        identical = True
        _, _ = self.floor.run(suffixes[-1], 1)  # the machine's own caches
        for number, (cold_suffix, warm_suffix) in enumerate(zip(suffixes[:-1:2], suffixes[1::2], strict=True)):
            if number % _RUNS_PER_COLD == 0:
                self.engine.cache.reset()
                seconds, cold_tokens, _ = self._first_token(cold_suffix)
                cold.append(seconds)
            seconds, warm_tokens, answer = self._first_token(warm_suffix)
            warm.append(seconds)
            seconds, expected = self.floor.run(warm_suffix, CHECKED_TOKENS)
            floor.append(seconds)
            identical = identical and answer == expected
        reused = self.case.prefix + self.case.suffix - warm_tokens
        times = (tuple(cold), tuple(warm), tuple(floor))
        return Measurement(self.case, self.design, self.block_size, *times, cold_tokens, warm_tokens, reused, identical)

    def _first_token(self, suffix: np.ndarray) -> tuple[float, int, list[int]]:
        """Seconds and computed tokens until the first token, and the first tokens of the answer."""
        prompt = np.concatenate([self.prefix, suffix])
        before = self.engine.computed_tokens
        start = time.perf_counter()
        job = self.engine.submit(prompt, SamplingParams(max_tokens=CHECKED_TOKENS, ignore_eos=True))
        while not self.engine.step():
            pass
        seconds = time.perf_counter() - start
        computed = self.engine.computed_tokens - before
        for _ in self.engine.stream([job]):
            pass
        return seconds, computed, list(job.completions[0].tokens)
