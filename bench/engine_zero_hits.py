"""What the engine costs when nothing is ever reused: paired runs of prompts that share no token.

    python bench/engine_zero_hits.py
    python bench/engine_zero_hits.py --write bench/results/engine_zero_hits.json

Three programs answer the same prompts, one thread, in an order that changes with every round: transformers alone
(a loop over its own cache), the engine with reading and storing off, and the engine as it is. A run is the best of five
prompts of the same length, taken in turns; times are CPU seconds of the process: other work on the machine stretches
the wall, and these far less. The 95 % interval of the mean ratio of 31 pairs must lie below 1.02. The pool holds
some 40 prompts, so that most runs evict what others left. Needs `prefixcache[engine]`.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache

from prefixcache.engine import Engine, SamplingParams, load

sys.path.insert(0, str(Path(__file__).parent))
from record import keep

PROMPT, ANSWER = 256, 8
PROMPTS_PER_RUN = 5
T_QUANTILE = {30: 2.042}  # Student's t, 95 % two-sided, for 31 pairs
MOST = 1.02


def alone(model: Any, prompt: np.ndarray) -> list[int]:
    """Greedy tokens by transformers alone."""
    cache, feed, tokens = DynamicCache(config=model.config), prompt.astype(np.int64), []
    with torch.inference_mode():
        while len(tokens) < ANSWER:
            output = model(input_ids=torch.from_numpy(feed)[None], cache=cache, use_cache=True, logits_to_keep=1)
            tokens.append(int(output.logits[0, -1].argmax()))
            feed = np.array(tokens[-1:])
    return tokens


def timed(answer: Callable[[], list[int]]) -> tuple[float, list[int]]:
    start = time.process_time()
    tokens = answer()
    return time.process_time() - start, tokens


def interval(ratios: list[float]) -> tuple[float, float, float]:
    """Mean ratio and its 95 % interval, from the logarithms of the pairs."""
    logs = [math.log(ratio) for ratio in ratios]
    mean, error = statistics.mean(logs), statistics.stdev(logs) / math.sqrt(len(logs))
    quantile = T_QUANTILE.get(len(logs) - 1, 2.0)
    return math.exp(mean), math.exp(mean - quantile * error), math.exp(mean + quantile * error)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--model", default="random-llama")
    options.add_argument("--pairs", type=int, default=31)
    options.add_argument("--write", type=Path)
    given = options.parse_args()
    torch.set_num_threads(1)
    model, _ = load(given.model)
    vocabulary = model.config.vocab_size
    engine = Engine(model, memory=2**28, step_tokens=PROMPT)
    params = SamplingParams(max_tokens=ANSWER, ignore_eos=True)

    def served(prompt: np.ndarray, reuse: bool) -> list[int]:
        # Prompt log-probabilities are what turns reading off for a caller; here it is turned off by itself.
        job = engine.submit(prompt, params, store=reuse)
        job.opening["read"] = reuse
        for _ in engine.stream([job]):
            pass
        assert job.cached_tokens == 0
        return list(job.completions[0].tokens)

    random = np.random.default_rng(0)
    first_tokens = iter(range(2**31))
    seconds: dict[str, list[float]] = {"transformers": [], "off": [], "on": []}
    for number in range(given.pairs + 1):  # the first warms up
        best = dict.fromkeys(seconds, math.inf)
        for turn in range(PROMPTS_PER_RUN):
            prompt = random.integers(0, vocabulary, PROMPT, dtype=np.uint32)
            prompt[0], prompt[1] = divmod(next(first_tokens), vocabulary)  # nothing in common with any other
            sides = {
                "transformers": lambda prompt=prompt: alone(model, prompt),
                "off": lambda prompt=prompt: served(prompt, False),
                "on": lambda prompt=prompt: served(prompt, True),
            }
            names = [*sides, *sides][(number + turn) % 3 :][:3]
            answers = []
            for name in names:
                taken, tokens = timed(sides[name])
                answers.append(tokens)
                best[name] = min(best[name], taken)
            assert answers[0] == answers[1] == answers[2], (number, turn)
        if number:
            for name, taken in best.items():
                seconds[name].append(taken)
    rows = []
    for side, base in (("on", "off"), ("on", "transformers"), ("off", "transformers")):
        mean, low, high = interval([a / b for a, b in zip(seconds[side], seconds[base], strict=True)])
        kept = high <= MOST
        rows.append({"side": side, "base": base, "mean": mean, "low": low, "high": high, "kept": kept})
        print(
            f"{side:>4} / {base:13} {mean:.4f}, 95 % interval {low:.4f} to {high:.4f}: {'kept' if kept else 'MISSED'}"
        )
    if given.write:
        figures = {
            "model": given.model,
            "prompt": PROMPT,
            "answer": ANSWER,
            "rows": rows,
            "cpu_seconds": seconds,
        }
        keep(given.write, figures)


if __name__ == "__main__":
    main()
