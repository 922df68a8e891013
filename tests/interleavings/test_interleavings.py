"""Every schedule of every story leaves a sound cache; with a rule of the claim removed, some schedule does not."""

from __future__ import annotations

import pytest

from tests.interleavings.cases import CASES
from tests.interleavings.controls import CONTROLS, Control
from tests.interleavings.scheduler import Deadlock, explore
from tests.interleavings.story import World
from tests.interleavings.tier_cases import TIER_CASES
from tests.interleavings.tier_controls import TIER_CONTROLS

_BY_NAME = {case.name: case for case in (*CASES, *TIER_CASES)}


@pytest.mark.parametrize(("name", "setup"), [(case.name, setup) for case in _BY_NAME.values() for setup in case.setups])
def test_every_schedule_leaves_a_sound_cache(name: str, setup: str) -> None:
    case = _BY_NAME[name]
    assert explore(lambda: World(case, setup), case.preemptions) >= case.least


@pytest.mark.parametrize(
    ("control", "setup"),
    [
        pytest.param(control, setup, id=f"{control.broken.__name__}-{control.case}-{setup}")
        for control in (*CONTROLS, *TIER_CONTROLS)
        for setup in control.setups
    ],
)
def test_without_the_rule_a_schedule_ends_in_what_the_rule_prevents(
    control: Control, setup: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = _BY_NAME[control.case]
    control.broken(monkeypatch)
    with pytest.raises(control.error, match=control.says) as failure:
        explore(lambda: World(case, setup), case.preemptions)
    assert any(note.startswith("schedule: ") for note in failure.value.__notes__)


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_clock_that_calls_the_cache_needs_a_reentrant_lock(reentrant: bool) -> None:
    case = _BY_NAME["one leaf in a pool without room for copies"]

    def tell() -> World:
        world = World(case, "radix", reentrant)
        original = world.cache._core.design.expire
        world.cache._core.design.expire = lambda: (world.cache.books(), original())[1]
        return world

    if reentrant:
        assert explore(tell, 1) >= 5
    else:
        with pytest.raises(Deadlock, match="nobody can go on"):
            explore(tell, 1)
