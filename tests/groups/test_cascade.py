"""What is evicted in one group, and what goes or stays with it in the others."""

from __future__ import annotations

import pytest

from prefixcache import DESIGNS, Full, PrefixCache, Recurrent, Request, Window
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


@pytest.mark.parametrize("design", DESIGNS)
def test_what_leaves_full_attention_takes_the_other_groups_along(design: str) -> None:
    cache = cached(design)
    assert cache.evict(1) == 1
    assert [cache.books(group).idle for group in range(3)] == [2, 2, 2]
    cache.check()
    assert cache.evict(ALL) == 2
    assert [cache.books(group).free for group in range(3)] == [16, 16, 16]


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
