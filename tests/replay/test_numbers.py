"""Numbers as a reader takes them in."""

from __future__ import annotations

import pytest

from prefixcache.replay.report import numbers


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        *((0, "0"), (2047, "2,047"), (9_999, "9,999"), (12_512, "12.5k"), (400_000, "400k")),
        *((1_000_000, "1 M"), (144_793_823, "144.8 M"), (2_000_000_000, "2 G")),
    ],
)
def test_tokens(count: int, shown: str) -> None:
    assert numbers.tokens(count) == shown


@pytest.mark.parametrize(
    ("count", "shown"), [(None, "unbounded"), (99, "99"), (5_000, "5k"), (8_192, "8,192"), (4_000_000, "4 M")]
)
def test_capacities(count: int | None, shown: str) -> None:
    assert numbers.capacity(count) == shown


@pytest.mark.parametrize(
    ("part", "digits", "shown"),
    [(0, 1, "0.0%"), (1, 1, "<0.1%"), (50, 1, "0.1%"), (1, 2, "<0.01%"), (17_831, 2, "17.83%"), (100_000, 1, "100.0%")],
)
def test_shares_that_are_not_zero_do_not_look_like_it(part: int, digits: int, shown: str) -> None:
    assert numbers.share(part, 100_000, digits) == shown


def test_a_share_of_nothing() -> None:
    assert numbers.share(0, 0) == "0.0%"
