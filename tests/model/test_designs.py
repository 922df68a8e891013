"""Every design under random histories, everything checked after every operation."""

from __future__ import annotations

import pytest

from tests.model.machine import explore
from tests.model.soak import soak
from tests.registration import DESIGNS


@pytest.mark.parametrize("design", sorted(DESIGNS))
def test_hypothesis_finds_no_history_that_breaks_a_rule(design: str) -> None:
    explore(design)


@pytest.mark.parametrize("design", sorted(DESIGNS))
def test_a_long_history_breaks_no_rule(design: str, seed: int) -> None:
    played = soak(design, seed, 1000)
    assert min(played.values()) > 0
