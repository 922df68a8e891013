"""The engine: a transformers model that computes only what no earlier prompt has computed."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Generator
from collections.abc import Sequence as SequenceOf
from typing import Any

import numpy as np
import torch

from prefixcache.blocks.retention import PriorityLike
from prefixcache.engine.build import end_tokens, make_cache, make_pool, state_memory
from prefixcache.engine.families import require_exact_resume, require_supported
from prefixcache.engine.intake import Intake, Prompt
from prefixcache.engine.layout import read_layout
from prefixcache.engine.recurrent import Checkpoints
from prefixcache.engine.runner import Row, Runner
from prefixcache.engine.sampling import Logprob, Sampler, SamplingParams, logprob
from prefixcache.engine.scheduler import Scheduler, similar_in_length
from prefixcache.engine.sequence import Delta, Job, Sequence
from prefixcache.engine.text import TextStream
from prefixcache.engine.waiting import AGING, PROBES
from prefixcache.errors import NoSpace, OptionError, whole_number
from prefixcache.keys import Scope

log = logging.getLogger("prefixcache.engine")

_SHARE_OF_CHECKPOINTS = 0.1  # of the KV memory; only models with recurrent layers need any
_BEGUN: Any = None  # what an iterator of deltas yields to nobody, so that closing it runs its end


class Engine:
    """Runs many prompts at once and reuses what any of them has computed.

    One thread at a time drives it with `step`; `submit` and `cancel` may come from any thread.

    Args:
        model: a decoder of transformers, loaded and in evaluation mode. It is used as it is and not changed.
        tokenizer: its tokenizer; without one, prompts are token ids and there is no text.
        design: a design or a preset: what finds the cached prefixes.
        block_size: tokens per block.
        memory: bytes of KV memory; by default half of what is free on the model's device.
        step_tokens: tokens run per step at most; a longer prompt is computed in chunks between which others go on.
        max_running: sequences that run at once.
        aging, probes: how the next prompt is chosen, see `WaitingQueue`.
        options: further options of `PrefixCache`; with `tiers={"host": blocks}` what leaves the device's KV memory is
            kept in that of the host.

    Attributes:
        cache: decides what is reused; its events are off unless `events=True` is given.
        statement: one sentence about the KV memory, logged at the start.

    Raises `OptionError` for a model that cannot be served, with the reason.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        *,
        design: str = "radix",
        block_size: int = 16,
        memory: int | None = None,
        step_tokens: int = 512,
        max_running: int = 32,
        aging: int = AGING,
        probes: int = PROBES,
        **options: Any,
    ) -> None:
        require_supported(model)
        whole_number(block_size, "block_size", least=1)
        self.step_tokens = whole_number(step_tokens, "step_tokens", least=1)
        layout = read_layout(model)
        require_exact_resume(model, layout)
        self.tokenizer = tokenizer
        self._ends = end_tokens(model, tokenizer)
        self._pool = make_pool(model, layout, block_size, memory, options.get("tiers"))
        self.cache = make_cache(design, block_size, self._pool.blocks, {"events": False} | options)
        slots = self._pool.blocks * block_size
        self._intake = Intake(model.config.get_text_config(decoder=True), tokenizer, self.cache, slots)
        self.statement = state_memory(self._pool, model, memory is None)
        log.info(self.statement)
        self._runner = Runner(model, self._pool, layout)
        self._checkpoints = Checkpoints(int(self._pool.nbytes * _SHARE_OF_CHECKPOINTS)) if layout.recurrent else None
        self._scheduler = Scheduler(
            self.cache,
            max_running=whole_number(max_running, "max_running", least=1),
            aging=whole_number(aging, "aging"),
            probes=whole_number(probes, "probes", least=1),
            dropped=self._keep_state,
        )
        self._has_tiers = bool(options.get("tiers"))
        self._driver = threading.Lock()
        self._inbox: deque[Job] = deque()
        self._cancelled: deque[Job] = deque()
        self._numbers = iter(range(2**62))
        self._counting = threading.Lock()
        self._mark = object()  # its jobs carry it: they outlive the engine and must not keep it alive

    # -- asking -------------------------------------------------------------------------------------

    def submit(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        scope: Scope | None = None,
        store: bool = True,
        priority: PriorityLike = None,
        ttl: float | None = None,
    ) -> Job:
        """Queue a prompt, a text or token ids; it runs with the following steps. From any thread.

        Raises `TokenError` for ids outside the vocabulary, `OptionError` for what can never run: longer than
        the model's context or than the whole pool, or text without a tokenizer.

        Args:
            scope, store, priority, ttl: see `PrefixCache.open`.
        """
        job = self._job(prompt, params or SamplingParams(), scope, {"store": store, "priority": priority, "ttl": ttl})
        self._inbox.append(job)
        return job

    def submit_batch(
        self,
        prompts: SequenceOf[Prompt],
        params: SamplingParams | SequenceOf[SamplingParams] | None = None,
        *,
        scope: Scope | None = None,
    ) -> list[Job]:
        """Queue these prompts, or, if one of them is refused, none; with parameters for all or one for each."""
        if isinstance(prompts, str):
            raise OptionError("prompts is a text: expected a list of prompts")
        shared = SamplingParams() if params is None else params
        each = [shared] * len(prompts) if isinstance(shared, SamplingParams) else list(shared)
        if len(each) != len(prompts):
            raise OptionError(f"params are {len(each)}: expected one for each of {len(prompts)} prompts")
        jobs = [self._job(prompt, own, scope, {"store": True}) for prompt, own in zip(prompts, each, strict=True)]
        self._inbox.extend(jobs)
        return jobs

    def cancel(self, job: Job) -> None:
        """Give a job up, at whatever point it is; its blocks are free with the next step. From any thread."""
        self._require_own(job, "cancel")
        self._cancelled.append(job)

    def _require_own(self, job: Job, where: str) -> None:
        if not isinstance(job, Job) or job.mark is not self._mark:
            raise OptionError(f"{where}: expected a job that this engine's submit returned, not {job!r}")

    def encode(self, prompt: Prompt) -> np.ndarray:
        """Token ids of a prompt, uint32; raises as `submit` does."""
        return self._intake.encode(prompt)

    def _job(self, prompt: Prompt, params: SamplingParams, scope: Scope | None, opening: dict[str, Any]) -> Job:
        """A prompt that can run, or what is wrong with it."""
        tokens = self.encode(prompt)
        self._intake.check(tokens, params, scope, opening)
        read = params.prompt_logprobs is None
        with self._counting:
            number = next(self._numbers)
        job = Job(number, tokens, params, scope, opening | {"read": read}, self._mark)
        if not read:
            job.prompt_logprobs = [None] * len(tokens)
        job.sequences = [self._sequence(job, index) for index in range(params.n)]
        return job

    def _sequence(self, job: Job, index: int) -> Sequence:
        stream = None
        if self.tokenizer is not None:
            stream = TextStream(self.tokenizer, job.tokens, job.params.stop)
        return Sequence(job, index, Sampler(job.params, index), stream)

    # -- driving ------------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Whether a step would find nothing to do: for the thread that drives, between two steps."""
        return self._scheduler.idle and not self._inbox and not self._cancelled

    @property
    def computed_tokens(self) -> int:
        """Tokens run through the model so far."""
        return self._runner.computed_tokens

    def generate(
        self, prompts: SequenceOf[Prompt], params: SamplingParams | None = None, *, scope: Scope | None = None
    ) -> list[Job]:
        """Run these prompts to their end; the jobs are in the same order."""
        jobs = self.submit_batch(prompts, params, scope=scope)
        for _ in self.stream(jobs):
            pass
        return jobs

    def stream(self, jobs: SequenceOf[Job]) -> Generator[Delta, None, None]:
        """Drive the engine until these jobs are finished and yield all their deltas; others go on beside them.

        Each job's deltas come in order and from the first one on, whenever and by whoever it was driven: several
        threads may stream at once, each with jobs of its own. An iterator that is given up, begun or not, or an
        interrupt, cancels those that are not finished.
        """
        given = list(jobs)
        for job in given:
            self._require_own(job, "stream")
        deltas = self._deltas(dict.fromkeys(given, 0))
        next(deltas)  # closing a generator that has not begun would do nothing
        return deltas

    def _deltas(self, told: dict[Job, int]) -> Generator[Delta, None, None]:
        """What `stream` yields, behind something that is nobody's; `told`: how many of each job's were yielded."""
        unfinished = True
        try:
            yield _BEGUN
            while unfinished:
                with self._driver:  # between two steps: who is finished has all of its deltas
                    unfinished = not all(job.finished for job in told)
                    come = [delta for job, count in told.items() for delta in job.deltas[count:]]
                    told = {job: len(job.deltas) for job in told}
                yield from come
                if unfinished:
                    self.step()
        finally:
            for job in told:
                if not job.finished:
                    self.cancel(job)

    def step(self) -> list[Delta]:
        """Run at most `step_tokens` tokens: one for every sequence that decodes, then chunks of prompts.

        If the model or the tokenizer raises, everything that runs is given up, so that no block stays behind, and
        the error goes on.
        """
        with self._driver:
            deltas: list[Delta] = []
            try:
                self._take_inbox(deltas)
                self._scheduler.grow()
                for sequence in self._scheduler.running if self._has_tiers else ():
                    self._copy(sequence)  # out of blocks that were somebody else's
                budget = self.step_tokens - self._decode(self.step_tokens, deltas)
                budget -= self._prefill(budget, deltas)
                self._decode(budget, deltas)  # who came in with a single token left
            except BaseException:
                for sequence in list(self._scheduler.running):
                    deltas += [self._end(member, "cancelled") for member in sequence.with_unborn]
                raise
            finally:
                for delta in deltas:
                    delta.job.deltas.append(delta)
            return deltas

    def _take_inbox(self, deltas: list[Delta]) -> None:
        cancelled = len(self._cancelled)  # counted first: who is cancelled after a look at the inbox may be in there
        while self._inbox:
            # The other samples of a prompt begin as forks of the first.
            self._scheduler.waiting.add(self._inbox.popleft().sequences[0])
        for _ in range(cancelled):
            for sequence in self._cancelled.popleft().sequences:
                if sequence.finish_reason is None:
                    deltas.append(self._end(sequence, "cancelled"))

    # -- computing ----------------------------------------------------------------------------------

    def _decode(self, budget: int, deltas: list[Delta]) -> int:
        """Run one token of every sequence that has just one left, at most `budget`; how many that were."""
        ready = [sequence for sequence in self._scheduler.running if sequence.left == 1 and sequence.has_room]
        del ready[budget:]
        for group in similar_in_length(ready):
            logits, states = self._runner.run([self._row(sequence, 1) for sequence in group])
            for sequence, scores, state in zip(group, logits, states, strict=True):
                self._ran(sequence, 1, state)
                self._sample(sequence, scores, deltas)
            self.cache.end_step()
        return len(ready)

    def _prefill(self, budget: int, deltas: list[Delta]) -> int:
        """Run chunks of prompts, at most `budget` tokens; how many that were.

        One prompt after the other, so that the next one finds what this one computed.
        """
        spent = 0
        while spent < budget:
            sequence = next((sequence for sequence in self._scheduler.running if sequence.left > 1), None)
            if sequence is None:
                sequence = self._admit(deltas)
            if sequence is None:
                break
            if sequence.left > 1:
                spent += self._chunk(sequence, budget - spent, deltas)
        return spent

    def _admit(self, deltas: list[Delta]) -> Sequence | None:
        """Let the next sequence run, with its hit in place."""
        while (sequence := self._scheduler.admit()) is not None:
            if sequence not in self._scheduler.running:
                deltas += [self._end(member, "refused") for member in sequence.with_unborn]
                continue
            self._copy(sequence)
            self._find_state(sequence)
            if sequence.job.cached_tokens is None:
                sequence.job.cached_tokens = sequence.ready
            return sequence
        return None

    def _chunk(self, sequence: Sequence, budget: int, deltas: list[Delta]) -> int:
        """Run the next tokens of a prompt, at most `budget`; how many that were."""
        request, job = sequence.request, sequence.job
        assert request is not None
        count = min(budget, sequence.left)
        if sequence.ready < request.cached:
            # Only recurrent layers lack the hit: their state is wanted where the hit ends, for whoever comes next.
            count = min(count, request.cached - sequence.ready)
        elif self._checkpoints is not None and count == sequence.left:
            # The same prompt again resumes before its last token, so that state is kept and this one runs alone.
            count -= 1
        wants_all = job.params.prompt_logprobs is not None and sequence.index == 0 and sequence.ready < len(job.tokens)
        logits, (state,) = self._runner.run([self._row(sequence, count)], all_logits=wants_all)
        if wants_all:
            self._note_prompt(job, sequence.ready, logits[0])
            logits = logits[:, -1]
        self._ran(sequence, count, state)
        self._keep_state(sequence)
        self.cache.end_step()  # for a cache, a step is one pass of the model: what it computed can be found now
        if not sequence.left:
            self._sample(sequence, logits[0], deltas)
        return count

    def _row(self, sequence: Sequence, count: int) -> Row:
        request = sequence.request
        assert request is not None
        start = sequence.ready
        skip = min(max(request.computed_tokens - start, 0), count)
        return Row(request.block_table, start, sequence.tokens(start, start + count), sequence.state, skip)

    def _ran(self, sequence: Sequence, count: int, state: Any) -> None:
        """KV, and state, of `count` more tokens exist."""
        request = sequence.request
        assert request is not None
        sequence.ready += count
        sequence.state = state
        request.computed(max(sequence.ready, request.computed_tokens))
        request.take_moves()  # the table is read anew for every pass

    def _copy(self, sequence: Sequence) -> None:
        """Make the copies that a request asks for, before anything else can touch their sources."""
        request = sequence.request
        assert request is not None
        self._pool.copy(request.copies)
        request.copied()

    # -- recurrent state ----------------------------------------------------------------------------

    def _find_state(self, sequence: Sequence) -> None:
        """Where the sequence starts: behind its hit, or at the last state that is known before that."""
        request = sequence.request
        assert request is not None
        sequence.ready, sequence.state = request.cached, None
        if self._checkpoints is not None:
            tokens = sequence.tokens(0, request.cached)
            sequence.ready, sequence.state = self._checkpoints.find(self._root(sequence), tokens, request.cached)

    def _keep_state(self, sequence: Sequence) -> None:
        """Keep the state where a chunk, a generation or a stay in the pool ends."""
        stores = sequence.job.opening["store"]
        if self._checkpoints is not None and sequence.state is not None and stores:
            self._checkpoints.keep(self._root(sequence), sequence.tokens(0, sequence.ready), sequence.state)

    @staticmethod
    def _root(sequence: Sequence) -> bytes:
        request = sequence.request
        assert request is not None
        return request.scope.encode(request.scope.generation or 0)

    # -- sampling -----------------------------------------------------------------------------------

    def _sample(self, sequence: Sequence, logits: torch.Tensor, deltas: list[Delta]) -> None:
        """Draw the next token; after the prompt, the first token of every sample of the job."""
        siblings = []
        if not sequence.output and sequence.index == 0:
            siblings = [self._fork(sequence, child) for child in sequence.job.sequences[1:]]
        for member in (sequence, *siblings):
            deltas.append(self._take(member, logits))

    def _fork(self, parent: Sequence, child: Sequence) -> Sequence:
        """Let a sibling go on from the same prompt; without room for its copy it comes back as after a preemption."""
        request = parent.request
        assert request is not None
        if len(self._scheduler.running) < self._scheduler.max_running:
            try:
                child.request = request.fork()
            except NoSpace:
                pass
            else:
                self._copy(child)
                child.ready, child.state = parent.ready, parent.state
                self._scheduler.running.append(child)
                return child
        self._scheduler.preempted.append(child)
        return child

    def _take(self, sequence: Sequence, logits: torch.Tensor) -> Delta:
        """Give a sequence its next token and say what that adds."""
        params = sequence.job.params
        token = sequence.sampler.choose(logits)
        sequence.output.append(token)
        chosen = None
        if params.logprobs is not None:
            chosen = logprob(logits, token, params.logprobs)
            sequence.logprobs.append(chosen)
        text = ""
        ended = token in params.stop_token_ids or (token in self._ends and not params.ignore_eos)
        if sequence.stream is not None and not ended:
            text = sequence.stream.add(token)
            ended = sequence.stream.stopped
        if ended:
            return self._end(sequence, "stop", token, text, chosen)
        if len(sequence.output) == params.max_tokens:
            return self._end(sequence, "length", token, text, chosen)
        return self._delta(sequence, token, text, chosen)

    @staticmethod
    def _note_prompt(job: Job, start: int, logits: torch.Tensor) -> None:
        """The log-probabilities of the prompt tokens that follow these positions."""
        top = job.params.prompt_logprobs or 0
        for offset, scores in enumerate(logits):
            position = start + offset + 1
            if position < len(job.tokens):
                job.prompt_logprobs[position] = logprob(scores, int(job.tokens[position]), top)

    # -- ending -------------------------------------------------------------------------------------

    def _end(
        self, sequence: Sequence, reason: str, token: int | None = None, text: str = "", chosen: Logprob | None = None
    ) -> Delta:
        text += sequence.last_text(given_up=reason == "cancelled")
        self._finish(sequence, reason)
        return self._delta(sequence, token, text, chosen)

    def _finish(self, sequence: Sequence, reason: str) -> None:
        self._scheduler.release(sequence, abort=reason == "cancelled")
        sequence.finish_reason = reason

    @staticmethod
    def _delta(sequence: Sequence, token: int | None, text: str, chosen: Logprob | None) -> Delta:
        return Delta(sequence.job, sequence.index, token, text, chosen, sequence.finish_reason)
