"""The small interface between a design and the order in which its idle blocks leave.

The structure decides *what may go* (idle, and nothing cached hangs on it); a policy only ranks that. A
design is the owner of its items: it tells a policy the facts about an item, and it is told which one goes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

Item = TypeVar("Item", bound=Hashable)
Item_contra = TypeVar("Item_contra", bound=Hashable, contravariant=True)


class Facts(NamedTuple):
    """What a policy may know about an idle item.

    Attributes:
        last_access: tick of the last release or refresh of the item's path; larger is later.
        created: tick at which the item was stored.
        hits: how many requests have passed the item.
        priority: retention priority, larger stays longer.
        depth: tokens from the beginning of the prompt to the item's end.
        length: tokens of the item itself.
        history: the longest depth the item's branch has ever had.
        step: scheduling step in which the last one to release the item was scheduled last.
        block: the item's block id, where an original breaks ties by it.
    """

    last_access: int
    created: int
    hits: int
    priority: int
    depth: int
    length: int
    history: int
    step: int = 0
    block: int = 0


Rank: TypeAlias = Callable[[Facts], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Policy:
    """A way of ranking idle items.

    Attributes:
        name: what users call it.
        rank: from the facts of an item to integers of at most 64 bits, always equally many; the smallest leaves first.
        uses: which facts beyond recency, age and place the ranks rest on, of "hits", "priority" and
            "history": a design need not keep the others.
    """

    name: str
    rank: Rank
    uses: frozenset[str] = frozenset()


class Owner(Protocol[Item_contra]):
    """What a design tells a queue."""

    def facts(self, item: Item_contra) -> Facts:
        """The facts of one idle item now. O(1)."""
        ...


class IdleQueue(Protocol[Item]):
    """Idle items in the order in which they leave.

    Attributes:
        takes_all: True when every idle item is to be added, tail of a path first (the order itself then
            keeps children before parents); False when only leaves may be added, and a parent follows when
            its last cached child has left.
    """

    takes_all: bool

    def __len__(self) -> int: ...

    def __contains__(self, item: Item) -> bool: ...

    def __iter__(self) -> Iterator[Item]: ...

    def add(self, item: Item) -> None:
        """The item became idle (and a leaf, unless `takes_all`)."""
        ...

    def discard(self, item: Item) -> None:
        """The item is in use again, no leaf any more, or gone. No error when it is not queued."""
        ...

    def rerank(self, item: Item) -> None:
        """The facts of the item changed while it was queued. No error when it is not."""
        ...

    def peek(self) -> Item:
        """The next to leave; `LookupError` when there is none."""
        ...

    def pop(self) -> Item:
        """Take the next to leave out of the queue; `LookupError` when there is none."""
        ...
