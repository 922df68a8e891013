"""The odds that docs/collisions.md states are those of the birthday bound."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "collisions.md"


def odds(blocks: float, bits: int) -> float:
    """Probability that some two of these many blocks have the same key."""
    return -math.expm1(-blocks * (blocks - 1) / 2.0 ** (bits + 1))


def stated(bits: int) -> list[float]:
    """The figures in the row of the table that begins with this number of bits."""
    (row,) = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith(f"| {bits} |")]
    return [float(cell) for cell in row.strip("|").split("|")[2:]]


@pytest.mark.parametrize("bits", [64, 128, 256])
def test_the_table(bits: int) -> None:
    even = math.sqrt(2 * math.log(2)) * 2.0 ** (bits / 2)
    assert stated(bits) == [float(f"{value:.1e}") for value in (odds(1e6, bits), odds(1e9, bits), even)]


def test_a_year_of_refilling() -> None:
    stored = 1e4 * 365 * 24 * 3600
    page = PAGE.read_text(encoding="utf-8")
    for bits in (64, 128):
        assert f"{stored * 1e6 / 2.0**bits:.1e}" in page


def test_the_bound_is_the_exact_product() -> None:
    bits, blocks = 16, 200
    exact = 1 - math.prod(1 - i / 2**bits for i in range(blocks))
    assert odds(blocks, bits) == pytest.approx(exact, rel=0.01)
