"""Built-in traffic: chat, agents and retrieval, from a seed, with shared prompts that no block size divides.

Each kind repeats text in its own way. A chat repeats the system prompt of its assistant and its own past.
An agent repeats a long policy with tool definitions, and its own past in many small steps. Retrieval
repeats a template, and after it the same passages only where two questions found the same ones in the
same order. Sessions of all kinds run side by side, so what one repeats has been pushed back by the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from prefixcache.errors import OptionError
from prefixcache.replay.traces import Trace, TraceRequest
from prefixcache.replay.traces.base import NOTHING, UInt32s, in_replay_order

KINDS = ("chat", "agent", "rag")
MIXED = "mixed"
DEFAULT_REQUESTS = 2000
DEFAULT_SEED = 7

# Lengths of shared prompts in tokens: the ones that people write, never a multiple of a block.
_ASSISTANTS = (2047, 1363, 811, 1753, 467, 1117)
_AGENTS = (2391, 1733, 3121)
_TEMPLATE = 389
_PASSAGES_PER_PROMPT = 5
_PASSAGES = 600
_TOPICS = 150

_REGENERATED = 0.04  # share of turns whose whole prompt is sent again
_CHAT_PAUSE, _AGENT_PAUSE, _SPAN = 400.0, 60.0, 3600.0  # seconds


def built_in(kind: str = MIXED, *, requests: int = DEFAULT_REQUESTS, seed: int = DEFAULT_SEED) -> Trace:
    """Traffic of one kind, or a third of each (`mixed`). The same seed gives the same tokens everywhere.

    Raises `OptionError` for an unknown kind or a number of requests below 1.
    """
    if kind not in (MIXED, *KINDS):
        raise OptionError(f"traffic is {kind!r}: expected {MIXED}, {', '.join(KINDS)}")
    if requests < 1:
        raise OptionError(f"requests is {requests}: expected a number from 1 on")
    kinds = KINDS if kind == MIXED else (kind,)
    writer = _Writer(np.random.default_rng(seed))
    share = -(-requests // len(kinds))
    sent: list[TraceRequest] = []
    for name in kinds:
        made = 0
        for session in _sessions(name, writer):
            for request in session[: share - made]:
                sent.append(request)
                made += 1
            if made == share:
                break
    return Trace(
        name=f"built-in {kind} traffic",
        path=None,
        format="built-in",
        block_size=1,
        holds_tokens=False,
        requests=in_replay_order(sent)[:requests],
        seed=seed,
    )


@dataclass(slots=True)
class _Writer:
    """Pieces of text with a number and a length, and the requests made of them."""

    random: np.random.Generator
    _numbers: Iterator[int] = field(default_factory=count)
    _positions: Iterator[int] = field(default_factory=count)

    def text(self, length: int) -> tuple[int, int]:
        """A piece that nobody has written before."""
        return next(self._numbers), length

    def about(self, median: float, spread: float) -> int:
        """A length: log-normal, as lengths of texts are."""
        return max(1, int(self.random.lognormal(np.log(median), spread)))

    def request(
        self, time: float, session: str, prompt: list[tuple[int, int]], output: tuple[int, int]
    ) -> TraceRequest:
        pieces, lengths = zip(*prompt, strict=True)
        return TraceRequest(
            timestamp=time,
            session=session,
            position=next(self._positions),
            pieces=_array(pieces),
            lengths=_array(lengths),
            length=sum(lengths),
            output=_array((output[0],)) if output[1] else NOTHING,
            output_length=output[1],
        )


def _array(numbers: tuple[int, ...]) -> UInt32s:
    return np.array(numbers, dtype=np.uint32)


def _sessions(kind: str, writer: _Writer) -> Iterator[list[TraceRequest]]:
    return {"chat": _chats, "agent": _agents, "rag": _questions}[kind](writer)


def _chats(writer: _Writer) -> Iterator[list[TraceRequest]]:
    """People who talk to one of a few assistants, three or four turns each, and sometimes ask anew."""
    random = writer.random
    systems = [writer.text(length) for length in _ASSISTANTS]
    for number in count():
        prompt = [systems[min(random.geometric(0.4), len(systems)) - 1]]
        time = random.uniform(0, _SPAN)
        turns = []
        for _ in range(random.geometric(0.3)):
            prompt.append(writer.text(writer.about(45, 0.9)))
            output = writer.text(writer.about(180, 0.6))
            turns.append(writer.request(time, f"chat-{number}", prompt, output))
            if random.random() < _REGENERATED:
                time += random.exponential(_AGENT_PAUSE)
                output = writer.text(writer.about(180, 0.6))
                turns.append(writer.request(time, f"chat-{number}", prompt, output))
            prompt.append(output)
            time += random.exponential(_CHAT_PAUSE)
        yield turns


def _agents(writer: _Writer) -> Iterator[list[TraceRequest]]:
    """Agents that work through a task: a short call and a tool's result, again and again."""
    random = writer.random
    policies = [writer.text(length) for length in _AGENTS]
    for number in count():
        prompt = [policies[random.integers(len(policies))], writer.text(writer.about(120, 0.5))]
        time = random.uniform(0, _SPAN)
        steps = []
        for _ in range(random.integers(4, 16)):
            call = writer.text(writer.about(70, 0.5))
            steps.append(writer.request(time, f"agent-{number}", prompt, call))
            prompt += [call, writer.text(writer.about(210, 0.8))]
            time += random.exponential(_AGENT_PAUSE)
        yield steps


def _questions(writer: _Writer) -> Iterator[list[TraceRequest]]:
    """Questions about a few topics; a topic finds its passages in a fixed order, now and then reordered."""
    random = writer.random
    template = writer.text(_TEMPLATE)
    passages = [writer.text(writer.about(170, 0.5)) for _ in range(_PASSAGES)]
    topics = [random.choice(_PASSAGES, _PASSAGES_PER_PROMPT, replace=False) for _ in range(_TOPICS)]
    for number in count():
        found = topics[min(random.zipf(1.3), _TOPICS) - 1].copy()
        if random.random() < 0.25:  # the ranking depends on how the question is put
            found[2:] = random.permutation(found[2:])
        prompt = [template, *(passages[i] for i in found), writer.text(writer.about(22, 0.6))]
        output = writer.text(writer.about(130, 0.5))
        yield [writer.request(random.uniform(0, _SPAN), f"question-{number}", prompt, output)]
