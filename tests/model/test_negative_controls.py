"""The state machine itself is tested: with one rule broken it must fail."""

from __future__ import annotations

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.model.machine import machine_of
from tests.model.mutations import EVICT_PARENTS_FIRST, MUTATIONS
from tests.registration import DESIGNS

# A fixed budget of the same examples in every run. The first failure is enough, so nothing is shrunk.
_BUDGET = settings(
    settings.get_profile("default"),
    max_examples=1000,
    stateful_step_count=30,
    derandomize=True,
    phases=[Phase.generate],
    report_multiple_bugs=False,
)


@pytest.mark.parametrize("mutation", sorted(MUTATIONS))
@pytest.mark.parametrize("design", sorted(DESIGNS))
def test_a_broken_rule_is_found(design: str, mutation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTATIONS[mutation](design, monkeypatch)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(machine_of(design), settings=_BUDGET)


def test_every_design_has_its_mutations() -> None:
    assert EVICT_PARENTS_FIRST.keys() == DESIGNS.keys()
