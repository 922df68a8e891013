"""Play a logged history again without the calls that must leave no trace, and compare what is left.

A probe or a refused call that touched recency, a counter or the index would show later: in what is
evicted, in what hits, in what is announced.
"""

from __future__ import annotations

from tests.model.known import Operation
from tests.model.setup import Setup
from tests.model.world import World


def outcome(setup: Setup, log: list[Operation]) -> tuple[list[object], list[object]]:
    """All events of a history, and the order in which what is left of it is evicted."""
    world = World(setup, watched=False)
    for name, arguments in log:
        world.do(name, **arguments)
    before = list(world.events_seen)
    world.events_seen.clear()
    world.finish()
    return before, world.events_seen


def assert_traceless(world: World) -> None:
    whole = outcome(world.setup, world.log)
    effective = [step for place, step in enumerate(world.log) if place not in world.traceless]
    assert whole == outcome(world.setup, effective), (
        "a probe or a refused call changed what came after it:\n" + "\n".join(map(str, world.log))
    )
