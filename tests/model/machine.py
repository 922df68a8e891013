"""The moves as a hypothesis state machine, one class per design.

Hypothesis chooses what is worth trying; a failing history is shortened by `shrink`, which cuts whole
operations out of it and so is done in seconds, and is shown as operations instead of draws.
"""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.model.known import told
from tests.model.moves import MOVES, Choose, Move, draw_setup
from tests.model.replay import assert_traceless
from tests.model.shrink import shrink
from tests.model.world import World


def chooser(data: st.DataObject) -> Choose:
    return lambda n: data.draw(st.integers(0, n - 1))


def explore(design: str, budget: settings | None = None) -> None:
    """Run the state machine of a design; a failure is raised with the shortest history found for it."""
    machine = machine_of(design)
    try:
        run_state_machine_as_test(machine, settings=budget or settings(phases=[Phase.generate]))
    except Exception as error:
        world = machine.last
        if world is None or not world.failed:
            raise
        short = told(world.setup, shrink(world.setup, world.log))
        raise AssertionError(f"{error}\nshrunk to {short}") from error


def machine_of(design: str) -> type[RuleBasedStateMachine]:
    """A state machine over small caches of a design."""

    class Machine(RuleBasedStateMachine):
        last: World | None = None
        world: World | None = None

        @initialize(data=st.data())
        def start(self, data: st.DataObject) -> None:
            self.world = type(self).last = World(draw_setup(design, chooser(data)))

        def teardown(self) -> None:
            if self.world is not None and not self.world.failed:
                self.world.finish()
                assert_traceless(self.world)

    for name, move in MOVES.items():
        for number in range(1 + move.weight // 8):  # hypothesis draws rules evenly
            setattr(Machine, f"{name}_{number}", _rule(name, move))
    return Machine


def _rule(name: str, move: Move) -> Callable[..., None]:
    def play(self: RuleBasedStateMachine, data: st.DataObject) -> None:
        move.play(self.world, chooser(data))  # type: ignore[attr-defined]

    play.__name__ = name
    return precondition(lambda self: self.world is not None and bool(move.ready(self.world)))(
        rule(data=st.data())(play)
    )
