"""Every schedule of every story leaves a sound cache; with a rule of the claim removed, some schedule does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from prefixcache.blocks import transfers
from prefixcache.cache.admission import Admission
from prefixcache.cache.lifecycle import Lifecycle
from prefixcache.designs.radix import RadixDesign
from tests.interleavings.cases import CASES
from tests.interleavings.scheduler import Deadlock, explore
from tests.interleavings.story import World

_BY_NAME = {case.name: case for case in CASES}


@pytest.mark.parametrize(("name", "setup"), [(case.name, setup) for case in CASES for setup in case.setups])
def test_every_schedule_leaves_a_sound_cache(name: str, setup: str) -> None:
    case = _BY_NAME[name]
    assert explore(lambda: World(case, setup), case.preemptions) >= case.least


def no_pin_before_allocation(patch: pytest.MonkeyPatch) -> None:
    """Room is made before the match is pinned, and may be made of it."""
    original = Admission.claim

    def claim(self: Any, request: Any, ask: Any, plan: Any) -> None:
        if (short := plan.new - self.core.pool.free) > 0:
            self.core.design.evict(short)
        original(self, request, ask, plan)

    patch.setattr(Admission, "claim", claim)


def first_wins(patch: pytest.MonkeyPatch) -> None:
    """Of the requests that match one leaf the first takes it over and the others copy."""
    original = Admission._fit

    def fit(self: Any, match: Any, reserve: int, room: Any) -> Any:
        plan = original(self, match, reserve, room)
        earlier = room.takers.get(plan.partial.source) if plan.partial is not None else None
        if plan.take and earlier is not None:
            plan.take, plan.new = False, plan.new + 1
            plan.overruled = [other for other in plan.overruled if other is not earlier]
        return plan

    patch.setattr(Admission, "_fit", fit)


def source_released_early(patch: pytest.MonkeyPatch) -> None:
    """The source is let go of before it is copied."""

    def carry_out(memory: Any, request: Any, cancelled: Any) -> None:
        copies = request.copies
        request.copied()
        memory.copy(copies)

    patch.setattr(transfers, "carry_out", carry_out)


def match_outside_the_lock(patch: pytest.MonkeyPatch) -> None:
    """The lock is free for a moment between the match and the claim."""
    original = Admission.plan

    def plan(self: Any, ask: Any, room: Any) -> Any:
        found = original(self, ask, room)
        if hasattr(self.core.lock, "let_go"):
            with self.core.lock.let_go("claim"):
                pass
        return found

    patch.setattr(Admission, "plan", plan)


def twin_freed_under_a_running_table(patch: pytest.MonkeyPatch) -> None:
    """A request goes on using its own block, which was given back when it moved onto an equal one."""
    original = RadixDesign.publish

    def publish(self: Any, holding: Any, length: int, tail: bool = False) -> Any:
        moves = original(self, holding, length, tail)
        for index, old, _ in moves:
            holding.table[index] = old
        return moves

    patch.setattr(RadixDesign, "publish", publish)


def written_before_others_copied(patch: pytest.MonkeyPatch) -> None:
    """Nobody asks whether another request has yet to copy out of the table."""
    patch.setattr(Lifecycle, "_require_copied", lambda self, holding, n: None)


def unwritten_target_published(patch: pytest.MonkeyPatch) -> None:
    """A copy that failed is taken for done."""

    def carry_out(memory: Any, request: Any, cancelled: Any) -> None:
        try:
            memory.copy(request.copies)
        except OSError:
            request.copied()
            request.abort()
            raise
        request.copied()

    patch.setattr(transfers, "carry_out", carry_out)


BROKEN: list[tuple[Callable[[pytest.MonkeyPatch], None], str, str]] = [
    (no_pin_before_allocation, "a hit under pressure", "block_trie"),
    (first_wins, "a batch served in order", "block_trie, take"),
    (source_released_early, "one leaf, evictions, and room needed", "block_trie"),
    (match_outside_the_lock, "one leaf, evictions, and room needed", "block_trie"),
    (twin_freed_under_a_running_table, "twins", "radix"),
    (written_before_others_copied, "the taker is served elsewhere", "block_trie, take"),
    (unwritten_target_published, "copies that fail", "block_trie"),
]


@pytest.mark.parametrize(("broken", "name", "setup"), BROKEN, ids=lambda value: getattr(value, "__name__", None))
def test_without_the_rule_a_schedule_fails(
    broken: Callable[[pytest.MonkeyPatch], None], name: str, setup: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = _BY_NAME[name]
    broken(monkeypatch)
    with pytest.raises(Exception) as failure:
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
