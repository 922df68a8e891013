"""The map from keys to blocks: each key leads to the run that holds its block.

A key has one block, or several copies of it (`duplicates="keep"`); the map leads to the oldest.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import TypeAlias

from prefixcache.blocks.pool import BlockPool
from prefixcache.designs.hash_chain.run import Run
from prefixcache.designs.outline import OutlineNode, outline_of
from prefixcache.errors import InvariantError

Part: TypeAlias = tuple[Run, int, int]  # the blocks [start, end) of a prompt, which lie in this run


class Index:
    """See the module.

    Args:
        pool: told when lookups take another copy of a key.

    Attributes:
        oldest: by key, the run of the block that a lookup takes.
        copies: by key, all runs that hold a block of it in the order in which these came; only keys with
            several.
    """

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self.oldest: dict[bytes, Run] = {}
        self.copies: dict[bytes, list[Run]] = {}

    def __iter__(self) -> Iterator[Run]:
        """Every run, once. O(cached blocks)."""
        runs = dict.fromkeys(self.oldest.values())
        for copies in self.copies.values():
            runs.update(dict.fromkeys(copies))
        return iter(runs)

    def copies_of(self, key: bytes) -> list[Run]:
        """All runs that hold a block of a cached key, the oldest first."""
        return self.copies[key] if key in self.copies else [self.oldest[key]]

    # -- lookup -----------------------------------------------------------------------------------

    def known(self, keys: list[bytes], start: int, end: int) -> int:
        """How many of the keys [start, end) are cached, tried one after the other: the first one seldom is."""
        at = start
        while at < end and keys[at] in self.oldest:
            at += 1
        return at - start

    def parts(self, keys: list[bytes], start: int, end: int) -> list[Part]:
        """Where the blocks of the keys [start, end) of a prompt lie, up to the first key that leads nowhere.

        O(runs) lookups, and O(keys) where keys have copies. A key leads nowhere when it is not cached, or when
        a weak hash has given it to a block at another place of its prompt.
        """
        parts: list[Part] = []
        while start < end:
            run = self.oldest.get(keys[start])
            if run is None:
                break
            first = start - run.start
            if not 0 <= first < len(run.keys) or run.keys[first] != keys[start]:
                break
            count = self._shared(run, first, keys, start, min(end - start, len(run.keys) - first))
            parts.append((run, start, start + count))
            start += count
        return parts

    def _shared(self, run: Run, first: int, keys: list[bytes], start: int, most: int) -> int:
        """How many of the keys from `start` on lead to the run's blocks from `first` on, at least one."""
        if self.copies:
            oldest, count = self.oldest, 1
            while count < most and oldest.get(keys[start + count]) is run:
                count += 1
            return count
        if run.keys[first + most - 1] == keys[start + most - 1]:
            return most
        low, high = 1, most - 1  # a key stands for all before it: up to some place they agree, and never again
        while low < high:
            middle = (low + high + 1) // 2
            if run.keys[first + middle - 1] == keys[start + middle - 1]:
                low = middle
            else:
                high = middle - 1
        return low

    @staticmethod
    def shortened(parts: list[Part], blocks: int) -> list[Part]:
        """Parts of the beginning of a prompt, cut behind its first blocks."""
        return [(run, start, min(end, blocks)) for run, start, end in parts if start < blocks]

    # -- change -----------------------------------------------------------------------------------

    def add(self, run: Run, first: int, known: int) -> None:
        """Register the blocks of a run from `first` on; the first `known` of them are further copies."""
        keys = run.keys[first:] if first else run.keys
        for key in keys[:known]:
            self.copies.setdefault(key, [self.oldest[key]]).append(run)
        oldest = self.oldest
        for key in keys[known:] if known else keys:  # half the time of an update from a dict made of the keys
            oldest[key] = run

    def cut(self, run: Run, at: int) -> Run:
        """Cut a run: its first `at` blocks become a run of their own, which is returned. Same users, same order."""
        upper = Run(run.keys[:at], run.blocks[:at], run.start, run.before)
        del run.keys[:at]
        del run.blocks[:at]
        run.start += at
        run.before = upper.keys[-1]
        upper.stale = run.stale
        if self.copies:
            for key in upper.keys:
                self._replace(key, run, upper)
        else:
            oldest = self.oldest
            for key in upper.keys:
                oldest[key] = upper
        if run.users is not None:
            upper.users = set(run.users)
            for path in run.users:
                path.runs.insert(path.runs.index(run), upper)
        return upper

    def _replace(self, key: bytes, run: Run, by: Run) -> None:
        copies = self.copies.get(key)
        if copies is not None:
            copies[copies.index(run)] = by
        if self.oldest[key] is run:
            self.oldest[key] = by

    def trim(self, run: Run, count: int) -> tuple[array[int], list[bytes], int]:
        """Forget the last blocks of a run: these and their keys, the last one first, and how many keys are gone.

        No block holds these any more. They are the first ones: a parent is cached as long as its child is.
        """
        at = len(run.keys) - count
        keys, blocks = run.keys[at:], run.blocks[at:]
        del run.keys[at:]
        del run.blocks[at:]
        keys.reverse()
        blocks.reverse()
        gone = len(keys)
        if self.copies:
            gone -= sum([self._drop_copy(key, run) for key in keys])
            if self._pool.replaced is not None and gone < len(keys):
                last = run.start + at + count - 1
                self._pool.replaced([(blocks[i], self._block(keys[i], last - i)) for i in range(gone, count)])
        oldest = self.oldest
        for key in keys[:gone] if gone < len(keys) else keys:
            del oldest[key]
        return blocks, keys, gone

    def _block(self, key: bytes, index: int) -> int:
        """The block that a lookup takes of a key, which stands at this index of its prompt."""
        run = self.oldest[key]
        return run.blocks[index - run.start]

    def _drop_copy(self, key: bytes, run: Run) -> bool:
        """Whether the run held one of several copies of this key, which it does no longer."""
        copies = self.copies.get(key)
        if copies is None:
            return False
        copies.remove(run)
        self.oldest[key] = copies[0]
        if len(copies) == 1:
            del self.copies[key]
        return True

    # -- looking at all of it -----------------------------------------------------------------------

    def outline(self) -> list[OutlineNode]:
        """See `Design.outline`: a node per key."""
        parents: dict[bytes, bytes | None] = {}
        blocks: dict[bytes, list[int]] = {key: [] for key in self.oldest}  # parents stand before children
        pins = dict.fromkeys(blocks, 0)
        for run in self:
            before = run.before
            for key, block in zip(run.keys, run.blocks, strict=True):
                parents[key] = before
                blocks[key].append(block)
                pins[key] += len(run.users or ())
                before = key
        return outline_of((key, parents[key], b"", found, pins[key], (key,)) for key, found in blocks.items())

    # -- invariants -------------------------------------------------------------------------------

    def check(self) -> None:
        """Assert what must hold of keys, copies, parents and users."""
        for run in self:
            if not run.keys or len(run.keys) != len(run.blocks):
                raise InvariantError(f"{run!r} has {len(run.keys)} keys")
            if run.users is not None and not run.users:
                raise InvariantError(f"{run!r} is in use by nobody")
            for path in run.users or ():
                if run not in path.runs:
                    raise InvariantError(f"{run!r} is not in the path of one of its users")
            for key in run.keys:
                if run not in self.copies_of(key):
                    raise InvariantError(f"{run!r} has a key that does not lead to it")
            if run.before is None:
                continue
            if run.before not in self.oldest:
                raise InvariantError(f"block {run.blocks[0]} is cached, its parent is not")
            if run.users and not any(parent.users for parent in self.copies_of(run.before)):
                raise InvariantError(f"block {run.blocks[0]} is pinned, its parent is not")
        for key, copies in self.copies.items():
            if len(copies) < 2 or len(set(copies)) != len(copies) or self.oldest.get(key) is not copies[0]:
                raise InvariantError(f"the copies of a key are {copies}, the oldest is {self.oldest.get(key)}")
        for key, run in self.oldest.items():
            if key not in run.keys:
                raise InvariantError(f"a key leads to {run!r}, which does not hold it")
