"""The map from keys to blocks, and what is known of each block, as columns by block id.

A key has one block, or several copies of it (`duplicates="keep"`); a lookup takes the oldest. Columns grow
with the ids in use. The pins are a numpy column, so that a whole path is pinned in a few calls whatever its
length; keys are Python objects that the map and the columns share.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np

from prefixcache.errors import InvariantError

Ids: TypeAlias = "np.ndarray[Any, np.dtype[np.int32]]"

NO_BLOCKS: Ids = np.zeros(0, np.int32)


class Index:
    """See the module.

    Attributes:
        oldest: by key, the block that a lookup takes.
        copies: by key, all blocks that hold it in the order in which they came; only keys with several.
        key, parent: by block id, its key and the key that this continues from; None when it is not cached
            (parent: or when it is the first of its prompt).
        pins: by block id, how many hold it.
    """

    def __init__(self) -> None:
        self.oldest: dict[bytes, int] = {}
        self.copies: dict[bytes, list[int]] = {}
        self.key: list[bytes | None] = []
        self.parent: list[bytes | None] = []
        self.pins: Ids = np.zeros(0, np.int32)

    def __len__(self) -> int:
        return len(self.oldest) + sum(len(blocks) - 1 for blocks in self.copies.values())

    def __iter__(self) -> Iterator[int]:
        """Every cached block, once."""
        if not self.copies:
            return iter(self.oldest.values())
        return (block for key in self.oldest for block in self.copies_of(key))

    def grow(self, ids: int) -> None:
        """Make room for the block ids below this."""
        more = ids - len(self.key)
        if more > 0:
            self.key.extend([None] * more)
            self.parent.extend([None] * more)
            self.pins = grown(self.pins, ids)

    def blocks(self, keys: Sequence[bytes]) -> Ids:
        """The oldest block of each of these cached keys. O(keys)."""
        try:
            return np.fromiter(map(self.oldest.__getitem__, keys), np.int32, len(keys))
        except KeyError:
            raise InvariantError("a key is cached without the keys before it: bisection cannot be trusted") from None

    def copies_of(self, key: bytes) -> Sequence[int]:
        """All blocks that hold a cached key, the oldest first."""
        return self.copies[key] if key in self.copies else (self.oldest[key],)

    def known(self, keys: Sequence[bytes]) -> int:
        """How many leading keys are cached, tried one after the other: the first one seldom is."""
        known = 0
        for key in keys:
            if key not in self.oldest:
                break
            known += 1
        return known

    def add(self, keys: Sequence[bytes], ids: Ids, before: bytes | None, known: int) -> None:
        """Store blocks that follow each other behind the key `before`, pinned once.

        The first `known` of the keys are cached already: their blocks are further copies. O(blocks).
        """
        blocks = ids.tolist()
        for key, block in zip(keys[:known], blocks, strict=False):
            self.copies.setdefault(key, [self.oldest[key]]).append(block)
        self.oldest.update(zip(keys[known:], blocks[known:], strict=True))
        key_of, parent_of = self.key, self.parent
        for key, block in zip(keys, blocks, strict=True):
            key_of[block] = key
            parent_of[block] = before
            before = key
        self.pins[ids] = 1

    def remove(self, ids: Ids) -> list[bytes]:
        """Forget cached blocks; the keys that no block holds any more. O(blocks)."""
        blocks = ids.tolist()
        key_of, parent_of, oldest = self.key, self.parent, self.oldest
        keys: list[Any] = [key_of[block] for block in blocks]
        if self.copies:
            keys = [key for key, block in zip(keys, blocks, strict=True) if not self._remove_copy(key, block)]
        for block in blocks:
            key_of[block] = parent_of[block] = None
        for key in keys:
            del oldest[key]
        return keys

    def remove_one(self, block: int) -> bool:
        """Forget one cached block; whether no block holds its key any more. O(copies)."""
        key = self.key[block]
        assert key is not None
        self.key[block] = self.parent[block] = None
        if self._remove_copy(key, block):
            return False
        del self.oldest[key]
        return True

    def _remove_copy(self, key: bytes, block: int) -> bool:
        """Whether the block was one of several copies of this key, which it is no longer."""
        copies = self.copies.get(key)
        if copies is None:
            return False
        copies.remove(block)
        self.oldest[key] = copies[0]
        if len(copies) == 1:
            del self.copies[key]
        return True

    def check(self) -> None:
        """Assert what must hold of keys, copies, parents and pins."""
        for key in self.oldest:
            copies = self.copies_of(key)
            if copies[0] != self.oldest[key] or len(set(copies)) != len(copies):
                raise InvariantError(f"the oldest block of a key is {self.oldest[key]}, its copies are {copies}")
            for block in copies:
                self._check_block(key, block)
        if any(key not in self.oldest or len(blocks) < 2 for key, blocks in self.copies.items()):
            raise InvariantError("a key with a list of copies is not cached, or has no second copy")
        if sum(key is not None for key in self.key) != len(self):
            raise InvariantError("the map and the columns disagree on how many blocks are cached")

    def _check_block(self, key: bytes, block: int) -> None:
        if self.key[block] != key:
            raise InvariantError(f"block {block} is in the map under a key that is not its own")
        if self.pins[block] < 0:
            raise InvariantError(f"block {block} has a negative pin count")
        parent = self.parent[block]
        if parent is None:
            return
        if parent not in self.oldest:
            raise InvariantError(f"block {block} is cached, its parent is not")
        if self.pins[block] and not any(self.pins[copy] for copy in self.copies_of(parent)):
            raise InvariantError(f"block {block} is pinned, its parent is not")


def ids_of(table: array[int], start: int = 0, end: int | None = None) -> Ids:
    """The blocks [start, end) of a table as a numpy array of its own."""
    part = table[start:end]
    return np.frombuffer(part, np.int32) if part else NO_BLOCKS


def table_of(ids: Ids) -> array[int]:
    """The other way round. O(blocks) bytes."""
    return array("i", ids.tobytes())


def grown(column: Any, ids: int) -> Any:
    """A numpy column with room for the block ids below `ids`, at least doubled so that growing is O(1) each."""
    if ids <= len(column):
        return column
    wider = np.zeros(max(ids, 2 * len(column)), column.dtype)
    wider[: len(column)] = column
    return wider
