"""Kinds of attention: what a layer reads of the tokens before it, and so what a hit must bring along.

Full()            a position reads all positions before it          [0 ......................... p]
Window(w)         a position reads the last w, itself included           [p-w+1 ................ p]
Recurrent()       a position reads one state made of all before it                      state(p) p
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from prefixcache.errors import OptionError, whole_number

_MOST = 2**31 - 1  # tokens of a window, of a block and between two states


@dataclass(frozen=True, slots=True)
class Full:
    """Layers that attend to all earlier positions. One block per block of tokens."""

    def __str__(self) -> str:
        return "full attention"


@dataclass(frozen=True, slots=True)
class Window:
    """Layers with sliding-window attention.

    Attributes:
        size: positions that a position reads, itself included, at least 1.
        sinks: positions at the beginning that are read as well, however far away.
        block_size: tokens per block of this group: a multiple or a divisor of the cache's, None for the same.
    """

    size: int
    sinks: int = 0
    block_size: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", whole_number(self.size, "Window: size", 1, _MOST))
        object.__setattr__(self, "sinks", whole_number(self.sinks, "Window: sinks", 0, _MOST))
        if self.block_size is not None:
            object.__setattr__(self, "block_size", whole_number(self.block_size, "Window: block_size", 1, _MOST))

    def first_read(self, length: int) -> int:
        """The first position behind the sinks that the position `length` reads."""
        return max(0, length + 1 - self.size)

    def __str__(self) -> str:
        return f"window of {self.size}" + (f" and {self.sinks} sinks" if self.sinks else "")


@dataclass(frozen=True, slots=True)
class Recurrent:
    """Layers that keep one state (Mamba, gated delta nets, short convolutions).

    A block of this group holds one whole state. A state cannot be shortened: reuse begins only where one was kept.

    Attributes:
        interval: a state is kept every so many tokens, a multiple of the cache's block_size. None: only at the
            last full block of a prompt, where prompts were seen to part, and at the end of a request.
    """

    interval: int | None = None

    def __post_init__(self) -> None:
        if self.interval is not None:
            object.__setattr__(self, "interval", whole_number(self.interval, "Recurrent: interval", 1, _MOST))

    def __str__(self) -> str:
        return "recurrent state"


Kind: TypeAlias = Full | Window | Recurrent

_FORMS = "'full', {'window': 4096}, {'window': {'size': 4096, 'sinks': 4}}, 'recurrent' or {'recurrent': 64}"


def read_groups(given: Any, block_size: int) -> tuple[Kind, ...]:
    """The attention groups as values; raises `OptionError` naming the one that cannot be honoured.

    Besides the values themselves, the plain forms of a scenario file are understood.
    """
    if not isinstance(given, Sequence) or isinstance(given, str) or not given:
        raise OptionError(f"groups is {given!r}: expected a list such as [Full(), Window(4096)]")
    kinds = tuple(_read(item, at) for at, item in enumerate(given))
    if sum(isinstance(kind, Full) for kind in kinds) > 1:
        raise OptionError("groups has Full() twice: layers that read all positions share one table")
    for at, kind in enumerate(kinds):
        own = kind.block_size if isinstance(kind, Window) else None
        if own is not None and block_size % own and own % block_size:
            raise OptionError(
                f"groups[{at}]: block_size is {own}: expected a multiple or a divisor of the cache's {block_size}"
            )
        if isinstance(kind, Recurrent) and kind.interval is not None and kind.interval % block_size:
            raise OptionError(
                f"groups[{at}]: interval is {kind.interval}: expected a multiple of block_size, which is {block_size}"
            )
    return kinds


def _read(item: Any, at: int) -> Kind:
    if isinstance(item, Full | Window | Recurrent):
        return item
    if item == "full":
        return Full()
    if item == "recurrent":
        return Recurrent()
    if isinstance(item, Mapping) and len(item) == 1:
        ((name, value),) = item.items()
        fields = dict(value) if isinstance(value, Mapping) else {}
        try:
            if name == "full" and not value:
                return Full()
            if name == "window":
                return Window(**fields) if fields else Window(value)
            if name == "recurrent":
                return Recurrent(**fields) if fields else Recurrent(value)
        except TypeError:
            pass
        except OptionError as error:
            raise OptionError(f"groups[{at}]: {error}") from None
    raise OptionError(f"groups[{at}] is {item!r}: expected Full(), Window(size) or Recurrent(), or {_FORMS}")
