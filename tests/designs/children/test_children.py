"""The index of children against a scan of all of them."""

from __future__ import annotations

import random
import struct

import pytest

from prefixcache.designs import children
from prefixcache.designs.children import ChildIndex
from prefixcache.errors import InvariantError
from prefixcache.keys.tokens import common_tokens


def packed(*tokens: int) -> bytes:
    return struct.pack(f"<{len(tokens)}I", *tokens)


class Scan:
    """The same, obviously right: a list in insertion order, every query looks at all of it."""

    def __init__(self, unit: int) -> None:
        self.unit = unit
        self.children: dict[bytes, int] = {}

    def best(self, tokens: bytes) -> tuple[int, int] | None:
        return max(self.alike(tokens), key=lambda found: found[1], default=None)

    def alike(self, tokens: bytes) -> list[tuple[int, int]]:
        found = []
        for key, child in self.children.items():
            common = common_tokens(key, 0, tokens, 0, min(len(key), len(tokens)) // 4) * 4 // self.unit
            found += [(child, common)] if common else []
        return found


def random_tokens(rng: random.Random, size: int, alphabet: int, unit: int) -> bytes:
    """Whole and partial blocks; ids that differ in one byte only, in each of the four."""
    length = rng.randint(1, size) * unit // 4
    return packed(*(rng.randrange(alphabet) << (8 * rng.randrange(4)) for _ in range(length)))


def play(rng: random.Random, steps: int, size: int, alphabet: int, keep: int, unit: int = 4) -> None:
    index: ChildIndex[int] = ChildIndex(unit)
    scan = Scan(unit)
    for step in range(steps):
        tokens = random_tokens(rng, size, alphabet, unit)
        if tokens in scan.children:
            if rng.random() < 0.3:
                index.replace(tokens, step)
                scan.children[tokens] = step
            elif rng.random() < 0.3:
                index.discard(tokens)
                del scan.children[tokens]
        elif len(scan.children) < keep or rng.random() < 0.5:
            index.add(tokens, step)
            scan.children[tokens] = step
        elif scan.children:
            victims = list(scan.children)
            victim = victims[0] if rng.random() < 0.7 else rng.choice(victims)
            index.discard(victim)
            del scan.children[victim]
        index.check()
        assert len(index) == len(scan.children)
        for _ in range(3):
            query = random_tokens(rng, size, alphabet, unit)
            assert index.best(query) == scan.best(query), (step, query)
            alike = list(index.alike(query))
            assert sorted(alike) == sorted(scan.alike(query)), (step, query)
            assert [common for _, common in alike] == sorted((common for _, common in alike), reverse=True)
    assert sorted(index) == sorted(scan.children.values())
    for victim in list(scan.children):
        index.discard(victim)
        del scan.children[victim]
        index.check()
    assert len(index) == 0 and index.best(packed(1)) is None


@pytest.mark.parametrize("round", range(12))
def test_agrees_with_a_scan(seed: int, round: int) -> None:
    rng = random.Random(f"{seed} {round}")
    size, alphabet = rng.choice([(1, 40), (2, 3), (4, 2), (4, 5), (8, 2), (8, 30), (16, 3)])
    play(rng, 400, size, alphabet, rng.choice([3, 8, 30, 120]), rng.choice([4, 4, 8]))


def test_an_oldest_child_that_is_not_replaced_is_noticed(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "_first", lambda branch: branch.first)
    with pytest.raises((AssertionError, InvariantError)):
        play(random.Random(seed), 400, 4, 3, 30)


def test_ties_go_to_the_first_inserted_however_many_there_are() -> None:
    index: ChildIndex[int] = ChildIndex()
    for i in range(3000):
        index.add(packed(5, 5, 10_000 - i), i)
    assert index.best(packed(5, 5, 3)) == (0, 2)
    for i in range(2999):
        index.discard(packed(5, 5, 10_000 - i))
        assert index.best(packed(5, 5, 3)) == (i + 1, 2)


def test_a_shorter_child_and_a_shorter_query_match_as_far_as_they_go() -> None:
    index: ChildIndex[str] = ChildIndex()
    for i in range(20):
        index.add(packed(100 + i), "other")
    index.add(packed(4, 5), "tail")
    index.add(packed(4, 5, 6, 7), "whole")
    assert index.best(packed(4, 5, 9)) == ("tail", 2)
    assert index.best(packed(4, 5, 6)) == ("whole", 3)
    assert index.best(packed(4)) == ("tail", 1)
    assert index.best(packed(4, 5)) == ("tail", 2)
    assert index.best(packed(9)) is None
    assert index.best(b"") is None
    assert list(index.alike(packed(4, 5, 6))) == [("whole", 3), ("tail", 2)]
    assert not list(index.alike(packed(9)))


def test_the_same_tokens_twice_are_an_error_and_an_unknown_discard_is_none() -> None:
    for size in (1, 30):
        index: ChildIndex[int] = ChildIndex()
        for i in range(size):
            index.add(packed(i, 1), i)
        with pytest.raises(InvariantError, match="two children"):
            index.add(packed(0, 1), 99)
        with pytest.raises(InvariantError, match="not in the index"):
            index.replace(packed(77), 99)
        index.discard(packed(77))
        index.discard(packed(0, 1, 2))


class Counted(bytes):
    """Counts how often a lookup takes a token or a comparison from it."""

    looks = 0

    def __getitem__(self, at):  # type: ignore[no-untyped-def]
        Counted.looks += 1
        return super().__getitem__(at)


def test_a_lookup_does_not_cost_more_with_more_children(seed: int) -> None:
    rng = random.Random(seed)
    index: ChildIndex[int] = ChildIndex()
    looks = {}
    for i in range(16_384):
        index.add(packed(*range(16), *(rng.getrandbits(32) for _ in range(16))), i)
        if i + 1 in (32, 1024, 16_384):
            Counted.looks = 0
            assert index.best(Counted(packed(*range(16), *range(16)))) == (0, 16)
            assert next(index.alike(Counted(packed(*range(16), *range(16)))))[1] == 16
            looks[i + 1] = Counted.looks
    assert len(set(looks.values())) == 1, looks


def test_children_that_share_ever_more_cost_a_step_per_token_at_most() -> None:
    index: ChildIndex[int] = ChildIndex()
    size = 32
    for i in range(size):
        index.add(packed(*([1] * i + [2] + [3] * (size - 1 - i))), i)
    Counted.looks = 0
    assert index.best(Counted(packed(*[1] * size))) == (size - 1, size - 1)
    assert Counted.looks <= 2 * size
