"""What can go wrong, as types. Every message says what was given, where, and what was expected."""

from __future__ import annotations

import operator


class PrefixCacheError(Exception):
    """The base of all errors of this library."""


class TokenError(PrefixCacheError, ValueError):
    """A token is no unsigned 32-bit id, or a prompt is empty. Names the position."""


class ScopeError(PrefixCacheError, ValueError):
    """A scope or a media item has a field of the wrong type or value."""


class OptionError(PrefixCacheError, ValueError):
    """An option has no such name or value; the message lists what there is."""


class NoSpace(PrefixCacheError):
    """The blocks needed are not to be had now. Nothing was changed by the refused call.

    Attributes:
        need: blocks the call would have drawn from free and idle ones.
        available: free and idle blocks there were.
    """

    def __init__(self, need: int, available: int, what: str = "the request", capacity: int | None = None) -> None:
        self.need = need
        self.available = available
        advice = "close or preempt a request, or try again later"
        if capacity is not None and need > capacity:
            advice = f"there are {capacity} in all: reserve fewer tokens at a time, or give the cache more blocks"
        super().__init__(f"{what} needs {need} blocks, {available} are free or idle; {advice}")


class RequestError(PrefixCacheError, RuntimeError):
    """A request was used in a state or with a length that does not allow the call."""


class InvariantError(PrefixCacheError, AssertionError):
    """`check()` found an invariant broken: a fault of this library, with the state that shows it."""


def whole_number(
    value: object, what: str, least: int = 0, most: int | None = None, error: type[PrefixCacheError] = OptionError
) -> int:
    """`value` as an int from `least` to `most`, numpy integers included; raises `error` saying what was expected."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]  # what is no integer is why it may fail
    except TypeError:
        number = least - 1
    if not isinstance(value, bool) and number >= least and (most is None or number <= most):
        return number
    upto = f"to {most}" if most is not None else "on"
    raise error(f"{what} is {value!r}: expected an integer from {least} {upto}")
