"""A window block stored with an unfilled end covers its tokens and no more: no hit reads what it does not have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from prefixcache import Full, PrefixCache, Recurrent, Window
from prefixcache.designs.block_trie import BlockTrieDesign
from prefixcache.designs.digest_chain import DigestChainDesign
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
def test_an_end_that_is_computed_again_gets_its_window_back(design: str) -> None:
    assert reused(CACHES[design], first=6, then=6, asked=6) == 6


@pytest.mark.parametrize("design", ["block_trie", "digest_chain"])
def test_an_end_that_is_computed_again_gets_its_state_back(design: str) -> None:
    cache = PrefixCache(design, block_size=4, capacity=16, groups=[Full(), Recurrent()])
    for _ in range(2):
        cache.evict(ALL, group=1)
        assert cache.probe([*range(6), 99]).cached == 0
        compute(cache.open(range(6))).close()
        assert cache.probe([*range(6), 99]).cached == 6


@designs
@pytest.mark.parametrize("inside", [1, 2, 3])
def test_a_hit_inside_an_unfilled_end_copies_as_many_tokens_as_it_has(design: str, inside: int) -> None:
    cache = CACHES[design]()
    compute(cache.open(range(1, 8))).close()
    request = cache.open([*range(1, 5 + inside), 99])
    assert request.cached == 4 + inside
    assert [(copy.group, copy.tokens) for copy in request.copies] == [(0, inside), (1, inside)]


# -- what removes a rule must be seen -------------------------------------------------------------------


@designs
def test_ends_that_are_not_looked_for_are_seen(design: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (BlockTrieDesign, DigestChainDesign):
        monkeypatch.setattr(kind, "unfilled_end", lambda *args: -1)
    assert reused(CACHES[design], first=6, then=6, asked=6) == 4


def _hang_from_what_begins_alike(patch: pytest.MonkeyPatch) -> None:
    """An unfilled end that the tree does not keep hangs from the longer block that begins with it."""

    def longer(design: Any, prompt: Any, length: int) -> int:
        partial = design.match(prompt, length).partial
        return partial.source if partial is not None else -1

    for design in (BlockTrieDesign, DigestChainDesign):
        patch.setattr(design, "unfilled_end", longer)


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
