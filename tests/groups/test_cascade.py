"""What is evicted in one group, and what goes or stays with it in the others."""

from __future__ import annotations

import pytest

from prefixcache import DESIGNS, Full, PrefixCache, Recurrent, Request, Stored, Window
from prefixcache.designs.groups import Groups
from prefixcache.designs.radix import RadixDesign

ALL = 2**31 - 1


def cached(design: str) -> PrefixCache:
    """12 tokens in three blocks, each with a window block and a state."""
    cache = PrefixCache(design, block_size=4, capacity=16, groups=[Full(), Window(4), Recurrent(4)])
    compute(cache.open(range(1, 13))).close()
    assert [cache.books(group).idle for group in range(3)] == [3, 3, 3]
    return cache


def compute(request: Request) -> Request:
    """Step by step, so that every state is kept."""
    for end in (*request.checkpoints, request.length):
        request.copied()
        request.computed(end)
    return request


def twins(cache: PrefixCache) -> tuple[Request, Request]:
    """Two requests that have computed the same two blocks of 4, each in blocks of its own."""
    first, twin = cache.open([*range(8), 1]), cache.open([*range(8), 2])
    for request in (first, twin):
        request.computed(9)
    return first, twin


@pytest.mark.parametrize("design", DESIGNS)
def test_what_leaves_full_attention_takes_the_other_groups_along(design: str) -> None:
    cache = cached(design)
    assert cache.evict(1) == 1
    assert [cache.books(group).idle for group in range(3)] == [2, 2, 2]
    cache.check()
    assert cache.evict(ALL) == 2
    assert [cache.books(group).free for group in range(3)] == [16, 16, 16]


@pytest.mark.parametrize("own", [2, 4, 8])
@pytest.mark.parametrize("eviction", ["lru", "fifo"])
def test_what_hangs_from_one_of_several_copies_stays_until_the_last_of_them_goes(eviction: str, own: int) -> None:
    groups = [Full(), Window(8, block_size=own), Recurrent(8)]
    cache = PrefixCache("hash_chain", block_size=4, capacity=32, groups=groups, duplicates="keep", eviction=eviction)
    both = [cache.open([*range(16), end]) for end in (1, 2)]
    for end in (8, 16, 17):
        for request in both:
            request.computed(end)
        for request in both:
            request.copied()
    for request in both:
        request.close()
    assert (cache.books(0).idle, cache.books(1).idle, cache.books(2).idle) == (8, 16 // own, 2)
    for _ in range(4):
        assert cache.evict(1) == 1
        cache.check()
        assert cache.probe([*range(16), 99]).cached == 16
    assert cache.evict(ALL) == 4
    assert [cache.books(group).free for group in range(3)] == [32, 32, 32]
    cache.check()


@pytest.mark.parametrize("design", DESIGNS)
def test_a_lost_anchor_takes_the_state_along_that_nobody_could_resume_from(design: str) -> None:
    cache = cached(design)
    assert cache.evict(1, group=1) == 1  # the first block: it left the window first
    assert [cache.books(group).idle for group in range(3)] == [3, 2, 2]
    assert cache.probe([*range(1, 5), 99]).cached == 0
    assert cache.probe([*range(1, 13), 99]).cached == 12
    cache.check()


@pytest.mark.parametrize("design", DESIGNS)
def test_a_state_takes_nothing_along(design: str) -> None:
    cache = cached(design)
    assert cache.evict(ALL, group=2) == 3
    assert [cache.books(group).idle for group in range(3)] == [3, 3, 0]
    assert cache.probe([*range(1, 13), 99]).reason == "no checkpoint"


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("unit", ["tail", "node"])
def test_radix_evicts_first_a_leaf_at_which_no_hit_can_end(group: int, unit: str) -> None:
    cache = PrefixCache(
        "radix",
        block_size=4,
        capacity=16,
        groups=[Full(), Window(8), Recurrent()],
        eviction="mru",
        evict_unit=unit,
    )
    compute(cache.open([*range(1, 9), 10])).close()  # a state after 8 tokens, where prompts part
    for last in (20, 30):
        compute(cache.open([*range(1, 9), *[last] * 9])).close()  # and one after 16, at two leaves
    users = [cache.open([*range(1, 9), 40]) for _ in range(2)]
    for user in users:  # from now on the common beginning was used last
        user.copied()
        user.close()
    ends = [[*range(1, 9), *[last] * 9] for last in (20, 30)]
    assert [cache.probe(end).cached for end in ends] == [16, 16]
    cache.evict(1, group=group)  # what hangs from the end of the leaf that was used longest ago
    hit = cache.probe(ends[0])
    assert (hit.cached, hit.reason) == (8, "no checkpoint")
    assert cache.books().idle == 6
    cache.check()
    # The most recently used leaf would be next; but here is one whose two blocks nobody can come to.
    assert cache.evict(1) == (1 if unit == "tail" else 2)
    cache.check()
    if unit == "tail":
        assert cache.evict(1) == 1
        cache.check()
    assert [cache.probe(end).cached for end in ends] == [8, 16]
    assert [cache.books(index).idle for index in range(3)] == [4, 4, 2]
    cache.evict(1)
    assert [cache.probe(end).cached for end in ends] == [8, 8]


def test_radix_keeps_what_is_in_use_and_what_got_its_value_back() -> None:
    cache = PrefixCache("radix", block_size=4, capacity=16, groups=[Full(), Window(4)], eviction="mru")
    for first in (1, 101, 201):
        compute(cache.open(range(first, first + 9))).close()
    cache.evict(ALL, group=1)
    again = compute(cache.open(range(1, 10)))  # computes all of it, and hangs its window blocks there
    assert again.cached == 0
    again.close()
    user = cache.open(range(101, 110))
    user.computed(8)
    assert cache.evict(2) == 2
    cache.check()
    assert cache.probe(range(1, 10)).cached == 8
    assert cache.probe(range(201, 210)).reason == "not found"
    user.computed(9)
    user.close()
    assert cache.probe(range(101, 110)).cached == 8


@pytest.mark.parametrize("design", DESIGNS)
def test_a_state_that_was_computed_again_is_not_the_next_to_leave(design: str) -> None:
    cache = PrefixCache(design, block_size=4, capacity=16, groups=[Full(), Recurrent()])
    compute(cache.open(range(1, 9))).close()  # states after 4 and 8 tokens
    compute(cache.open(range(101, 109))).close()
    again = compute(cache.open(range(1, 9)))  # goes on from the one after 4, and makes the one after 8 once more
    assert again.cached == 4
    again.close()
    assert cache.evict(2, group=1) == 2
    assert cache.probe([*range(1, 9), 99]).cached == 8
    assert cache.probe([*range(101, 109), 99]).cached == 0
    cache.check()


@pytest.mark.parametrize("design", DESIGNS)
def test_window_blocks_that_were_computed_again_are_not_the_next_to_leave(design: str) -> None:
    cache = PrefixCache(design, block_size=4, capacity=16, groups=[Full(), Window(12)])
    compute(cache.open(range(1, 13))).close()
    compute(cache.open(range(101, 113))).close()
    compute(cache.open(range(1, 13), read=False)).close()  # has its own blocks, and gives them back
    assert cache.evict(3, group=1) == 3
    assert cache.probe([*range(1, 13), 99]).cached == 12
    assert cache.probe([*range(101, 113), 99]).cached == 0
    cache.check()


@pytest.mark.parametrize("design", DESIGNS)
def test_a_window_block_of_a_twin_takes_the_place_of_one_that_was_evicted(design: str) -> None:
    cache = PrefixCache(design, block_size=4, capacity=[16, 8], groups=[Full(), Window(8)])
    first, twin = twins(cache)
    first.close()
    cache.evict(ALL, group=1)
    assert cache.probe([*range(8), 9]).cached == 0
    twin.append(3)
    twin.computed(10)
    assert cache.probe([*range(8), 9]).cached == 8
    assert cache.evict(ALL, group=1) == 0  # in use
    twin.close()
    assert cache.probe([*range(8), 9]).cached == 8
    cache.check()


@pytest.mark.parametrize("design", DESIGNS)
def test_what_a_twin_computes_anew_after_going_back_is_not_taken_for_what_it_had(design: str) -> None:
    cache = PrefixCache(design, block_size=4, capacity=[16, 12], groups=[Full(), Window(8)])
    first, twin = twins(cache)
    first.close()
    twin.rewind(6)
    twin.copied()
    twin.append([40, 41, 42])
    cache.evict(ALL, group=1)
    twin.computed(7)
    assert cache.probe([*range(8), 9]).cached <= 4  # not the block that is being written again
    twin.computed(9)
    assert cache.probe([*range(6), 40, 41, 9]).cached == 8
    twin.close()
    cache.check()


@pytest.mark.parametrize("design", DESIGNS)
def test_a_state_in_use_is_spared(design: str) -> None:
    cache = cached(design)
    request = cache.open([*range(1, 5), 99])  # has yet to copy the state of the first block
    assert request.cached == 4
    assert cache.evict(ALL, group=1) == 2  # the window block that it reads is pinned
    assert cache.books(2).pinned == 2  # that state, and its own
    request.copied()
    request.close()
    cache.check()


def test_without_a_look_at_the_leaves_another_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control."""
    monkeypatch.setattr(RadixDesign, "left_bare", lambda *_: None)
    with pytest.raises(AssertionError):
        test_radix_evicts_first_a_leaf_at_which_no_hit_can_end(1, "tail")


def test_eviction_of_a_leaf_that_can_end_a_hit_again_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control."""
    monkeypatch.setattr(Groups, "_ends_a_hit", lambda *_: False)
    with pytest.raises(AssertionError):
        test_radix_keeps_what_is_in_use_and_what_got_its_value_back()


def test_a_state_inside_a_leaf_does_not_keep_what_grew_behind_it() -> None:
    cache = PrefixCache("radix", block_size=4, capacity=16, groups=[Full(), Recurrent()])
    long = compute(cache.open(range(9)))  # a state after 8 tokens
    compute(cache.open(range(101, 110))).close()
    for token in range(10, 16):
        long.append(token)
    long.computed(14)
    long.close()  # the answer fills a block, at whose end no state was kept
    assert cache.books().idle == 5
    assert cache.evict(1) == 1
    assert [cache.probe(range(first, first + 9)).cached for first in (0, 101)] == [8, 8]
    cache.check()


def test_a_trunk_at_which_no_hit_can_end_goes_with_its_last_child() -> None:
    cache = PrefixCache("radix", block_size=4, capacity=32, groups=[Full(), Window(4)], eviction="priority")
    compute(cache.open([*range(16), *[100] * 9], priority=[(0, 16, 90, None), (16, None, 10, None)])).close()
    compute(cache.open(range(201, 210), priority=50)).close()
    cache.evict(4, group=1)  # the window blocks of the trunk, which were let go of first
    assert cache.evict(2) == 2  # the answer: the least priority
    assert cache.evict(4) == 4  # then the trunk, whatever its priority
    assert cache.probe(range(201, 210)).cached == 8
    cache.check()


def test_what_is_in_use_when_its_turn_comes_is_looked_at_again() -> None:
    cache = PrefixCache("radix", block_size=4, capacity=16, groups=[Full(), Window(4)], eviction="mru")
    for first in (1, 101):
        compute(cache.open(range(first, first + 9))).close()
    cache.evict(2, group=1)  # of the first prompt
    user = cache.open(range(1, 10))  # finds nothing; its blocks move onto those in the tree
    user.computed(3)
    pin = cache.pin(range(101, 110))
    assert cache.evict(1) == 1
    pin.release()
    user.abort()
    cache.evict(1)
    assert cache.probe(range(101, 110)).cached == 8
    cache.check()


def test_eviction_from_a_bare_leaf_looks_at_what_it_evicts_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = PrefixCache("radix", block_size=1, capacity=2000, groups=[Full(), Window(4)])
    compute(cache.open(range(1000))).close()
    cache.evict(ALL, group=1)
    looked: list[int] = []
    ends_a_hit = Groups._ends_a_hit
    monkeypatch.setattr(Groups, "_ends_a_hit", lambda groups, block: looked.append(block) or ends_a_hit(groups, block))
    cache._core.design._bare._ends_a_hit = cache._core.groups._ends_a_hit
    for _ in range(50):
        assert cache.evict(1) == 1
    assert len(looked) <= 150


def test_old_weights_leave_before_a_bare_leaf() -> None:
    cache = PrefixCache("radix", block_size=4, capacity=16, groups=[Full(), Recurrent()])
    compute(cache.open(range(1, 10))).close()
    cache.new_generation()
    request = cache.open(range(101, 110))
    request.computed(9)  # in one step: no state is kept, so no hit can end at this leaf
    request.close()
    assert cache.evict(2) == 2
    assert cache.probe(range(101, 110)).reason == "no checkpoint"


def test_a_hit_inside_a_block_keeps_it_from_being_bare() -> None:
    cache = PrefixCache(
        "radix", block_size=4, capacity=16, groups=[Full(), Window(3, block_size=2)], partial="copy", eviction="mru"
    )
    compute(cache.open(range(1, 10))).close()
    user = cache.open([*range(1, 7), 99])  # its end, in the middle of the second block, is used once more
    assert user.cached == 6
    user.copied()
    user.abort()
    assert cache.evict(3, group=1) == 3  # the other three, that of the second half of the second block among them
    assert cache.probe([*range(1, 7), 99]).cached == 6
    compute(cache.open(range(101, 110))).close()
    assert cache.evict(1) == 1  # the most recently used
    assert cache.probe([*range(1, 7), 99]).cached == 6
    assert cache.probe(range(101, 110)).cached < 8


@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize("steps", [(32,), (16, 32)])
def test_a_sink_that_was_computed_again_leaves_after_what_is_behind_it(design: str, steps: tuple[int, ...]) -> None:
    cache = PrefixCache(design, block_size=4, capacity=32, groups=[Full(), Window(4, sinks=4)])
    first, twin = cache.open(range(32)), cache.open(range(32))
    first.computed(32)
    first.close()
    for end in steps:
        twin.computed(end)
    assert cache.evict(6, group=1) == 6
    assert cache.probe([*range(32), 99]).cached == 32
    assert cache.evict(1, group=1) == 1
    assert cache.probe([*range(32), 99]).cached == 4
    twin.close()
    cache.check()


@pytest.mark.parametrize("design", DESIGNS)
def test_a_window_block_of_a_twin_is_computed_again_once(design: str) -> None:
    cache = PrefixCache(design, block_size=4, capacity=32, groups=[Full(), Window(8)])
    first, twin = cache.open(range(1, 9)), cache.open(range(1, 9))
    for request in (first, twin):
        request.computed(8)
    first.close()
    compute(cache.open(range(101, 109))).close()
    twin.append(9)
    twin.computed(9)  # nothing of the block that others have too
    assert cache.evict(2, group=1) == 2
    assert cache.probe([*range(101, 109), 99]).cached == 8
    cache.check()


@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize("copied", [True, False])
def test_a_fork_of_a_twin_keeps_its_copy_once_it_has_made_it(design: str, copied: bool) -> None:
    cache = PrefixCache(design, block_size=4, capacity=[16, 12], groups=[Full(), Window(8)])
    first, twin = cache.open(range(8)), cache.open(range(8))
    for request in (first, twin):
        request.computed(8)
    first.close()
    child = twin.fork()
    twin.abort(in_flight=True)  # leaves nothing
    cache.evict(ALL, group=1)
    assert cache.probe([*range(8), 9]).cached == 0
    if copied:
        child.copied()
    child.close()
    assert cache.probe([*range(8), 9]).cached == (8 if copied else 0)
    twin.settled()
    cache.check()


@pytest.mark.parametrize("live", [True, False])
def test_what_a_live_request_has_hung_from_the_copy_of_another_moves_to_its_own(live: bool) -> None:
    cache = PrefixCache("hash_chain", block_size=4, capacity=16, groups=[Full(), Window(9)], duplicates="keep")
    first, twin = cache.open(range(8)), cache.open(range(8))
    for request in (first, twin):
        request.computed(8)
    first.close()
    cache.evict(ALL, group=1)
    twin.append(8)
    twin.computed(9)  # its window blocks hang from the first one's blocks now
    if not live:
        twin.close()
    assert cache.evict(2) == 2
    cache.check()
    assert cache.probe([*range(8), 99]).cached == 8


@pytest.mark.parametrize("design", DESIGNS)
def test_a_twin_that_has_gone_back_offers_what_it_computes_anew_once(design: str) -> None:
    cache = PrefixCache(design, block_size=4, capacity=[16, 12], groups=[Full(), Window(8)])
    _, twin = twins(cache)
    twin.rewind(6)
    twin.copied()
    twin.append([40, 41, 42])
    cache.take_events()
    twin.computed(9)
    told = [key for event in cache.take_events()[2] if isinstance(event, Stored) and event.group for key in event.keys]
    assert len(told) == 1
    cache.check()


@pytest.mark.parametrize("design", ["block_trie", "digest_chain"])
def test_an_unfilled_end_that_was_computed_again_is_not_the_next_to_leave(design: str) -> None:
    cache = PrefixCache(design, block_size=4, capacity=16, groups=[Full(), Window(8)])
    compute(cache.open(range(1, 7))).close()
    compute(cache.open(range(101, 107))).close()
    compute(cache.open(range(1, 7), read=False)).close()
    assert cache.evict(2, group=1) == 2
    assert cache.probe([*range(1, 7), 99]).cached == 6
    cache.check()
