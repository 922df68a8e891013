"""The losses add up, none is negative, and each reason takes only what the ones before it have left."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixcache.errors import InvariantError
from prefixcache.replay.losses import Losses, explain


@st.composite
def outcomes(draw: st.DrawFn) -> dict[str, int | None]:
    length = draw(st.integers(1, 200))
    shared = draw(st.integers(0, length))
    own = draw(st.integers(0, shared))
    grain = draw(st.sampled_from([1, 2, 16, 64]))
    usable = min(own, length - 1)
    unbounded = draw(st.none() | st.integers(0, usable // grain * grain))
    most = usable // grain * grain if unbounded is None else unbounded
    hit = draw(st.none() | st.integers(0, most))
    return {
        "length": length,
        "shared": shared,
        "own": own,
        "grain": grain,
        "unbounded": unbounded,
        "hit": hit,
    }


@given(outcomes())
def test_they_add_up_and_none_is_negative(outcome: dict[str, int]) -> None:
    losses = explain(**outcome)
    assert losses.total() == outcome["shared"] - (outcome["hit"] or 0)
    assert all(getattr(losses, name) >= 0 for name in Losses.__slots__)


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        # The whole prompt was sent before: one token must be computed, and a block ends behind it.
        ((32, 32, 32, 1, None, 31), Losses(last_token=1)),
        ((32, 32, 32, 16, None, 16), Losses(last_token=1, boundary=15)),
        ((33, 32, 32, 16, None, 32), Losses()),
        # Another tenant sent 20 tokens of it, this one 5; the last token is nobody's scope.
        ((20, 20, 5, 1, None, 5), Losses(last_token=1, scope=14)),
        ((30, 20, 5, 4, None, 4), Losses(scope=15, boundary=1)),
        # A rule of the design hides a part of what its grain allows.
        ((100, 50, 50, 1, 32, 32), Losses(limit=18)),
        ((100, 50, 50, 1, 32, 16), Losses(limit=18, eviction=16)),
        # Evictions made room between the children that hid a match: no loss is below zero.
        ((100, 50, 50, 1, 32, 40), Losses(limit=10)),
        ((100, 50, 50, 16, None, 0), Losses(boundary=2, eviction=48)),
        ((100, 50, 50, 16, None, None), Losses(boundary=2, refused=48)),
        ((100, 0, 0, 16, None, None), Losses()),
        ((1, 1, 1, 16, None, 0), Losses(last_token=1)),
    ],
)
def test_each_reason(outcome: tuple[int, int, int, int, int | None, int | None], expected: Losses) -> None:
    length, shared, own, grain, unbounded, hit = outcome
    assert explain(length=length, shared=shared, own=own, grain=grain, unbounded=unbounded, hit=hit) == expected


def test_more_than_there_was_is_a_fault_of_the_design() -> None:
    with pytest.raises(InvariantError, match="9 tokens of a prompt were reused, only 8"):
        explain(length=9, shared=9, own=9, grain=1, unbounded=None, hit=9)
    with pytest.raises(InvariantError, match="5 tokens of a prompt were reused, only 4"):
        explain(length=9, shared=9, own=4, grain=1, unbounded=None, hit=5)
