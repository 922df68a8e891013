"""A rewind in every group: what is cached stays as it is, and the request goes on in a copy."""

from __future__ import annotations

import pytest

from prefixcache import DESIGNS, Full, PrefixCache, Recurrent, Window

ALL = 2**31 - 1


@pytest.mark.parametrize("design", DESIGNS)
def test_a_cut_inside_a_cached_block_takes_a_private_copy_in_every_group(design: str) -> None:
    cache = PrefixCache(design, block_size=4, capacity=16, groups=[Full(), Window(8)])
    request = cache.open(range(12))
    request.computed(12)
    before = [table.tolist() for table in request.tables]
    request.rewind(10)
    after = [table.tolist() for table in request.tables]
    assert [(copy.group, copy.source, copy.target, copy.tokens) for copy in request.copies] == [
        (group, before[group][2], after[group][2], 2) for group in (0, 1)
    ]
    assert cache.evict(ALL, group=1) == 0  # the block is the source of a copy, its neighbours are read
    assert cache.probe([*range(12), 99]).cached == 12
    request.copied()
    assert cache.evict(ALL, group=1) == 1
    cache.check()


@pytest.mark.parametrize("design", DESIGNS)
def test_a_state_goes_back_to_where_one_was_kept_by_a_copy(design: str) -> None:
    cache = PrefixCache(design, block_size=4, capacity=16, groups=[Full(), Recurrent(4)])
    request = cache.open(range(11))
    request.computed(4)
    (kept,) = request.copies
    request.copied()
    request.computed(6)
    live = int(request.tables[1][0])
    request.rewind(4)
    assert [(copy.group, copy.source, copy.target) for copy in request.copies] == [(1, kept.source, live)]
    assert request.computed_tokens == 4
    assert cache.evict(ALL, group=1) == 0
    request.copied()
    assert cache.books(1).idle == 1
    with pytest.raises(Exception, match=r"group 1 \(recurrent state\) has no longer what position 3 reads"):
        request.rewind(3)
    request.computed(4)
    cache.check()


@pytest.mark.parametrize("design", DESIGNS)
def test_blocks_that_left_the_window_are_pinned_again_while_they_are_cached(design: str) -> None:
    cache = PrefixCache(design, block_size=4, capacity=16, groups=[Full(), Window(5)])
    request = cache.open(range(16))
    request.computed(16)
    assert request.tables[1].tolist().count(-1) == 3
    request.rewind(8)
    assert request.tables[1].tolist().count(-1) == 1
    assert cache.evict(ALL, group=1) == 3  # the second block is read, the others by nobody
    cache.check()


@pytest.mark.parametrize("design", ["block_trie", "digest_chain"])
def test_the_source_of_a_hit_inside_a_block_stays_in_every_group_until_it_is_copied(design: str) -> None:
    cache = PrefixCache(design, block_size=4, capacity=16, groups=[Full(), Window(3)])
    first = cache.open(range(8))
    first.computed(8)
    first.close()
    request = cache.open([0, 1, 2, 3, 4, 5, 99])
    assert (request.cached, {copy.group for copy in request.copies}) == (6, {0, 1})
    cache.evict(ALL, group=1)
    assert cache.books(1).pinned == 2  # the source and its copy
    request.copied()
    assert cache.evict(ALL, group=1) == 1
    cache.check()
