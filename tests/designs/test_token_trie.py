"""token_trie: one node per token, and otherwise the decisions of radix at block size 1."""

from __future__ import annotations

import random

import pytest

from prefixcache import DESIGNS, NoSpace, OptionError, PrefixCache
from prefixcache.replay.setups import plan


def _run(cache: PrefixCache, tokens: list[int]) -> int:
    request = cache.open(tokens)
    request.computed(request.length)
    request.close()
    return request.cached


def test_a_token_is_a_node() -> None:
    cache = PrefixCache("token_trie", block_size=1, capacity=100)
    _run(cache, [1, 2, 3, 4])
    _run(cache, [1, 2, 5])
    outline = cache.outline()
    assert [node.tokens for node in outline if node.parent == -1] == [(1,)]
    assert sorted(node.tokens for node in outline) == [(1,), (2,), (3,), (4,), (5,)]
    assert len({node.blocks for node in outline}) == 5


def test_its_hits_and_victims_are_those_of_radix(seed: int) -> None:
    random_numbers = random.Random(seed)
    caches = [PrefixCache(name, block_size=1, capacity=40) for name in ("token_trie", "radix")]
    hits = evicted = 0
    for _ in range(600):
        tokens = [random_numbers.randrange(3) for _ in range(1 + random_numbers.randrange(14))]
        first, second = (_run(cache, tokens) for cache in caches)
        assert first == second
        hits += first
        if not random_numbers.randrange(8):
            count = random_numbers.randrange(1, 12)
            assert caches[0].evict(count) == caches[1].evict(count)
            evicted += count
        reached = [{key for node in cache.outline() for key in node.keys} for cache in caches]
        assert reached[0] == reached[1]
    assert hits > 500
    assert evicted > 100


def test_a_refusal_names_what_is_expected() -> None:
    with pytest.raises(OptionError, match="block_size is 16, expected 1"):
        PrefixCache("token_trie", block_size=16, capacity=4)
    with pytest.raises(OptionError, match="expected 'lru'"):
        PrefixCache("token_trie", block_size=1, capacity=4, eviction="lfu")
    cache = PrefixCache("token_trie", block_size=1, capacity=4)
    with pytest.raises(NoSpace):
        cache.open([1, 2, 3, 4, 5])


def test_it_is_compared_only_when_asked_for() -> None:
    assert "token_trie" not in DESIGNS
    assert "token_trie" not in {setup.design for setup in plan([], [], [None])}
    assert [setup.block_size for setup in plan(["token_trie"], [], [None])] == [1]
