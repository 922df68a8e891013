"""A rewind in every group: what is cached stays as it is, and the request goes on in a copy."""

from __future__ import annotations

import numpy as np
import pytest

from prefixcache import DESIGNS, Full, NoSpace, OptionError, PrefixCache, Recurrent, RequestError, Stored, Window

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


@pytest.mark.parametrize(("design", "own"), [("radix", None), ("hash_chain", None), ("hash_chain", 2)])
@pytest.mark.parametrize("length", [8, 9, 11, 12])
def test_what_a_draft_model_makes_write_again_is_a_private_copy(design: str, own: int | None, length: int) -> None:
    cache = PrefixCache(
        design, block_size=4, capacity=20, groups=[Full(), Window(8, block_size=own)], lookahead=1, lookahead_by="key"
    )
    request = cache.open(range(13))
    request.computed(13)
    findable = cache.open([*range(13), 99])
    read = [table.tolist() for table in findable.tables]
    findable.abort()
    request.rewind(length)
    size = own or 4
    assert request.computed_tokens == length - 1
    written = request.tables[1][(length - 1) // size]  # its last position is written again
    assert written not in read[1], "a block that others read"
    rest = (length - 1) % 4  # kept tokens of the tree's block that is cut: all that hangs from it is copied
    copies = [min(size, rest - begin) for begin in range(0, rest, size)]
    assert [copy.tokens for copy in request.copies if copy.group == 1] == copies
    request.copied()
    request.append([98, 97])
    request.computed(request.length)
    again = cache.open([*range(13), 99])
    assert [table.tolist()[: 12 // 4] for table in again.tables[:1]] == [read[0][: 12 // 4]]
    cache.check()


def test_a_window_in_use_keeps_its_size_whatever_integer_it_was_given_as() -> None:
    for given in (np.uint32(8), np.uint8(8), np.int64(8)):
        cache = PrefixCache("radix", block_size=4, capacity=8, groups=[Full(), Window(given, block_size=np.uint8(4))])
        request = cache.open(range(6))
        request.computed(1)
        assert request.tables[1].tolist() == [0, 1]
        assert cache.groups[1] == Window(8, block_size=4)
    states = PrefixCache("radix", block_size=4, capacity=8, groups=[Full(), Recurrent(np.uint8(8))])
    assert states.open(range(25)).checkpoints == (8, 16, 24)
    with pytest.raises(OptionError, match="size"):
        Window(2**70)


@pytest.mark.parametrize("preset", ["vllm-1", "trtllm"])
@pytest.mark.parametrize("kind", [Window(4), Recurrent(4)])
def test_a_request_with_its_own_copies_goes_back_to_what_hangs_from_another(
    preset: str, kind: Window | Recurrent
) -> None:
    cache = PrefixCache.preset(preset, block_size=4, capacity=16, groups=[Full(), kind])
    twins = [cache.open(range(5)), cache.open(range(5))]
    for twin in twins:
        twin.computed(4)
    for twin in twins:
        twin.copied()
        twin.append(range(50, 55))
        twin.computed(10)
    for twin in twins:
        twin.rewind(4)
        assert twin.computed_tokens == 4
        cache.check()
    if isinstance(kind, Recurrent):
        assert twins[0].copies[0].source == twins[1].copies[0].source
    else:
        assert twins[0].tables[1].tolist() == twins[1].tables[1].tolist()


def test_a_request_goes_back_behind_a_hole_that_another_has_left() -> None:
    cache = PrefixCache.preset("trtllm", block_size=4, capacity=16, groups=[Full(), Window(4)])
    first, second = cache.open(range(5)), cache.open(range(9))
    first.computed(5)
    first.close()
    second.computed(9)  # has its own copy of the first block, and the second one hangs in the tree
    second.append(range(50, 55))
    second.computed(14)
    assert cache.evict(1) == 1
    assert cache.probe([*range(8), 99]).cached == 0
    second.rewind(9)
    assert second.tables[1][1] >= 0
    cache.check()


@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize("own", [1, 2])
def test_finer_blocks_before_the_cut_hang_from_the_block_that_takes_the_place_of_the_cut_one(
    design: str, own: int
) -> None:
    cache = PrefixCache(design, block_size=4, capacity=40, groups=[Full(), Window(11, block_size=own)])
    request = cache.open(range(20))
    request.computed(20)
    request.rewind(18)
    request.copied()
    request.append([98, 97])
    request.computed(20)
    request.close()
    assert cache.probe([*range(18), 98, 97, 99]).cached == 20
    assert cache.probe([*range(20), 99]).cached == 20
    cache.check()


def test_finer_blocks_that_another_had_computed_too_are_offered_again_behind_a_cut() -> None:
    cache = PrefixCache("digest_chain", block_size=4, capacity=40, groups=[Full(), Window(11, block_size=2)])
    twins = [cache.open(range(21)), cache.open(range(21))]
    for twin in twins:
        twin.computed(21)
    twins[1].rewind(18)
    twins[1].copied()
    twins[1].append([98, 97])
    twins[1].computed(20)
    for twin in twins:
        twin.close()
    assert cache.probe([*range(18), 98, 97, 99]).cached == 20
    cache.check()


@pytest.mark.parametrize("own", [1, 2])
def test_going_back_without_room_for_the_finer_blocks_of_the_cut_block_changes_nothing(own: int) -> None:
    window = 20 // own
    cache = PrefixCache("radix", block_size=4, capacity=[20, window], groups=[Full(), Window(21, block_size=own)])
    request = cache.open(range(20))
    request.computed(20)
    before = [table.tolist() for table in request.tables]
    with pytest.raises(NoSpace):
        request.rewind(18)
    assert (request.length, request.copies) == (20, ())
    assert [table.tolist() for table in request.tables] == before
    cache.check()


@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("design", DESIGNS)
def test_who_goes_back_to_the_end_of_a_block_offers_all_of_it_though_the_last_token_is_withheld(
    design: str, ended: bool
) -> None:
    groups = [Full(), Window(4, sinks=5, block_size=3)]
    cache = PrefixCache(design, block_size=6, capacity=40, groups=groups, store_last=False)
    first, second = cache.open(range(14)), cache.open(range(14))
    for request in (first, second):
        request.computed(14)
    first.close()
    cache.evict(ALL, group=1)
    told = [event for event in cache.take_events()[2] if isinstance(event, Stored)]
    tree = {key for event in told if event.group == 0 for key in event.keys}
    second.rewind(6)
    if ended:
        second.close()
    else:
        second.computed(6)
    (stored,) = cache.take_events()[2]
    assert isinstance(stored, Stored)
    assert stored.tokens == tuple(range(6))
    (home,) = {key[:-1] for key in stored.keys}
    assert home in tree, "a key that the tree's block has not"
    assert cache.probe(range(7)).cached == 6
    cache.check()


@pytest.mark.parametrize("design", DESIGNS)
def test_what_can_never_go_back_is_not_told_to_wait_for_room(design: str) -> None:
    cache = PrefixCache(design, block_size=4, capacity=[64, 6, 4], groups=[Full(), Window(8), Recurrent()])
    request = cache.open(range(1, 25))
    request.computed(24)
    other = cache.open(range(100, 116))  # takes all of the window's blocks that are not in use
    with pytest.raises(RequestError, match="group 2"):  # no state after 23 tokens; a copy in group 1 has no room either
        request.rewind(23)
    other.close()
    cache.check()
