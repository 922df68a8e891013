"""A claim of the article, and what was found when it was put to the test."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

HOLDS = "holds"
CONDITION = "holds with a condition"
WRONG = "wrong"
VERDICTS = (HOLDS, CONDITION, WRONG)

Figure: TypeAlias = tuple[str, Any]
Row: TypeAlias = tuple[Any, ...]

_SHORTEST_SAMPLE_NS = 1_000_000


class Measured(float):
    """A figure of the machine that it was measured on; every other figure is the same everywhere."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What running a claim showed.

    Attributes:
        verdict: one of `VERDICTS`.
        because: the reason in a sentence.
        figures: (what, value) pairs, in the order to be read.
        table: rows of a table, the first one its head; empty when there is none.
        source_read: the verdict rests on reading the original's source; what is run here only illustrates it.
    """

    verdict: str
    because: str
    figures: tuple[Figure, ...] = ()
    table: tuple[Row, ...] = ()
    source_read: bool = False


@dataclass(frozen=True, slots=True)
class Claim:
    """One numbered claim: where it stands, what it says, and how it is tested."""

    number: str
    section: str
    text: str
    test: Callable[[], Finding]


CLAIMS: dict[str, Claim] = {}


def claim(number: str, section: str, text: str) -> Callable[[Callable[[], Finding]], Callable[[], Finding]]:
    """Register the test of a claim."""

    def register(test: Callable[[], Finding]) -> Callable[[], Finding]:
        CLAIMS[number] = Claim(number, section, text, test)
        return test

    return register


def microseconds(work: Callable[[], object], repeat: int = 15) -> Measured:
    """Median CPU time of one call in microseconds; each sample is long enough for the clock."""
    number = 1
    while (taken := _cpu_ns(work, number)) < _SHORTEST_SAMPLE_NS and number < 4096:
        number = min(4096, number * max(2, _SHORTEST_SAMPLE_NS // max(taken, 1)))
    samples = sorted(_cpu_ns(work, number) for _ in range(repeat))
    return Measured(samples[repeat // 2] / number / 1000)


def _cpu_ns(work: Callable[[], object], number: int) -> int:
    started = time.thread_time_ns()
    for _ in range(number):
        work()
    return time.thread_time_ns() - started
