"""What is evicted in one group, and what goes or stays with it in the others."""

from __future__ import annotations

import pytest

from prefixcache import DESIGNS, Full, PrefixCache, Recurrent, Request, Window

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
