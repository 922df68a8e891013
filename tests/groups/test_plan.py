"""`plan` is held to what `open_batch` then gives, with attention groups, the windows nearly full."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from prefixcache import DESIGNS, PRESETS, Full, NoSpace, Planned, PrefixCache, Recurrent, Request, Scope, Window
from prefixcache.cache.admission import Admission
from prefixcache.designs.groups import Groups, SideRoom
from tests.groups.moves import MOVES, SCOPES, end, opened, prompt
from tests.groups.test_histories import make
from tests.groups.world import World

_WORLDS, _BATCHES, _MOVES = 30, 5, 20
_TIGHT = (6, 16)  # blocks of a group beside full attention: room for two or three prompts
_LEAST = 10  # of what the worlds of a test must have met, or they showed nothing

designs = pytest.mark.parametrize("design", DESIGNS)


@dataclass
class Met:
    """Requests of batches: admitted, with a hit, and refused for want of room beside full attention."""

    admitted: int = 0
    hits: int = 0
    refused_beside: int = 0


def batch(world: World, ended: Sequence[Request]) -> list[dict[str, Any]]:
    """Prompts that often go on from one another or from a request that has ended, with what else may be asked for."""
    rng, asks = world.rng, []
    before: list[tuple[list[int], Scope | None]] = [(request.tokens.tolist(), request.scope) for request in ended]
    for _ in range(1 + rng.randrange(5)):
        tokens, scope = prompt(world), rng.choice(SCOPES)
        if before and rng.randrange(4):
            shared, scope = rng.choice(before)
            tokens = [*shared[: rng.randrange(1, len(shared) + 1)], *tokens[: rng.randrange(1, 4)]]
        before.append((tokens, scope))
        ask: dict[str, Any] = {"tokens": tokens, "scope": replace(scope or Scope(), generation=None)}
        match rng.randrange(8):
            case 0:
                ask["read"] = False
            case 1:
                ask["store"] = False
            case 2 | 3:
                ask |= {"reserve": 1 + rng.randrange(len(tokens) + 4), "must_fit": not rng.randrange(3)}
        asks.append(ask)
    return asks


def books(cache: PrefixCache) -> list[Any]:
    return [cache.books(group) for group in range(len(cache.groups))]


def plan_and_open(world: World, ended: Sequence[Request], met: Met) -> None:
    """Plan a batch, which changes nothing, and open it."""
    cache, asks = world.cache, batch(world, ended)
    before = (books(cache), cache.stats())
    planned = cache.plan(asks)
    assert cache.plan(asks) == planned
    assert (books(cache), cache.stats()) == before
    cached = {group: set(keys) for group, keys in world.mirror.items()}
    results = cache.open_batch(asks)
    world.take_events()
    if cache._batch == "claim":
        as_planned(planned, results)
        whole = cache.options.must_fit or any(ask.get("must_fit") for ask in asks)
        if not whole:
            lead = cache.groups.index(Full()) if Full() in cache.groups else 0
            room, left = (now[lead].free + now[lead].idle for now in (before[0], books(cache)))
            assert room - left == sum(plan.need for plan in planned if plan.fits), planned
    elif all(keys <= set(world.mirror[group]) for group, keys in cached.items()):
        as_planned(planned, results)  # in a loop, what one brings in may push out what a later one matches
    for result in results:
        if isinstance(result, Request):
            opened(world, result)
            met.admitted, met.hits = met.admitted + 1, met.hits + (result.cached > 0)
        else:
            assert result.need > result.available
            met.refused_beside += "group" in str(result)
    world.check()


def as_planned(planned: Sequence[Planned], results: Sequence[Request | NoSpace]) -> None:
    for plan, result in zip(planned, results, strict=True):
        assert plan.fits == isinstance(result, Request), (plan, result)
        assert not isinstance(result, Request) or plan.cached == result.cached, (plan, result)


def play(name: str, seed: int, worlds: int = _WORLDS) -> Met:
    met = Met()
    for number in range(worlds):
        rng = random.Random(f"plan {seed} {name} {number}")
        world = World(make(name, rng, _TIGHT), rng)
        for _ in range(_BATCHES):
            for _ in range(_MOVES):
                rng.choice(MOVES)(world)
                world.check()
            live = world.live[:]
            for _ in range(rng.randrange(1 + len(live))):  # with all of them there would be no room
                end(world)
            plan_and_open(world, [request for request in live if request.state != "open"], met)
        world.finish()
    return met


@pytest.mark.parametrize("name", [*DESIGNS, *PRESETS])
def test_a_batch_gets_what_was_planned(name: str, seed: int) -> None:
    met = play(name, seed)
    assert min(met.admitted, met.hits, met.refused_beside) >= _LEAST, met


@designs
def test_a_batch_that_fills_a_window_to_its_last_block_is_planned_so(design: str) -> None:
    cache = PrefixCache(design, block_size=4, capacity=[64, 7], groups=[Full(), Window(8)])
    running = cache.open(range(100, 108))
    running.computed(8)  # two blocks, and both are still read
    asks = [{"tokens": range(12)}, {"tokens": range(20, 32)}, {"tokens": range(40, 48)}]
    assert [plan.fits for plan in cache.plan(asks)] == [True, False, True]
    assert [isinstance(result, Request) for result in cache.open_batch(asks)] == [True, False, True]
    assert (cache.books(1).free, cache.books(1).pinned) == (0, 7)
    assert [plan.fits for plan in cache.plan([{"tokens": [1]}])] == [False]


@designs
def test_what_a_hit_pins_of_a_window_is_no_room_for_others_of_its_batch(design: str) -> None:
    cache = PrefixCache(design, block_size=4, capacity=[64, 4], groups=[Full(), Window(8)])
    first = cache.open(range(12))
    first.computed(12)
    first.close()
    assert (cache.books(1).free, cache.books(1).idle) == (1, 3)
    # The hit reads two of the three idle blocks and needs one more: one is left.
    asks = [{"tokens": [*range(12), 99]}, {"tokens": range(50, 58)}, {"tokens": range(60, 64)}]
    assert [(plan.cached, plan.fits) for plan in cache.plan(asks)] == [(12, True), (0, False), (0, True)]
    results = cache.open_batch(asks)
    assert [result.cached if isinstance(result, Request) else None for result in results] == [12, None, 0]
    cache.check()


@designs
def test_one_state_is_planned_for_each_request_and_one_for_the_hit_that_it_copies(design: str) -> None:
    cache = PrefixCache(design, block_size=4, capacity=[64, 3], groups=[Full(), Recurrent()])
    first = cache.open(range(9))
    first.computed(8)
    first.copied()
    first.computed(9)
    first.close()
    assert cache.books(1).idle >= 1
    asks = [{"tokens": [*range(8), 99]}, {"tokens": [*range(8), 77]}, {"tokens": [50]}]
    planned = cache.plan(asks)
    assert [(plan.cached, plan.fits) for plan in planned] == [(8, True), (8, True), (0, False)]
    results = cache.open_batch(asks)
    assert [result.cached if isinstance(result, Request) else None for result in results] == [8, 8, None]


# -- what removes a rule must be seen -------------------------------------------------------------------


def _ignores_the_groups(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Admission, "_groups_fit", lambda admission, plan, ask, room: True)


def _forgets_what_the_batch_has_drawn(patch: pytest.MonkeyPatch) -> None:
    def forgetful(admission: Admission, asks: Any) -> Any:
        with pytest.MonkeyPatch.context() as within:
            within.setattr(SideRoom, "left", property(lambda room: room.available))
            return plan_batch(admission, asks)

    plan_batch = Admission.plan_batch
    patch.setattr(Admission, "plan_batch", forgetful)


def _counts_claimed_values_twice(patch: pytest.MonkeyPatch) -> None:
    def twice(admission: Admission, asks: Any) -> Any:
        with pytest.MonkeyPatch.context() as within:
            within.setattr(Groups, "needs", lambda groups, *args: needs(groups, *args[:3], groups.room(), *args[4:]))
            return plan_batch(admission, asks)

    plan_batch, needs = Admission.plan_batch, Groups.needs
    patch.setattr(Admission, "plan_batch", twice)


@pytest.mark.parametrize(
    "break_it", [_ignores_the_groups, _forgets_what_the_batch_has_drawn, _counts_claimed_values_twice]
)
def test_a_plan_that_is_wrong_about_a_group_is_seen(break_it: Any, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    break_it(monkeypatch)
    with pytest.raises(AssertionError):
        play("radix", seed)
