"""The pool: each block lent once, claims counted, nothing lost."""

from __future__ import annotations

import random
from array import array

import pytest

from prefixcache.blocks import MAX_BLOCKS, BlockPool
from prefixcache.errors import InvariantError, OptionError


def test_ids_come_in_order_and_last_freed_first():
    pool = BlockPool(8)
    assert list(pool.take(3)) == [0, 1, 2]
    pool.give((0,))
    pool.give((2,))
    assert list(pool.take(4)) == [2, 0, 3, 4]


def test_an_unbounded_pool_costs_nothing():
    pool = BlockPool(MAX_BLOCKS)
    assert list(pool.take(2)) == [0, 1]
    assert pool.free == MAX_BLOCKS - 2


@pytest.mark.parametrize("bad", [0, -1, True, 1.5, "8", MAX_BLOCKS + 1])
def test_bad_capacity(bad):
    with pytest.raises(OptionError, match="capacity"):
        BlockPool(bad)


def test_a_shared_block_is_freed_by_its_last_claim():
    pool = BlockPool(4)
    block = pool.take(1)[0]
    pool.share(block)
    assert pool.shared(block)
    pool.give((block,))
    assert pool.free == 3
    assert not pool.shared(block)
    pool.give((block,))
    assert pool.free == 4
    pool.check([])


def test_quarantine_keeps_blocks_back():
    pool = BlockPool(4)
    blocks = pool.take(2)
    pool.quarantine(blocks)
    assert (pool.free, pool.quarantined) == (2, 2)
    pool.check(blocks)
    pool.settle(blocks)
    assert (pool.free, pool.quarantined) == (4, 0)


def test_check_finds_each_fault():
    pool = BlockPool(4)
    blocks = pool.take(3)
    pool.check(blocks)
    with pytest.raises(InvariantError, match="owned twice"):
        pool.check([0, 1, 2, 2])
    with pytest.raises(InvariantError, match="lost"):
        pool.check([0, 1])
    pool.give((1,))
    with pytest.raises(InvariantError, match="both free and owned"):
        pool.check([0, 1, 2])
    pool.give((1,))
    with pytest.raises(InvariantError, match="free twice"):
        pool.check([0, 2])


def test_random_lending_against_a_set():
    rng = random.Random(11)
    pool, lent = BlockPool(50), set()
    for _ in range(2000):
        if rng.random() < 0.5 and pool.free:
            taken = list(pool.take(rng.randrange(pool.free) + 1))
            assert not lent.intersection(taken)
            lent.update(taken)
        elif lent:
            back = rng.sample(sorted(lent), rng.randrange(len(lent)) + 1)
            lent.difference_update(back)
            pool.give(array("i", back))
        assert pool.free == 50 - len(lent)
        pool.check(lent)
