"""The order of release as runs of numpy arrays, against a plain list."""

from __future__ import annotations

import random

import numpy as np
import pytest

from prefixcache.designs.hash_chain import release_runs
from prefixcache.designs.hash_chain.index import Index
from prefixcache.designs.hash_chain.release_runs import ReleaseRuns


class Shelf:
    """The runs, and the list that says what they must be."""

    def __init__(self, ids: int) -> None:
        self.index = Index()
        self.index.grow(ids)
        self.runs = ReleaseRuns(self.index)
        self.runs.grow(ids)
        self.expected: list[int] = []
        self.old: set[int] = set()
        self.next_key = 0

    def store(self, blocks: list[int]) -> None:
        keys = [str(self.next_key + i).encode() for i in range(len(blocks))]
        self.next_key += len(blocks)
        self.index.add(keys, np.array(blocks, np.int32), None, 0)

    def release(self, blocks: list[int]) -> None:
        self.runs.add(np.array(blocks, np.int32))
        self.expected += [block for block in blocks if block not in self.old]
        stale = sum(block in self.old for block in self.expected)
        self.expected[stale:stale] = [block for block in blocks if block in self.old]

    def use(self, blocks: list[int]) -> None:
        self.runs.discard(np.array(blocks, np.int32))
        self.expected = [block for block in self.expected if block not in blocks]

    def evict(self, count: int) -> list[int]:
        ids, _ = self.runs.evict(count)
        victims, self.expected = self.expected[:count], self.expected[count:]
        assert ids.tolist() == victims
        self.old -= set(victims)
        return victims

    def retire(self) -> None:
        self.runs.retire()
        self.old = set(self.index)

    def check(self) -> None:
        assert list(self.runs) == self.expected
        assert len(self.runs) == len(self.expected)
        for block in range(len(self.index.key)):
            assert (block in self.runs) == (block in self.expected)


@pytest.mark.parametrize(("ids", "slack"), [(8, 1024), (40, 4), (200, 16)])
def test_the_runs_are_the_list(ids: int, slack: int, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release_runs, "_SLACK", slack)  # so that runs are merged all the time
    monkeypatch.setattr(release_runs, "_WINDOW", 3)
    dice = random.Random(f"{seed} {ids}")
    shelf = Shelf(ids)
    free, used = list(range(ids)), list[int]()
    for _ in range(1500):
        match dice.choice(("store", "release", "release", "use", "evict", "retire" if dice.random() < 0.1 else "use")):
            case "store" if free:
                blocks = [free.pop() for _ in range(dice.randint(1, len(free)))]
                shelf.store(blocks)
                used += blocks
            case "release" if used:
                dice.shuffle(used)
                blocks = [used.pop() for _ in range(dice.randint(1, len(used)))]
                shelf.release(blocks)
            case "use" if shelf.expected:
                blocks = dice.sample(shelf.expected, dice.randint(1, len(shelf.expected)))
                blocks = [block for block in blocks if block not in shelf.old]
                shelf.use(blocks)
                used += blocks
            case "evict":
                free += shelf.evict(dice.randrange(5))
            case "retire":
                shelf.retire()
        shelf.check()


def test_memory_is_that_of_the_waiting_blocks(seed: int) -> None:
    shelf = Shelf(100)
    shelf.store(list(range(100)))
    for _ in range(5000):
        shelf.release(list(range(100)))
        shelf.use(list(range(100)))
    runs = shelf.runs._runs
    assert runs.entries <= 2 * 100 + release_runs._SLACK + 100
    assert len(runs.runs) <= release_runs._SLACK + 100
