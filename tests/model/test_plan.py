"""`plan` is held to what `open_batch` then gives: the same batch, the next call, over random states of every cache.

A batch that is one claim gets what was planned, to the block. A preset that admits in a loop gives the same until
an earlier request of the batch has pushed out, or taken over, something that a later one matches; that one hits less.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import pytest

from prefixcache import PRESETS, NoSpace, Planned, PrefixCache, Request, RequestError
from prefixcache.cache import admission
from prefixcache.cache.admission import Admission
from prefixcache.cache.lifecycle import Lifecycle
from prefixcache.events import Removed
from prefixcache.keys.tokens import TOKEN_BYTES
from tests.model.known import Sequence
from tests.model.moves import MOVES, Choose, _prompt, draw_setup
from tests.model.prompts import Prompt
from tests.model.setup import Clock, Setup
from tests.model.world import World
from tests.registration import DESIGNS

_WORLDS, _MOVES, _BATCHES = 200, 25, 4  # of each design or preset; moves before each batch
_UNTIL_SEEN = 5 * _WORLDS  # a fault is mostly seen within a few
_THREADS, _ROUNDS, _RUNS = 3, 12, 8
_SIZES = (1, 2, 4)
_PRESET = "preset "
_CASES = (*DESIGNS, *(_PRESET + name for name in PRESETS))


@dataclass(frozen=True)
class _PresetSetup(Setup):
    preset: str = ""

    def cache(self, clock: Clock) -> PrefixCache:
        size, tiers = self.block_size, {"host": self.host} if self.host else None
        return PrefixCache.preset(self.preset, block_size=size, capacity=self.capacity, clock=clock, tiers=tiers)


def _setup(case: str, choose: Choose, tiered: bool = False) -> Setup:
    if not case.startswith(_PRESET):
        return draw_setup(case, choose, tiered)
    name = case.removeprefix(_PRESET)
    preset = PRESETS[name]
    options = {**preset.options, **({"eviction": preset.eviction} if preset.eviction is not None else {})}
    size, capacity = _SIZES[choose(len(_SIZES))], 3 + choose(9)
    return _PresetSetup(preset.design, size, capacity, options, 1 + choose(capacity) if tiered else 0, preset=name)


def _move(world: World, draw: random.Random) -> None:
    ready = [name for name, move in MOVES.items() if move.ready(world)]
    (name,) = draw.choices(ready, [MOVES[name].weight for name in ready])
    MOVES[name].play(world, draw.randrange)


def _make_room(world: World, draw: random.Random) -> None:
    """End some requests: with all of them a batch would be refused more often than not."""
    for _ in range(draw.randrange(1 + len(world.live))):
        MOVES["end"].play(world, draw.randrange)


def _asked(world: World, choose: Choose) -> tuple[list[Prompt], list[dict[str, Any]]]:
    """A batch: prompts that mostly share, with any options that admission knows."""
    prompts = [_prompt(world, choose)]
    for _ in range(choose(5)):
        base = prompts[choose(len(prompts))]
        shared = base.cut(choose(len(base.tokens) + 1)).then(*(1 + choose(2) for _ in range(1 + choose(4))))
        prompts.append(shared if choose(3) else _prompt(world, choose))
    asks = []
    for prompt in prompts:
        ask: dict[str, Any] = prompt.arguments()
        match choose(8):
            case 0:
                ask["read"] = False
            case 1:
                ask["store"] = False
            case 2 | 3:
                ask |= {"reserve": 1 + choose(len(prompt.tokens) + 4), "must_fit": not choose(3)}
        asks.append(ask)
    return prompts, asks


def _next_block(prompt: Prompt, generation: int, done: int, size: int) -> Any:
    """What the first full block that is not done stands for: all tokens up to its end, and what lies under them."""
    end = done - done % size + size
    return (prompt.scope_key, generation, prompt.units[:end]) if end <= len(prompt.tokens) else None


def _waits(world: World, prompts: list[Prompt], asks: list[dict[str, Any]], planned: list[Planned]) -> list[bool]:
    """Who had better wait, by definition: who could reuse its next block, which one that keeps it is computing."""
    size, inside = world.setup.block_size, world.cache.options.partial != "off"
    withheld = 0 if world.cache.options.store_last else 1  # the last computed token, and the last known one

    def computes(sequence: Sequence) -> Any:
        done = sequence.request.computed_tokens
        done -= withheld if done > sequence.request.cached else 0
        return shown(_next_block(sequence.prompt, sequence.generation, done, size), sequence.prompt)

    def shown(block: Any, prompt: Prompt) -> Any:
        return block if block is not None and len(block[2]) <= len(prompt.tokens) - withheld else None

    computing = {computes(sequence) for sequence in world.live.values() if sequence.store}
    waits = []
    for prompt, ask, plan in zip(prompts, asks, planned, strict=True):
        following = _next_block(prompt, world.generation, plan.cached, size)
        reach = len(prompt.tokens) - (0 if inside else 1)  # the last token is computed in any case
        reusable = ask.get("read", True) and plan.cached - plan.cached % size + size <= reach
        reusable = reusable and (not inside or world.cache.probe(**prompt.arguments()).reason != "complete")
        waits.append(following is not None and following in computing and reusable)
        if plan.fits and ask.get("store", True):
            computing.add(shown(following, prompt))
    return waits


def _free_and_idle(cache: PrefixCache) -> int:
    books = cache.books()
    return books.free + books.idle


def _claimed_as_planned(
    planned: list[Planned], results: list[Request | NoSpace], whole_must_fit: bool, drawn: int
) -> None:
    """A batch that is one claim: hits, refusals, what each of them needs and what all of them draw."""
    needed = 0
    for plan, result in zip(planned, results, strict=True):
        assert plan.fits == isinstance(result, Request), (plan, result)
        if isinstance(result, Request):
            assert plan.cached == result.cached, (plan, result)
            needed += plan.need
        else:
            assert plan.need == result.need > result.available, (plan, result)
    # Where the whole prompt must fit, that is what is needed, and less of it may be drawn now.
    assert drawn == needed or (whole_must_fit and drawn < needed), f"{planned}: drew {drawn}"


def _given_in_a_loop(planned: list[Planned], results: list[Request | NoSpace], lost: bool) -> None:
    """The first that differs differs as something left the index, and hits no more; what follows has other room.

    It may be admitted where it was planned to be refused: a smaller hit can draw fewer idle blocks.
    """
    for plan, result in zip(planned, results, strict=True):
        cached = result.cached if isinstance(result, Request) else None
        if cached == (plan.cached if plan.fits else None):
            continue
        assert lost, f"{plan}, {result}: other than planned, and nothing was evicted or taken over"
        assert cached is None or cached <= plan.cached, f"{plan}, {result}: more than planned"
        return


def _as_planned(
    cache: PrefixCache, planned: list[Planned], asks: list[dict[str, Any]]
) -> Iterable[tuple[int, Request]]:
    """Admit the batch and hold it to the plan; (place, request) of those admitted."""
    cache.take_events()
    room, evicted = _free_and_idle(cache), cache.stats().evicted_blocks
    results = cache.open_batch(asks)
    cache.check()
    if cache._batch == "claim":
        whole = cache.options.must_fit or any(ask.get("must_fit") for ask in asks)
        _claimed_as_planned(planned, results, whole, room - _free_and_idle(cache))
    else:
        removed = any(isinstance(event, Removed) for event in cache.take_events()[2])
        _given_in_a_loop(planned, results, removed or cache.stats().evicted_blocks > evicted)
    cache.take_events()
    return [(place, result) for place, result in enumerate(results) if isinstance(result, Request)]


def _plan_and_open(world: World, choose: Choose) -> None:
    prompts, asks = _asked(world, choose)
    before = world.checks.snapshot()
    planned = world.cache.plan(asks)
    assert world.cache.plan(asks) == planned
    world.checks.same(before, "a plan")
    if not (
        world.cache.options.lookahead or world.cache.options.backoff
    ):  # what these take off a hit has its own tests
        assert [plan.wait for plan in planned] == _waits(world, prompts, asks, planned), planned
    for place, request in _as_planned(world.cache, planned, asks):
        world.handles += 1
        store, read = asks[place].get("store", True), asks[place].get("read", True)
        world.live[world.handles] = Sequence(request, prompts[place], world.generation, store, read, request.cached)
        world.history[prompts[place]] = None


def _play(case: str, seed: int, worlds: int = _WORLDS, tiered: bool = False) -> None:
    for number in range(worlds):
        draw = random.Random(f"{seed} {case} {number}")
        world = World(_setup(case, draw.randrange, tiered), watched=False)
        try:
            for _ in range(_BATCHES):
                for _ in range(_MOVES):
                    _move(world, draw)
                _make_room(world, draw)
                _plan_and_open(world, draw.randrange)
        except Exception as error:
            error.add_note(f"{case}, world {number}: {world.setup}")
            raise


@pytest.mark.parametrize("case", _CASES)
def test_a_batch_gets_what_was_planned(case: str, seed: int) -> None:
    _play(case, seed)


@pytest.mark.parametrize("case", [case for case in _CASES if case != "token_trie"])
def test_a_batch_over_a_tier_gets_what_was_planned(case: str, seed: int) -> None:
    _play(case, seed, _WORLDS // 4, tiered=True)


# -- among threads ----------------------------------------------------------------------------------------


class _Quiet:
    """Threads that use one cache, and hold still together while one of them plans a batch and admits it."""

    def __init__(self, case: str, seed: str) -> None:
        self.seed, self.random = seed, random.Random(seed)
        setup = _setup(case, self.random.randrange)
        self.cache = replace(setup, capacity=3 * setup.capacity).cache(Clock())
        self.barrier = threading.Barrier(_THREADS, self.plan_and_open)
        self.admitted: list[Request] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        threads = [threading.Thread(target=self.use, args=(number,), daemon=True) for number in range(_THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.error is not None:
            raise self.error
        for request in self.admitted:
            request.abort()
        self.cache.check()
        books = self.cache.books()
        assert (books.pinned, books.quarantined) == (0, 0), f"{books}: nobody is left"

    def use(self, number: int) -> None:
        draw = random.Random(f"{self.seed} {number}")
        own: list[Request] = []
        with suppress(threading.BrokenBarrierError):
            try:
                for _ in range(_ROUNDS):
                    for _ in range(draw.randrange(6)):
                        self.something(draw, own)
                    self.barrier.wait()
            except threading.BrokenBarrierError:
                raise
            except BaseException as error:  # shown by the test: an exception must not die with its thread
                self.error = error
                self.barrier.abort()
        for request in own:
            request.abort()

    def something(self, draw: random.Random, own: list[Request]) -> None:
        with suppress(NoSpace, RequestError):  # no room, or a copy of the batch is late
            if not own or draw.randrange(3):
                own.append(request := self.cache.open(_tokens(draw)))
                request.copied()
                request.computed(request.length)
            elif draw.randrange(3):
                own.pop(draw.randrange(len(own))).close()
            else:
                draw.choice(own).append(draw.randrange(2))

    def plan_and_open(self) -> None:
        draw = self.random
        try:
            while len(self.admitted) > 4:
                self.admitted.pop(draw.randrange(len(self.admitted))).close()
            asks: list[dict[str, Any]] = [{"tokens": _tokens(draw)} for _ in range(1 + draw.randrange(4))]
            planned = self.cache.plan(asks)
            self.admitted += [request for _, request in _as_planned(self.cache, planned, asks)]
        except BaseException as error:
            self.error = error
            raise


def _tokens(draw: random.Random) -> list[int]:
    return [draw.randrange(2) for _ in range(1 + draw.randrange(9))]


@pytest.mark.parametrize("case", _CASES)
def test_a_plan_holds_among_threads_that_pause(case: str, seed: int) -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for number in range(_RUNS):
            _Quiet(case, f"{seed} {case} {number}").run()
    finally:
        sys.setswitchinterval(interval)


# -- what removes a rule must be seen -------------------------------------------------------------------------


def _each_alone(patch: pytest.MonkeyPatch) -> None:
    """A plan that forgets those before it in the batch."""
    plan = Admission.plan_batch
    patch.setattr(Admission, "plan_batch", lambda self, asks: [plan(self, [ask])[0] for ask in asks])


def _nobody_live(patch: pytest.MonkeyPatch) -> None:
    """A plan that does not look at what live requests compute."""
    plan = Admission.plan_batch

    def without_live(self: Any, asks: Any) -> Any:
        live, self.core.live = self.core.live, set()
        try:
            return plan(self, asks)
        finally:
            self.core.live = live

    patch.setattr(Admission, "plan_batch", without_live)


def _block_alone(patch: pytest.MonkeyPatch) -> None:
    """A block taken for the one that another computes though it has another path before it."""
    following = admission.next_block

    def last_block(prompt: Any, done: int, size: int, ahead: int) -> Any:
        found = following(prompt, done, size, ahead)
        return found and (found[0], found[1][-size * TOKEN_BYTES :], found[2])

    patch.setattr(admission, "next_block", last_block)


def _a_loop(patch: pytest.MonkeyPatch) -> None:
    """A batch that is no claim."""
    opened = Lifecycle.open_batch
    patch.setattr(Lifecycle, "open_batch", lambda self, asks, claim: opened(self, asks, False))


_CLAIMS = (*DESIGNS, *(_PRESET + name for name, preset in PRESETS.items() if preset.batch == "claim"))


@pytest.mark.parametrize(
    ("broken", "case"),
    [
        *((broken, case) for broken in (_each_alone, _nobody_live, _block_alone) for case in _CASES),
        *((_a_loop, case) for case in _CLAIMS),
    ],
)
def test_a_broken_plan_is_seen(
    broken: Callable[[pytest.MonkeyPatch], None], case: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch)
    with pytest.raises(AssertionError, match=r"Planned\("):
        _play(case, seed, _UNTIL_SEEN)
