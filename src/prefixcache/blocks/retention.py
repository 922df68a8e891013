"""How long a request asks its blocks to stay: a priority and a time to live, over token ranges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import TypeAlias

from prefixcache.errors import OptionError, whole_number

DEFAULT_PRIORITY = 35

PriorityRange: TypeAlias = tuple[int, int | None, int, float | None]
PriorityLike: TypeAlias = int | Sequence[PriorityRange] | None


@dataclass(frozen=True, slots=True)
class Retention:
    """Retention of one request's blocks. A block takes the range that contains its first token.

    Attributes:
        ranges: sorted, disjoint (start, end, priority, ttl); end None means to the end of the prompt.
        decode_priority, decode_ttl: for blocks that begin behind the prompt.
    """

    ranges: tuple[PriorityRange, ...] = ()
    decode_priority: int | None = None
    decode_ttl: float | None = None

    def at(self, position: int, prompt_length: int) -> tuple[int | None, float | None]:
        """(priority, ttl) of a block that begins at this token position; None is the default. O(ranges)."""
        if position >= prompt_length:
            return self.decode_priority, self.decode_ttl
        for start, end, priority, ttl in self.ranges:
            if start <= position and (end is None or position < end):
                return priority, ttl
        return None, None

    def spans(self, start: int, end: int, step: int, prompt_length: int) -> list[tuple[int, int, float | None]]:
        """(end, priority, ttl) of the runs that have both in common, among blocks of `step` tokens in [start, end).

        O(ranges).
        """
        edges = {-(-edge // step) * step for edge in self.edges(prompt_length)}
        stops = [*sorted(edge for edge in edges if start < edge < end), end]
        spans: list[tuple[int, int, float | None]] = []
        for begin, stop in zip([start, *stops], stops, strict=False):
            priority, ttl = self.at(begin, prompt_length)
            priority = DEFAULT_PRIORITY if priority is None else priority
            if spans and spans[-1][1:] == (priority, ttl):
                spans.pop()
            spans.append((stop, priority, ttl))
        return spans if start < end else []

    def edges(self, prompt_length: int) -> set[int]:
        """Token positions where the answer of `at` may change. O(ranges)."""
        ends = {end for _, end, _, _ in self.ranges if end is not None}
        return {start for start, _, _, _ in self.ranges} | ends | {prompt_length}


NO_WISHES = Retention()  # of a request that asks for nothing


def read_retention(
    priority: PriorityLike,
    ttl: float | None,
    decode_priority: int | None,
    decode_ttl: float | None,
    any_priority: bool = False,
) -> Retention:
    """Check and normalise the retention arguments of `open`; raises `OptionError` naming the bad one."""
    least, most = (-(2**62), 2**62) if any_priority else (0, 100)
    given: object = priority
    ttl = _seconds(ttl, "ttl")
    decode_ttl = _seconds(decode_ttl, "decode_ttl")
    if decode_priority is not None:
        decode_priority = whole_number(decode_priority, "decode_priority", least, most)
    if given is None and ttl is None:
        plain = decode_priority is None and decode_ttl is None
        return NO_WISHES if plain else Retention((), decode_priority, decode_ttl)
    if given is None or hasattr(given, "__index__"):
        level = DEFAULT_PRIORITY if given is None else whole_number(given, "priority", least, most)
        return Retention(
            ((0, None, level, ttl),),
            level if decode_priority is None else decode_priority,
            ttl if decode_ttl is None else decode_ttl,
        )
    if not isinstance(given, Sequence) or isinstance(given, str | bytes):
        raise OptionError(f"priority is {given!r}: expected an integer or a list of (start, end, priority, ttl)")
    ranges: list[PriorityRange] = []
    for i, item in enumerate(given):
        if not isinstance(item, Sequence) or isinstance(item, str | bytes) or len(item) not in (3, 4):
            raise OptionError(f"priority[{i}] is {item!r}: expected (start, end, priority, ttl)")
        start, end, level, seconds = (*item, None)[:4]
        start = whole_number(start, f"the beginning of priority[{i}]")
        level = whole_number(level, f"priority[{i}][2]", least, most)
        seconds = _seconds(seconds, f"priority[{i}][3]")
        previous_end = ranges[-1][1] if ranges else 0
        if previous_end is None or start < previous_end:
            raise OptionError(f"priority[{i}] begins at {start}: ranges must be sorted and must not overlap")
        if end is not None:
            end = whole_number(end, f"the end of priority[{i}]", start + 1)
        ranges.append((start, end, level, seconds if seconds is not None else ttl))
    return Retention(tuple(ranges), decode_priority, decode_ttl)


def _seconds(value: object, what: str) -> float | None:
    """A time to live as a float, numpy numbers included; raises `OptionError` for what no clock can be added to."""
    if value is None:
        return None
    try:
        seconds = -1.0 if isinstance(value, bool) or not isinstance(value, Real) else float(value)
    except OverflowError:  # an int beyond all floats
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise OptionError(f"{what} is {value!r}: expected seconds from 0 on, or None")
    return seconds
