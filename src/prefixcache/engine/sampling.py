"""From logits to a token: greedy, temperature, top-k, top-p, seeded; and log-probabilities."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from prefixcache.errors import OptionError, whole_number

MOST_LOGPROBS = 100
_COLDEST = 1e-9  # below, float32 would divide by zero; nothing but ties is left to chance long before


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a prompt is continued.

    Attributes:
        max_tokens: tokens to generate at most, at least 1.
        temperature: 0 takes the likeliest token; else logits are divided by it.
        top_k: sample among this many likeliest tokens, 0: among all.
        top_p: sample among the likeliest tokens that together have this probability.
        seed: the same seed gives the same tokens, whatever else runs; None draws a new one.
        n: samples per prompt; they share its KV.
        stop: texts that end the generation; the text is cut before them.
        stop_token_ids: tokens that end the generation, besides the model's own.
        ignore_eos: go on behind the model's own end tokens.
        logprobs: likeliest tokens to report per generated token, besides the chosen one; None: no log-probabilities.
        prompt_logprobs: the same for the prompt. All of it is computed then, whatever is cached.

    Raises `OptionError` naming the field, its value and what was expected.
    """

    max_tokens: int = 16
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    n: int = 1
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None

    def __post_init__(self) -> None:
        whole_number(self.max_tokens, "max_tokens", least=1)
        whole_number(self.n, "n", least=1)
        whole_number(self.top_k, "top_k")
        if not _is_number(self.temperature) or not 0.0 <= self.temperature < float("inf"):
            raise OptionError(f"temperature is {self.temperature!r}: expected a number from 0 on")
        if not _is_number(self.top_p) or not 0.0 < self.top_p <= 1.0:
            raise OptionError(f"top_p is {self.top_p!r}: expected a number above 0, up to 1")
        if self.seed is not None:
            whole_number(self.seed, "seed", most=2**63 - 1)
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                whole_number(getattr(self, name), name, most=MOST_LOGPROBS)
        stop: object = self.stop
        if not isinstance(stop, list | tuple) or not all(isinstance(text, str) and text for text in stop):
            raise OptionError(f"stop is {stop!r}: expected a tuple of non-empty texts")
        object.__setattr__(self, "stop", tuple(stop))
        ends: object = self.stop_token_ids
        if not isinstance(ends, list | tuple):
            raise OptionError(f"stop_token_ids is {ends!r}: expected a tuple of token ids")
        object.__setattr__(self, "stop_token_ids", tuple(ends))
        for token in self.stop_token_ids:
            whole_number(token, "stop_token_ids: a token")
        if not isinstance(self.ignore_eos, bool):
            raise OptionError(f"ignore_eos is {self.ignore_eos!r}: expected True or False")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@dataclass(frozen=True, slots=True)
class Logprob:
    """Natural logarithms of probabilities at one position, before temperature, top-k and top-p.

    Attributes:
        token: the token that stands there.
        value: its log-probability.
        top: the likeliest tokens with theirs, best first.
    """

    token: int
    value: float
    top: tuple[tuple[int, float], ...]


class Sampler:
    """Draws the tokens of one sequence. Its random numbers are its own, so a batch does not change them.

    Args:
        params: how to sample.
        index: which of the `n` samples of a prompt it is.
    """

    def __init__(self, params: SamplingParams, index: int) -> None:
        self._params = params
        self._generator: torch.Generator | None = None
        if params.temperature > 0:
            self._generator = torch.Generator()
            if params.seed is None:
                self._generator.seed()
            else:
                # Neighbouring seeds start neighbouring streams of the generator; far apart they share none.
                self._generator.manual_seed((params.seed + index * 0x9E3779B97F4A7C15) % 2**63)

    def choose(self, logits: torch.Tensor) -> int:
        """The next token from float32 logits of shape [vocabulary]."""
        if self._generator is None:
            return int(logits.argmax())
        params = self._params
        # From the best one down, so that no temperature makes an infinity of it.
        scores = (logits - logits.max()) / max(params.temperature, _COLDEST)
        if 0 < params.top_k < len(scores):
            scores = scores.masked_fill(scores < scores.topk(params.top_k).values[-1], -torch.inf)
        if params.top_p < 1.0:
            ordered, order = scores.sort(descending=True)
            probabilities = ordered.softmax(-1)
            # A token stays while those before it do not reach top_p alone: the likeliest one always stays.
            beyond = probabilities.cumsum(-1) - probabilities >= params.top_p
            scores = scores.index_fill(0, order[beyond], -torch.inf)
        return int(torch.multinomial(scores.softmax(-1).cpu(), 1, generator=self._generator))


def logprob(logits: torch.Tensor, token: int, top: int) -> Logprob:
    """The log-probability of a token under logits of shape [vocabulary], and the `top` likeliest."""
    logs = logits.log_softmax(-1)
    best = logs.topk(min(top, len(logs))) if top else None
    pairs = tuple(zip(best.indices.tolist(), best.values.tolist(), strict=True)) if best is not None else ()
    return Logprob(token, float(logs[token]), pairs)
