"""What one attention group has cached: its blocks, each hanging from the block of the tree that it ends with.

The tree is the design's own (radix nodes, chained hashes, a trie): a block of it stands for one whole prefix, so
its id is all the name that a value needs. A place of the tree without a value is a tombstone: the prefix is known
there, and this group has nothing for it (any more).

    tree blocks    0 ── 1 ── 2 ── 3 ── 4        of the design; full attention owns their memory, if there is any
    window         .    .    7    8    9        3 values; those of 0 and 1 have been evicted
    recurrent      .    4    .    .    5        2 states

    capacity = free + idle + pinned + quarantined, for each group by itself
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from prefixcache.blocks.pool import BlockPool
from prefixcache.errors import InvariantError

_NONE = -1

Present = np.ndarray[tuple[int], np.dtype[np.bool_]]


class Values:
    """The blocks of one group: in the tree (idle or pinned), private to requests, or empty.

    Args:
        capacity: blocks of this group's memory.
        per_block: values that can hang from one block of the tree; more than one where the group's blocks are finer.
        removed: told of the event keys of values that can no longer be found; None when nobody listens.

    Attributes:
        lost: told of the blocks of the tree that an eviction has left bare; None when nothing depends on them.
    """

    def __init__(self, capacity: int, per_block: int, removed: Callable[[Sequence[bytes]], None] | None) -> None:
        self.pool = BlockPool(capacity)
        self.per_block = per_block
        self.evicted = 0
        self.lost: Callable[[Sequence[int]], None] | None = None
        self._removed = removed
        self._of = array("i")  # by place, tree block * per_block + offset: the value, or none
        self._place: dict[int, int] = {}  # the same, from value to place
        self._pins: dict[int, int] = {}  # values in use, and by how many
        self._idle: OrderedDict[int, None] = OrderedDict()  # the others, the least recently released first
        self._keys: dict[int, bytes] = {}  # event keys of the values that can be found
        self._short: dict[int, int] = {}  # values of unfilled blocks: tokens that they cover
        self._cut_off: set[int] = set()  # pinned values whose place has left the tree
        self._old: set[int] = set()  # values under weights that are gone

    # -- asking -------------------------------------------------------------------------------------

    @property
    def idle(self) -> int:
        """Values that nobody uses."""
        return len(self._idle)

    @property
    def available(self) -> int:
        """Blocks that a request can draw: empty and idle ones."""
        return self.pool.free + len(self._idle)

    def at(self, tree_block: int, offset: int = 0) -> int:
        """The value that hangs there, or -1."""
        place = tree_block * self.per_block + offset
        return self._of[place] if place < len(self._of) else _NONE

    def at_places(self, places: Iterable[int]) -> list[int]:
        """The value at each place (tree block * per_block + offset), or -1."""
        of, known = self._of, len(self._of)
        return [of[place] if place < known else _NONE for place in places]

    def present(self, tree_blocks: Sequence[int]) -> Present:
        """Whether a value hangs there, for every place of these blocks, shape (blocks * per_block,). O(places)."""
        blocks = np.asarray(tree_blocks, dtype=np.int64)
        places = (blocks[:, None] * self.per_block + np.arange(self.per_block)).ravel()
        known = places < len(self._of)
        found = np.zeros(len(places), dtype=np.bool_)
        if self._of:
            found[known] = np.frombuffer(self._of, dtype=np.int32)[places[known]] != _NONE
        return found

    def covers(self, value: int, full: int) -> int:
        """Tokens that a value covers: `full`, unless it was stored with an unfilled block."""
        return self._short.get(value, full)

    @property
    def any_short(self) -> bool:
        """Whether any value is of an unfilled block."""
        return bool(self._short)

    def is_idle(self, value: int) -> bool:
        """Whether nobody uses it."""
        return value in self._idle

    def cut_off_among(self, blocks: Sequence[int], stop: int) -> list[int]:
        """At which of the first `stop` of these stand values whose place has left the tree. O(1) where none has."""
        cut_off = self._cut_off
        return [index for index in range(min(stop, len(blocks))) if blocks[index] in cut_off] if cut_off else []

    def idle_among(self, values: Iterable[int]) -> list[int]:
        """Those that nobody uses."""
        idle = self._idle
        return [value for value in values if value in idle]

    # -- using --------------------------------------------------------------------------------------

    def attach(self, places: Sequence[int], values: Sequence[int]) -> list[int]:
        """Private blocks become values where their place is bare, pinned once by the one who had them.

        So do those that were cut off, pinned as they are. Returned are the indices of those that did. A negative place
        is none. O(values).
        """
        of = self._of
        self._know(max(places, default=_NONE))
        attached = [index for index, place in enumerate(places) if place >= 0 and of[place] == _NONE]
        for index in attached:
            place, value = places[index], values[index]
            of[place] = value
            self._place[value] = place
            if value in self._cut_off:
                self._cut_off.discard(value)
            else:
                self._pins[value] = 1
        return attached

    def made_again(self, places: Iterable[int]) -> None:
        """What hangs there has been computed once more, the last one last: if nobody uses it, it is just released.

        A negative place is none, and what is under old weights still leaves first.
        """
        for value in self.at_places(place for place in places if place >= 0):
            if value in self._idle and value not in self._old:
                self._idle.move_to_end(value)

    def _know(self, last: int) -> None:
        """Places up to this one can have values."""
        if (lacking := last + 1 - len(self._of)) > 0:
            self._of.frombytes(b"\xff" * (lacking * self._of.itemsize))

    def move(self, heirs: Iterable[tuple[int, int]]) -> None:
        """What hangs from the first block of each pair hangs from the second one now, where that place is bare."""
        of, wide = self._of, self.per_block
        for block, heir in heirs:
            for value in self._hanging((block,)):
                place = self._place[value] + (heir - block) * wide
                self._know(place)
                if of[place] == _NONE:
                    of[self._place[value]], of[place] = _NONE, value
                    self._place[value] = place

    def shorten(self, value: int, tokens: int) -> None:
        """The value is of an unfilled block: it covers so many tokens."""
        self._short[value] = tokens

    def name(self, value: int, key: bytes) -> None:
        """The key under which events speak of it."""
        self._keys[value] = key

    def pin(self, values: Iterable[int]) -> None:
        """One more user of each."""
        idle, pins = self._idle, self._pins
        for value in values:
            if value in idle:
                del idle[value]
                pins[value] = 1
            else:
                pins[value] += 1

    def unpin(self, values: Iterable[int]) -> None:
        """One user less of each, the first one first: what nobody uses is the most recently released now.

        Or empty, if its place has gone.
        """
        idle, pins = self._idle, self._pins
        for value in values:
            left = pins[value] - 1
            if left:
                pins[value] = left
                continue
            del pins[value]
            if value in self._cut_off:
                self._cut_off.discard(value)
                self.pool.give((value,))
                continue
            idle[value] = None
            if value in self._old:
                idle.move_to_end(value, last=False)

    # -- room ---------------------------------------------------------------------------------------

    def allocate(self, blocks: int) -> array[int]:
        """Private blocks, empty ones first; the caller has checked the room."""
        self.evict(blocks - self.pool.free)
        return self.pool.take(blocks)

    def evict(self, blocks: int) -> int:
        """Evict the least recently released values, wherever in the tree they hang; how many went."""
        gone: list[int] = []
        bare: list[int] = []
        while len(gone) < blocks and self._idle:
            value, _ = self._idle.popitem(last=False)
            block, offset = divmod(self._place[value], self.per_block)
            if offset == self.per_block - 1:  # whatever ends with this block read it
                bare.append(block)
            self._bare(value)
            gone.append(value)
        self._tell(gone)
        self.pool.give(gone)
        self.evicted += len(gone)
        if bare and self.lost is not None:
            self.lost(bare)
        return len(gone)

    def drop_idle(self, tree_blocks: Iterable[int]) -> None:
        """What hangs from these blocks and is in use by nobody is of no use to anybody: evict it."""
        gone = self.idle_among(self._hanging(tree_blocks))
        for value in gone:
            del self._idle[value]
            self._bare(value)
        self._tell(gone)
        self.pool.give(gone)
        self.evicted += len(gone)

    def _hanging(self, tree_blocks: Iterable[int]) -> list[int]:
        """The values that hang from these blocks of the tree."""
        of, wide = self._of, self.per_block
        return [value for block in tree_blocks for value in of[block * wide : (block + 1) * wide] if value != _NONE]

    def left(self, tree_blocks: Iterable[int]) -> None:
        """These blocks are in the tree no more: what hangs from them is empty, or will be with its last user."""
        gone = self._hanging(tree_blocks)
        if not gone:
            return
        for value in gone:
            self._bare(value)
        self._tell(gone)
        empty = self.idle_among(gone)
        for value in empty:
            del self._idle[value]
        self.pool.give(empty)
        if len(empty) < len(gone):
            self._cut_off.update(set(gone).difference(empty))

    def _bare(self, value: int) -> None:
        self._of[self._place.pop(value)] = _NONE
        self._short.pop(value, None)
        self._old.discard(value)

    def _tell(self, values: Iterable[int]) -> None:
        keys = [key for value in values if (key := self._keys.pop(value, None)) is not None]
        if keys and self._removed is not None:
            self._removed(keys)

    # -- life of the index --------------------------------------------------------------------------

    def retire(self) -> None:
        """The weights changed: nothing here can be found any more, and it is evicted first."""
        self._tell(list(self._place))
        self._old.update(self._place)

    def clear(self) -> None:
        """Drop everything; the caller has made sure that nothing is pinned. No removals are told."""
        self.pool.give(list(self._place))
        self._of = array("i")
        for held in (self._place, self._idle, self._keys, self._short, self._old):
            held.clear()

    def keys(self) -> Iterator[bytes]:
        """Event keys of what can be found."""
        return iter(self._keys.values())

    def check(self, tree: set[int], private: Iterable[int]) -> None:
        """Assert every invariant; raises `InvariantError`.

        Args:
            tree: the blocks that are in the tree.
            private: this group's blocks that requests own alone, quarantined ones too, once each.
        """
        for value, place in self._place.items():
            if self._of[place] != value:
                raise InvariantError(f"value {value} is not at its place {place}")
            if place // self.per_block not in tree:
                raise InvariantError(f"value {value} hangs from block {place // self.per_block}, which is not cached")
        if sum(value != _NONE for value in self._of) != len(self._place):
            raise InvariantError("a place has a value that does not know it")
        if set(self._idle) & set(self._pins) or any(count < 1 for count in self._pins.values()):
            raise InvariantError("a value is idle and pinned, or pinned less than once")
        if set(self._idle) | (set(self._pins) - self._cut_off) != set(self._place):
            raise InvariantError("the values in the tree are not those that are idle or pinned")
        if not self._cut_off <= set(self._pins) or not self._old <= set(self._place):
            raise InvariantError("a value that was cut off or is old is not there")
        if not set(self._keys) <= set(self._place) or not set(self._short) <= set(self._place):
            raise InvariantError("a key or a length belongs to no value")
        self.pool.check([*self._place, *self._cut_off, *private])
