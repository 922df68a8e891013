"""The lengths that each group calls safe, against a question asked at every length: which slots are read there?"""

from __future__ import annotations

import random

import pytest

from prefixcache import Recurrent, Window
from prefixcache.designs.groups.recurrent import RecurrentSide
from prefixcache.designs.groups.values import Values
from prefixcache.designs.groups.window import WindowSide


def read(kind: Window, length: int) -> set[int]:
    """The positions before `length` that the position `length` reads."""
    return {at for at in range(length) if length - at < kind.size or at < kind.sinks}


Covered = dict[tuple[int, int], int]  # by block of the tree and place in it: the tokens that were stored there


def window(rng: random.Random) -> tuple[WindowSide, int, Covered]:
    """A window with blocks missing, over a tree whose blocks are 0, 1, 2 ..; how many there are; what is stored."""
    tree_size = rng.choice((1, 2, 4, 6))
    own = rng.choice([size for size in range(1, 25) if not size % tree_size or not tree_size % size])
    kind = Window(rng.randrange(1, 30), sinks=rng.choice((0, 0, 1, 3, 9)), block_size=own)
    blocks, fine, coarse = rng.randrange(0, 12), max(1, tree_size // own), max(1, own // tree_size)
    values, covered = Values(1000, fine, None), {}
    for block in range(blocks + 1):  # the last one is the source of hits inside a block
        for offset in range(fine):
            if (block + 1) % coarse == 0 and rng.random() < 0.8:
                short = rng.randrange(1, own + 1) if block == blocks else None
                hang(values, block * fine + offset, short)
                covered[block, offset] = short or own
    return WindowSide(0, values, tree_size, kind), blocks, covered


def hang(values: Values, place: int, short: int | None) -> None:
    """A new value at a bare place."""
    value = values.allocate(1)[0]
    assert values.attach([place], [value]) == [0]
    if short is not None:
        values.shorten(value, short)


def holds(side: WindowSide, covered: Covered, blocks: int, position: int, end: int) -> bool:
    """Whether what is cached has this position, for a hit of `end` tokens."""
    entry, own = position // side.block_size, side.block_size
    index = ((entry + 1) * own - 1) // side.tree_size
    place = entry % max(1, side.tree_size // own)
    if (entry + 1) * own > end and index < blocks:
        return False  # a hit of whole blocks has whole blocks
    return position - entry * own < covered.get((index, place), 0)


@pytest.mark.parametrize("history", range(200))
def test_a_window_is_safe_where_all_that_is_read_is_cached(history: int, seed: int) -> None:
    side, blocks, covered = window(random.Random(f"{seed} {history}"))
    expected = []
    for whole in range(blocks + 1):
        length = whole * side.tree_size
        entries = length // side.block_size
        # Blocks are shared whole: a block of which one slot is read must be there.
        needed = {at // side.block_size for at in read(side.kind, length)}
        there = all(
            entry < entries and holds(side, covered, blocks, entry * side.block_size, length) for entry in needed
        )
        expected.append(length % side.block_size == 0 and there)
    assert side.safe(list(range(blocks))).tolist() == expected
    assert [side.safe_at_the_end(list(range(whole))) for whole in range(blocks + 1)] == expected
    within = side.safe_within(list(range(blocks)), 0)
    for whole in range(blocks):
        least, end = whole * side.tree_size, (whole + 1) * side.tree_size
        assert within[least] == expected[whole]
        inside = [longest_inside(side, covered, whole, tokens) == tokens for tokens in range(1, side.tree_size)]
        assert within[least + 1 : end].tolist() == inside
        assert side.safe_within(list(range(blocks)), least).tolist() == within[least:].tolist()


def longest_inside(side: WindowSide, covered: Covered, blocks: int, tokens: int) -> int:
    """The most of the first `tokens` tokens behind these blocks that are safe: every length is tried."""
    own, size = side.block_size, side.tree_size
    for inside in range(tokens if own <= size else 0, 0, -1):
        length = blocks * size + inside
        needed = {at // own for at in read(side.kind, length)}
        # What is read of a block is shared or copied with all that is before it.
        if all(holds(side, covered, blocks, min((entry + 1) * own, length) - 1, length) for entry in needed):
            return inside
    return 0


def require_safe_inside(seed: str) -> None:
    """That of a block as much is safe as all is there for that is read, for one window."""
    side, blocks, covered = window(random.Random(seed))
    for tokens in range(1, side.tree_size):
        safe = side.safe_inside(list(range(blocks)), blocks, tokens)
        assert safe == longest_inside(side, covered, blocks, tokens), (side.kind, blocks, tokens)
        assert not safe or side.may_end_behind(list(range(blocks)))[-1]


@pytest.mark.parametrize("history", range(200))
def test_a_hit_inside_a_block_has_all_that_is_read_there(history: int, seed: int) -> None:
    require_safe_inside(f"inside {seed} {history}")


def test_values_that_cover_whole_blocks_whatever_was_stored_are_seen(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Values, "covers", lambda values, value, full: full)
    with pytest.raises(AssertionError, match="Window"):
        for history in range(200):
            require_safe_inside(f"inside {seed} {history}")


@pytest.mark.parametrize("history", range(30))
def test_a_state_is_safe_where_one_was_kept(history: int, seed: int) -> None:
    rng = random.Random(f"state {seed} {history}")
    values, blocks = Values(100, 1, None), rng.randrange(0, 12)
    kept = {block for block in range(blocks) if rng.random() < 0.4}
    for block in kept:
        hang(values, block, None)
    side = RecurrentSide(0, values, 4, Recurrent())
    expected = [True, *(block in kept for block in range(blocks))]
    assert side.safe(list(range(blocks))).tolist() == expected
    assert [side.safe_at_the_end(list(range(whole))) for whole in range(blocks + 1)] == expected
    hang(values, blocks, 3)
    assert [side.safe_inside(list(range(blocks)), blocks, tokens) for tokens in (1, 2, 3)] == [0, 0, 3]
