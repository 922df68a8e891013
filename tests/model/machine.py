"""The moves as a hypothesis state machine, one class per design."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.model.moves import MOVES, Choose, Move, draw_setup
from tests.model.replay import assert_traceless
from tests.model.setup import Setup
from tests.model.world import World


def chooser(data: st.DataObject) -> Choose:
    return lambda n: data.draw(st.integers(0, n - 1))


def machine(draw: Callable[[Choose], Setup]) -> type[RuleBasedStateMachine]:
    """A state machine over the setups that `draw` draws."""

    class Machine(RuleBasedStateMachine):
        world: World | None = None

        @initialize(data=st.data())
        def start(self, data: st.DataObject) -> None:
            self.world = World(draw(chooser(data)))

        def teardown(self) -> None:
            if self.world is not None and not self.world.failed:
                self.world.finish()
                assert_traceless(self.world)

    for name, move in MOVES.items():
        setattr(Machine, name, _rule(move))
    return Machine


def _rule(move: Move) -> Callable[..., None]:
    def play(self: RuleBasedStateMachine, data: st.DataObject) -> None:
        move.play(self.world, chooser(data))  # type: ignore[attr-defined]

    return precondition(lambda self: self.world is not None and bool(move.ready(self.world)))(
        rule(data=st.data())(play)
    )


def machine_of(design: str) -> type[RuleBasedStateMachine]:
    return machine(lambda choose: draw_setup(design, choose))
