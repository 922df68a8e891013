"""How a play is told: one line per difference for people, one object per step for programs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from prefixcache.scenario.play import Outcome, Played


def lines(played: Played) -> Iterator[str]:
    """What a person reads: every difference with its place, then one line that sums up."""
    yield from differences(played)
    scenario = played.scenario
    count = sum(len(outcome.differences) for outcome in played.outcomes)
    steps = len(played.outcomes)
    if count == 0:
        yield f"ok      {scenario.file} [{played.design}] {scenario.name}: {steps} steps"
    else:
        wrong = "1 difference" if count == 1 else f"{count} differences"
        unplayed = len(scenario.steps) - steps
        rest = f", {unplayed} steps not played" if unplayed else ""
        yield f"DIFFERS {scenario.file} [{played.design}] {scenario.name}: {wrong} in {steps} steps{rest}"


def differences(played: Played) -> Iterator[str]:
    """One line per difference: file, line, step, design, and what differs."""
    for outcome in played.outcomes:
        for difference in outcome.differences:
            yield f"{_place(played, outcome)}: {difference}"


def objects(played: Played) -> Iterator[str]:
    """One JSON object per step: where it stands, everything it returned, what differed."""
    for outcome in played.outcomes:
        step = outcome.step
        record: dict[str, Any] = {
            "file": str(played.scenario.file),
            "line": step.line,
            "step": step.number,
            "do": step.kind,
            "design": played.design,
            **outcome.returned,
            "differences": list(outcome.differences),
        }
        yield json.dumps(record, default=repr)


def _place(played: Played, outcome: Outcome) -> str:
    step = outcome.step
    return f"{played.scenario.file}:{step.line}: step {step.number} ({step.kind}) [{played.design}]"
