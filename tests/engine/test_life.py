"""The life of a prompt in the engine: reuse, chunks, growth, preemption, cancellation, ends."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

import numpy as np
import pytest

from prefixcache import DESIGNS, PRESETS, Scope
from prefixcache.engine import Engine, Job, SamplingParams
from prefixcache.errors import OptionError
from tests.engine.small import (
    VOCABULARY,
    all_given_back,
    answer,
    engine,
    finish,
    greedy,
    logits_of,
    near_ties,
    prompts,
    small_model,
)

# -- reuse ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("design", [*DESIGNS, *PRESETS])
def test_any_design_computes_a_shared_beginning_once(design: str, seed: int) -> None:
    model = small_model("llama")
    given = prompts(np.random.default_rng(seed), 90, [7, 9, 12])
    served = engine(design=design, block_size=16)
    jobs = served.generate(given, SamplingParams(max_tokens=6))
    for prompt, job in zip(given, jobs, strict=True):
        near_ties(model, prompt, answer(job))
    computed = served.computed_tokens
    # All but the last sampled token of each answer were run; a hit of at least 5 blocks was not.
    assert [job.cached_tokens is not None and 80 <= job.cached_tokens <= 90 for job in jobs[1:]] == [True, True]
    assert computed == sum(len(prompt) + 5 - (job.cached_tokens or 0) for prompt, job in zip(given, jobs, strict=True))
    assert all_given_back(served)


def test_a_hit_inside_a_block_is_copied_and_the_source_stays_as_it_was(seed: int) -> None:
    """B11: an answer of one chat must not leak into another through a block that both use a part of."""
    model = small_model("llama")
    random = np.random.default_rng(seed)
    first, second = prompts(random, 85, [11, 11])
    served = engine(design="digest_chain", block_size=16)
    served.generate([first], SamplingParams(max_tokens=4))
    job = served.generate([second], SamplingParams(max_tokens=4))[0]
    assert job.cached_tokens == 85
    again = served.generate([first], SamplingParams(max_tokens=4))[0]
    assert again.cached_tokens == len(first) - 1
    near_ties(model, second, answer(job))
    near_ties(model, first, answer(again))


def test_a_prompt_that_is_cached_whole_computes_one_token() -> None:
    served = engine(block_size=1)
    prompt = list(range(40))
    first = served.generate([prompt], SamplingParams(max_tokens=5))[0]
    before = served.computed_tokens
    second = served.generate([prompt], SamplingParams(max_tokens=5))[0]
    assert second.cached_tokens == 39
    assert served.computed_tokens - before == 1 + 4
    assert answer(first) == answer(second)


def test_the_next_turn_finds_prompt_and_answer() -> None:
    served = engine(block_size=1)
    first = served.generate([list(range(30))], SamplingParams(max_tokens=8))[0]
    second = served.generate([[*range(30), *answer(first), 7, 8, 9]], SamplingParams(max_tokens=1))[0]
    assert second.cached_tokens == 30 + 7  # the last sampled token was never run


def test_tenants_share_nothing() -> None:
    served = engine()
    prompt = list(range(40))
    served.generate([prompt], scope=Scope(salt="a"))
    assert served.generate([prompt], scope=Scope(salt="b"))[0].cached_tokens == 0
    assert served.generate([prompt], scope=Scope(salt="a"))[0].cached_tokens == 36


def test_what_is_not_to_be_stored_leaves_nothing() -> None:
    served = engine()
    job = served.submit(list(range(40)), store=False)
    finish(served, [job])
    assert served.cache.books().idle == 0


# -- chunks and budget ----------------------------------------------------------------------------


def test_a_step_runs_no_more_than_its_budget(seed: int) -> None:
    served = engine(step_tokens=16)
    given = prompts(np.random.default_rng(seed), 0, [50, 3, 70, 9])
    jobs = [served.submit(prompt, SamplingParams(max_tokens=12)) for prompt in given]
    while not all(job.finished for job in jobs):
        before = served.computed_tokens
        served.step()
        assert served.computed_tokens - before <= 16


def test_a_long_prompt_does_not_stop_those_who_decode(seed: int) -> None:
    served = engine(step_tokens=16)
    short, long = prompts(np.random.default_rng(seed), 0, [5, 160])
    talking = served.submit(short, SamplingParams(max_tokens=30))
    served.step()
    served.submit(long, SamplingParams(max_tokens=1))
    for _ in range(8):
        assert [delta.job for delta in served.step()] == [talking]


@pytest.mark.parametrize(("length", "hit", "passes"), [(9, 8, [1]), (8, 4, [3, 1])])
def test_two_backs_off_do_not_add_up(length: int, hit: int, passes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """B13: a recurrent model runs the last token alone; a full hit leaves a token; once, not twice."""
    served = engine("lfm2")
    prompt = list(range(1, length + 1))
    for _ in range(2):  # the second run keeps the state where the hit ends
        served.generate([prompt], SamplingParams(max_tokens=1))
    ran: list[int] = []
    run = served._runner.run

    def noted(rows: Any, **options: Any) -> Any:
        ran.append(len(rows[0].tokens))
        return run(rows, **options)

    monkeypatch.setattr(served._runner, "run", noted)
    job = served.submit(prompt, SamplingParams(max_tokens=1))
    served.step()
    assert job.finished
    assert job.cached_tokens == hit
    assert ran == passes


# -- pressure -------------------------------------------------------------------------------------


def pressed(family: str, seed: int, **options: object) -> tuple[Engine, list[np.ndarray], list[Job]]:
    """An engine whose blocks do not suffice for all that runs."""
    given = prompts(np.random.default_rng(seed), 20, [6, 9, 3, 12, 7, 5])
    served = engine(family, tokens=96, **options)
    return served, given, [served.submit(prompt, SamplingParams(max_tokens=24)) for prompt in given]


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "lfm2"])
def test_preemption_and_eviction_change_no_token(family: str, seed: int) -> None:
    """B62: identical text, each token emitted once."""
    model = small_model(family)
    served, given, jobs = pressed(family, seed)
    deltas = finish(served, jobs)
    assert served.cache.stats().preempted_requests > 0
    assert served.cache.stats().evicted_blocks > 0
    for prompt, job in zip(given, jobs, strict=True):
        assert [delta.token for delta in deltas if delta.job is job] == answer(job)
        near_ties(model, prompt, answer(job), 24)
    assert all_given_back(served)


def test_the_youngest_is_preempted_so_that_the_oldest_gets_on(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    served, _, jobs = pressed("llama", seed)
    places = []
    preempt = served._scheduler.preempt

    def noted(sequence: Any) -> None:
        places.append((served._scheduler.running.index(sequence), len(served._scheduler.running)))
        preempt(sequence)

    monkeypatch.setattr(served._scheduler, "preempt", noted)
    finish(served, jobs)
    assert places
    assert all(place == running - 1 > 0 for place, running in places)


def test_a_preemption_does_not_change_what_was_reported_as_cached(seed: int) -> None:
    """B60: usage counts the first admission."""
    served, _, jobs = pressed("llama", seed)
    seen: dict[int, int | None] = {}
    for _ in served.stream(jobs):
        for job in jobs:
            if job.cached_tokens is not None:
                assert seen.setdefault(job.number, job.cached_tokens) == job.cached_tokens
    stats = served.cache.stats()
    assert stats.requests == len(jobs)
    assert 0 <= stats.cached_tokens <= stats.prompt_tokens


def test_preempted_before_the_first_token() -> None:
    served = engine(step_tokens=8)
    job = served.submit(list(range(30)), SamplingParams(max_tokens=6))
    served.step()
    (sequence,) = served._scheduler.running
    served._scheduler.preempt(sequence)
    deltas = finish(served, [job])
    assert len(deltas) == 6
    assert answer(job) == greedy(small_model("llama"), np.arange(30), 6)


def test_preempted_twice() -> None:
    served = engine()
    job = served.submit(list(range(30)), SamplingParams(max_tokens=9))
    for _ in range(2):
        served.step()
        served.step()
        served._scheduler.preempt(served._scheduler.running[0])
    finish(served, [job])
    assert answer(job) == greedy(small_model("llama"), np.arange(30), 9)


def test_blocks_that_nobody_gives_back_refuse_instead_of_hanging() -> None:
    served = engine(tokens=64)
    served.generate([list(range(60))], SamplingParams(max_tokens=1))
    with served.cache.pin(list(range(60))):
        job = served.submit(list(range(100, 140)), SamplingParams(max_tokens=4, n=3))
        finish(served, [job])
        assert [completion.finish_reason for completion in job.completions] == ["refused"] * 3
    again = served.submit(list(range(100, 140)), SamplingParams(max_tokens=4))
    finish(served, [again])
    assert again.completions[0].finish_reason == "length"


# -- cancellation ---------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["llama", "lfm2"])
@pytest.mark.parametrize("steps", range(8))
def test_cancel_at_any_point(family: str, steps: int, seed: int) -> None:
    """Waiting, in the middle of a prompt, decoding, preempted: the others go on as if it had not been there."""
    model = small_model(family)
    served, given, jobs = pressed(family, seed, step_tokens=16)
    for _ in range(steps * 3):
        served.step()
    victims = [job for job in jobs[::2] if not job.finished]
    for job in victims:
        served.cancel(job)
    ends = [delta for delta in served.step() if delta.finish_reason == "cancelled"]
    assert {delta.job for delta in ends} == set(victims)
    finish(served, jobs)
    for job in victims:
        assert job.completions[0].finish_reason == "cancelled"
        assert answer(job) == greedy(model, given[jobs.index(job)], len(answer(job)))
    for prompt, job in zip(given, jobs, strict=True):
        near_ties(model, prompt, answer(job))
    assert served.idle
    assert all_given_back(served)


def test_a_stream_that_is_given_up_cancels_its_jobs() -> None:
    served = engine()
    job = served.submit(list(range(20)), SamplingParams(max_tokens=50))
    for delta in served.stream([job]):
        assert delta.token is not None
        break
    served.step()
    assert job.finished
    assert all_given_back(served)


def test_a_stream_that_is_given_up_before_it_begins_cancels_its_jobs_too() -> None:
    served = engine()
    job = served.submit(list(range(20)), SamplingParams(max_tokens=50))
    served.stream([job]).close()
    served.step()
    assert job.completions[0].finish_reason == "cancelled"
    assert served.idle and served.computed_tokens == 0
    assert all_given_back(served)


def test_a_job_that_is_cancelled_behind_a_look_at_the_inbox_does_not_run() -> None:
    """Another thread submits and cancels it when a step has taken what was submitted, and not what was cancelled."""

    class Inbox(deque[Job]):
        late: Job | None = None

        def __bool__(self) -> bool:
            if not len(self) and self.late is None:
                self.late = served.submit(list(range(20)), SamplingParams(max_tokens=5))
                served.cancel(self.late)
                return False
            return len(self) > 0

    served = engine()
    served._inbox = inbox = Inbox()
    served.step()
    assert inbox.late is not None
    finish(served, [inbox.late])
    assert [(delta.token, delta.finish_reason) for delta in inbox.late.deltas] == [(None, "cancelled")]
    assert served.idle and served.computed_tokens == 0
    assert all_given_back(served)


def test_a_stream_begins_with_the_first_token_whoever_drove_before() -> None:
    """Another thread that drives may run a job between its submission and the first look at its stream."""
    served = engine()
    parameters = SamplingParams(max_tokens=6, n=2)
    first, second = served.submit(list(range(20)), parameters), served.submit(list(range(40, 60)), parameters)
    served.step()
    early = {job.number: len(job.deltas) for job in (first, second)}
    assert any(early.values())
    while not second.finished:
        served.step()
    for job in (first, second):  # one that may go on, and one that is finished
        told = list(served.stream([job]))
        for index in range(2):
            assert [delta.token for delta in told if delta.index == index] == answer(job, index)
        assert [delta.finish_reason for delta in told].count("length") == 2
    assert all_given_back(served)


def test_a_stream_takes_jobs_of_its_own_engine_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    served, other = engine(), engine()
    monkeypatch.setattr(served, "step", lambda: pytest.fail("driven for a job that it will never finish"))
    job = other.submit(list(range(20)), SamplingParams(max_tokens=2))
    with pytest.raises(OptionError, match=r"stream: expected a job that this engine's submit returned, not Job\(0"):
        next(served.stream([job]))
    assert len(finish(other, [job])) == 2


@pytest.mark.parametrize("steps", [0, 1])
def test_a_model_that_raises_leaves_no_block_behind(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of a prompt, whose other samples do not run yet, and while its samples decode."""
    served = engine(max_running=3)
    running = served.submit(list(range(20)), SamplingParams(max_tokens=9, n=3))
    for _ in range(steps):
        served.step()
    waiting = served.submit(list(range(40, 60)), SamplingParams(max_tokens=3))

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(served._runner, "run", broken)
        with pytest.raises(RuntimeError, match="out of memory"):
            served.step()
    assert [completion.finish_reason for completion in running.completions] == ["cancelled"] * 3
    assert all_given_back(served)
    finish(served, [waiting])
    assert answer(waiting) == greedy(small_model("llama"), np.arange(40, 60), 3)


def test_a_fork_whose_copy_fails_leaves_no_block_behind_and_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    served, made = engine(), []
    copy = served._pool.copy

    def broken(copies: Any) -> None:
        made.extend(copies)
        if len(made) > 1:
            raise RuntimeError("out of memory")
        copy(copies)

    monkeypatch.setattr(served._pool, "copy", broken)
    job = served.submit(list(range(21)), SamplingParams(max_tokens=9, n=4))
    with pytest.raises(RuntimeError, match="out of memory"):
        served.step()
    assert len(made) == 2
    assert [(delta.index, delta.finish_reason) for delta in job.deltas] == [(n, "cancelled") for n in range(4)]
    assert served.idle and all_given_back(served)


def test_prompts_and_cancellations_come_from_any_thread(seed: int) -> None:
    model = small_model("llama")
    given = prompts(np.random.default_rng(seed), 30, [5, 6, 7, 8, 9, 10])
    served = engine(tokens=160, step_tokens=16)
    jobs: list[Job] = []

    def talk(mine: list[np.ndarray], give_up: bool) -> None:
        for prompt in mine:
            job = served.submit(prompt, SamplingParams(max_tokens=12))
            jobs.append(job)
            if give_up:
                served.cancel(job)

    talkers = [threading.Thread(target=talk, args=(given[start::3], start == 1)) for start in range(3)]
    for talker in talkers:
        talker.start()
    while any(talker.is_alive() for talker in talkers) or not served.idle:
        served.step()
    assert len(jobs) == len(given)
    for job in jobs:
        near_ties(model, job.tokens, answer(job))
        assert job.completions[0].finish_reason in ("length", "cancelled")
    assert all_given_back(served)


# -- ends -----------------------------------------------------------------------------------------


def test_ends() -> None:
    model = small_model("llama")
    prompt = np.arange(25)
    tokens = greedy(model, prompt, 10)
    served = engine()
    job = served.generate([prompt], SamplingParams(max_tokens=10, stop_token_ids=(tokens[4],)))[0]
    at = tokens.index(tokens[4])
    assert answer(job) == tokens[: at + 1]
    assert job.completions[0].finish_reason == "stop"
    assert served.generate([prompt], SamplingParams(max_tokens=3))[0].completions[0].finish_reason == "length"


def test_log_probabilities(seed: int) -> None:
    model = small_model("llama")
    prompt = np.random.default_rng(seed).integers(0, VOCABULARY, 30)
    served = engine()
    job = served.generate([prompt], SamplingParams(max_tokens=4, logprobs=3))[0]
    whole = logits_of(model, np.concatenate([prompt, answer(job)])).log_softmax(-1)
    for offset, (token, given) in enumerate(zip(answer(job), job.completions[0].logprobs, strict=True)):
        expected = whole[29 + offset]
        assert given.token == token == int(expected.argmax())
        assert given.value == pytest.approx(float(expected[token]), abs=1e-4)
        assert [token for token, _ in given.top] == expected.topk(3).indices.tolist()


def test_prompt_log_probabilities_do_not_read_the_cache() -> None:
    """B10: cached positions have no logits, so all are computed, and the meters know nothing of it."""
    model = small_model("llama")
    served = engine(step_tokens=4)
    prompt = list(range(1, 10))
    served.generate([prompt], SamplingParams(max_tokens=1))
    before, stats, books = served.computed_tokens, served.cache.stats(), served.cache.books()
    job = served.generate([prompt], SamplingParams(max_tokens=1, prompt_logprobs=2))[0]
    assert job.cached_tokens == 0
    assert served.computed_tokens - before == 9
    whole = logits_of(model, np.array(prompt)).log_softmax(-1)
    assert job.prompt_logprobs[0] is None
    for position, given in enumerate(job.prompt_logprobs[1:], 1):
        assert given is not None
        assert given.token == prompt[position]
        assert given.value == pytest.approx(float(whole[position - 1, prompt[position]]), abs=1e-4)
    assert served.cache.stats().queries == stats.queries
    assert served.cache.books() == books
    assert served.cache.probe(prompt).cached == 8
