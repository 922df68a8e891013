"""From a long failing history to a short one: operations that are not needed for the failure go."""

from __future__ import annotations

from tests.model.known import Operation
from tests.model.setup import Setup
from tests.model.world import World


def failure(setup: Setup, log: list[Operation]) -> Exception | None:
    """What the history fails with; operations on requests that do not exist (any more) are left out."""
    try:
        world = World(setup)
        for name, arguments in log:
            if world.knows(name, arguments.get("handle")):
                world.do(name, **arguments)
        world.finish()
    except Exception as error:
        return error
    return None


def shrink(setup: Setup, log: list[Operation]) -> list[Operation]:
    """A shorter history that fails in the same way: ever smaller runs of operations are left out."""
    first = failure(setup, log)
    assert first is not None, "the history does not fail"
    size = max(1, len(log) // 2)
    while True:
        at = 0
        while at < len(log):
            shorter = log[:at] + log[at + size :]
            if _alike(failure(setup, shorter), first):
                log = shorter
            else:
                at += size
        if size == 1:
            return log
        size //= 2


def _alike(one: Exception | None, other: Exception) -> bool:
    return type(one) is type(other) and str(one)[:20] == str(other)[:20]
