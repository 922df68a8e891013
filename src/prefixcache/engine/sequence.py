"""What is being generated: a job is one prompt with its parameters, a sequence is one sample of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from prefixcache.cache import Request
from prefixcache.engine.recurrent import State
from prefixcache.engine.sampling import Logprob, Sampler, SamplingParams
from prefixcache.engine.text import TextStream
from prefixcache.keys import Scope


@dataclass(frozen=True, slots=True)
class Completion:
    """One sample, finished or so far.

    Attributes:
        index: which of the prompt's samples it is.
        tokens: the generated ones, an end token included.
        text: their text, cut before a stop text; "" without a tokenizer.
        finish_reason: "stop" (an end token or stop text), "length" (`max_tokens`), "cancelled", "refused" (blocks
            that nobody gives back are in the way), or None while it goes on.
        logprobs: one per token when they were asked for.
    """

    index: int
    tokens: tuple[int, ...]
    text: str
    finish_reason: str | None
    logprobs: tuple[Logprob, ...]


@dataclass(frozen=True, slots=True)
class Delta:
    """What one step added to one sequence.

    Attributes:
        job: the prompt it belongs to.
        index: which sample.
        token: the new token; None when the sequence ends without one.
        text: the text that can be shown in addition; a possible beginning of a stop text is held back.
        logprob: of the new token, when asked for.
        finish_reason: set with the last delta of a sequence, see `Completion`.
    """

    job: Job
    index: int
    token: int | None
    text: str
    logprob: Logprob | None
    finish_reason: str | None


class Job:
    """One prompt and its samples. Made by `Engine.submit`; everything here is for reading.

    Attributes:
        number: order of submission.
        tokens: the prompt, uint32.
        params: how it is continued.
        scope: what its KV depends on besides the tokens.
        opening: arguments for `PrefixCache.open` besides tokens and scope.
        mark: tells whose job it is.
        deltas: what its sequences got so far, in order.
        cached_tokens: prompt tokens that need not be computed, None before admission. Recorded once: a
            preemption does not change it.
        prompt_logprobs: per prompt token when asked for, None for the first, which nothing precedes.
    """

    def __init__(
        self,
        number: int,
        tokens: np.ndarray,
        params: SamplingParams,
        scope: Scope | None,
        opening: dict[str, Any],
        mark: object = None,
    ) -> None:
        self.number = number
        self.tokens = tokens
        self.params = params
        self.scope = scope
        self.opening = opening
        self.mark = mark
        self.sequences: list[Sequence] = []
        self.deltas: list[Delta] = []
        self.cached_tokens: int | None = None
        self.prompt_logprobs: list[Logprob | None] = []

    def __repr__(self) -> str:
        return f"Job({self.number}, {len(self.tokens)} tokens, n={self.params.n}, finished={self.finished})"

    @property
    def finished(self) -> bool:
        """Whether all its samples are."""
        return all(sequence.finish_reason is not None for sequence in self.sequences)

    @property
    def completions(self) -> tuple[Completion, ...]:
        """The samples as far as they are."""
        return tuple(sequence.completion for sequence in self.sequences)


@dataclass(eq=False, slots=True)
class Sequence:
    """One sample.

        tokens  [0 .......... ready) [ready ........ length)
                 KV in the pool       to be run; one token: a decode step

    Attributes:
        job: its prompt.
        index: which sample.
        sampler: draws its tokens.
        stream: makes text of them, None without a tokenizer.
        output: generated tokens.
        request: its place in the cache, None before admission.
        ready: tokens whose KV, and recurrent state if any, exist.
        state: the recurrent state after `ready` tokens.
    """

    job: Job
    index: int
    sampler: Sampler
    stream: TextStream | None
    output: list[int] = field(default_factory=list)
    logprobs: list[Logprob] = field(default_factory=list)
    request: Request | None = None
    ready: int = 0
    state: State | None = None
    finish_reason: str | None = None

    @property
    def length(self) -> int:
        """Known tokens."""
        return len(self.job.tokens) + len(self.output)

    @property
    def left(self) -> int:
        """Tokens to run before the next one can be sampled."""
        return self.length - self.ready

    @property
    def with_unborn(self) -> list[Sequence]:
        """This sample, and with the first one before its first token those to be forked from it; while unfinished."""
        siblings = self.job.sequences[1:] if self.index == 0 and not self.output else []
        return [member for member in (self, *siblings) if member.finish_reason is None]

    @property
    def has_room(self) -> bool:
        """Whether its table covers all known tokens: not so between sampling a token and the next `grow`."""
        return self.request is not None and self.request.length >= self.length

    @property
    def completion(self) -> Completion:
        """The sample so far, as a value."""
        text = self.stream.text if self.stream is not None else ""
        return Completion(self.index, tuple(self.output), text, self.finish_reason, tuple(self.logprobs))

    def last_text(self, given_up: bool) -> str:
        """The text that was held back. What is given up has to go, also where its tokenizer fails: without it then."""
        try:
            return self.stream.finish() if self.stream is not None else ""
        except Exception:
            if given_up:
                return ""
            raise

    def tokens(self, start: int = 0, end: int | None = None) -> np.ndarray:
        """Known tokens from `start` to `end`, uint32."""
        prompt = self.job.tokens
        if end is not None and end <= len(prompt):
            return prompt[start:end]
        output = np.array(self.output, dtype=np.uint32)
        if start >= len(prompt):
            return output[start - len(prompt) : None if end is None else end - len(prompt)]
        return np.concatenate([prompt, output])[start:end]
