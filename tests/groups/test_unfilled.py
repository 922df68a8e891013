"""A window block stored with an unfilled end covers its tokens and no more: no hit reads what it does not have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from prefixcache import Full, PrefixCache, Window
from prefixcache.cache import attention
from prefixcache.designs.groups import Groups
from prefixcache.designs.groups.side import NOTHING
from prefixcache.designs.groups.values import Values
from tests.groups.test_cascade import ALL, compute

Cache = Callable[[], PrefixCache]


def cache_of(design: str, **options: Any) -> Cache:
    return lambda: PrefixCache(design, block_size=4, capacity=16, groups=[Full(), Window(3)], **options)


CACHES = {
    "block_trie": cache_of("block_trie"),
    "block_trie, all tails": cache_of("block_trie", tails="all"),
    "digest_chain": cache_of("digest_chain"),
}
designs = pytest.mark.parametrize("design", CACHES)


def reused(make: Cache, first: int, then: int, asked: int) -> int:
    """How many of `asked` tokens are reused.

    `first` tokens were computed and lost their window, and then `then` of the same tokens were computed again.
    """
    cache = make()
    compute(cache.open(range(1, first + 1))).close()
    cache.evict(ALL, group=1)
    compute(cache.open(range(1, then + 1))).close()
    cache.check()
    return cache.probe([*range(1, asked + 1), 99]).cached


@designs
def test_a_longer_end_is_not_read_from_the_window_of_a_shorter_one(design: str) -> None:
    # The tree knows 5 and 6 by the first request, the window 5 alone by the second: a hit of 6 would read 6.
    # Where the shorter end is kept by itself, it is reused instead.
    assert reused(CACHES[design], first=6, then=5, asked=6) == (5 if "all tails" in design else 4)


@designs
def test_a_whole_block_is_not_read_from_the_window_of_an_unfilled_one(design: str) -> None:
    assert reused(CACHES[design], first=8, then=6, asked=8) == (6 if "all tails" in design else 4)
    assert reused(CACHES[design], first=8, then=7, asked=7) in (4, 7)  # 7 where the shorter end is kept by itself


@designs
def test_a_longer_end_serves_itself(design: str) -> None:
    assert reused(CACHES[design], first=5, then=6, asked=6) == 6


@designs
@pytest.mark.parametrize("inside", [1, 2, 3])
def test_a_hit_inside_an_unfilled_end_copies_as_many_tokens_as_it_has(design: str, inside: int) -> None:
    cache = CACHES[design]()
    compute(cache.open(range(1, 8))).close()
    request = cache.open([*range(1, 5 + inside), 99])
    assert request.cached == 4 + inside
    assert [(copy.group, copy.tokens) for copy in request.copies] == [(0, inside), (1, inside)]


# -- what removes a rule must be seen -------------------------------------------------------------------


def _hang_from_what_begins_alike(patch: pytest.MonkeyPatch) -> None:
    """An unfilled end that the tree does not keep hangs from the longer block that begins with it."""

    def store(core: Any, groups: Groups, request: Any, length: int, computed: int, ended: bool) -> None:
        groups.store(request.holding, length, computed, ended)

    def homes(groups: Groups, holding: Any, length: int) -> Sequence[int]:
        home, found = own(groups, holding, length), groups.design.match(holding.prompt, length)
        ends_in = found.partial.source if found.partial is not None else NOTHING
        at = len(found.blocks)
        return [ends_in if block == NOTHING and index == at else block for index, block in enumerate(home)]

    own = Groups._homes
    patch.setattr(attention, "_store", store)
    patch.setattr(Groups, "_homes", homes)


@pytest.mark.parametrize("design", ["block_trie", "digest_chain"])
def test_windows_that_hang_from_longer_blocks_are_seen(design: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _hang_from_what_begins_alike(monkeypatch)
    assert reused(CACHES[design], first=8, then=6, asked=8) == 8


@pytest.mark.parametrize("design", ["block_trie", "digest_chain"])
def test_values_that_cover_whole_blocks_whatever_was_stored_are_seen(
    design: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _hang_from_what_begins_alike(monkeypatch)
    assert reused(CACHES[design], first=6, then=5, asked=5) == 5  # it does hang there
    assert reused(CACHES[design], first=6, then=5, asked=6) == 5  # and is not used for more than it has
    monkeypatch.setattr(Values, "covers", lambda values, value, full: full)
    assert reused(CACHES[design], first=6, then=5, asked=6) == 6
