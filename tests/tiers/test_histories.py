"""Every design over a small host tier under random histories, everything checked after every operation."""

from __future__ import annotations

import pytest

from prefixcache.designs import DESIGNS
from tests.model.soak import soak


@pytest.mark.parametrize("design", sorted({*DESIGNS, "naive"}))
def test_a_long_history_over_a_host_tier_breaks_no_rule(design: str, seed: int) -> None:
    played = soak(design, seed, 1500, tiered=True)
    assert min(played["spill"], played["spilled"], played["copied"]) > 0
