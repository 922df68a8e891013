"""The three searches: equal answers after every operation, and no more lookups than promised."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from prefixcache import NoSpace, PrefixCache
from prefixcache.designs.hash_chain.search import SEARCHES
from tests.designs.hash_chain.inside import design_of


class Caches:
    """The same cache with each search, fed the same operations."""

    def __init__(self, **options: Any) -> None:
        self.caches = {
            search: PrefixCache("hash_chain", block_size=2, capacity=24, search=search, **options)
            for search in SEARCHES
        }
        self.live: list[dict[str, Any]] = []
        self.prompts: list[list[int]] = []

    def open(self, tokens: list[int]) -> None:
        self.prompts.append(tokens)
        opened: dict[str, Any] = {}
        refusals = []
        for search, cache in self.caches.items():
            try:
                opened[search] = cache.open(tokens)
            except NoSpace as refusal:
                refusals.append((refusal.need, refusal.available))
        assert len(refusals) in (0, len(self.caches))
        assert len(set(refusals)) <= 1
        if opened:
            assert len({request.cached for request in opened.values()}) == 1
            self.live.append(opened)

    def agree(self) -> None:
        for prompt in self.prompts:
            hits = {search: cache.probe([*prompt, 9]) for search, cache in self.caches.items()}
            assert len({hit.cached for hit in hits.values()}) == 1, f"{prompt}: {hits}"
            assert len({hit.need for hit in hits.values()}) == 1


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"duplicates": "keep"},
        {"visibility": "step"},
        {"eviction": "lfu"},
        {"eviction": "mru", "duplicates": "keep"},
    ],
    ids=str,
)
def test_they_agree_after_every_operation(options: dict[str, Any], seed: int) -> None:
    dice = random.Random(f"{seed} {options}")
    caches = Caches(**options)
    for _ in range(400):
        match dice.choice(("open", "open", "compute", "append", "close", "evict", "end step", "weights")):
            case "open":
                base = dice.choice(caches.prompts or [[1]])
                cut = base[: dice.randrange(len(base) + 1)]
                caches.open([*cut, *(dice.randrange(2) for _ in range(dice.randrange(1, 9)))])
            case "compute" if caches.live:
                for request in dice.choice(caches.live).values():
                    request.computed(request.length)
            case "append" if caches.live:
                token, requests = dice.randrange(2), dice.choice(caches.live)
                for request in requests.values():
                    try:
                        request.append(token)
                    except NoSpace:
                        request.computed(request.length)
            case "close" if caches.live:
                for request in caches.live.pop(dice.randrange(len(caches.live))).values():
                    request.close()
            case "evict":
                count = dice.randrange(3)
                assert len({cache.evict(count) for cache in caches.caches.values()}) == 1
            case "end step":
                for cache in caches.caches.values():
                    cache.end_step()
            case "weights" if dice.random() < 0.1:
                for cache in caches.caches.values():
                    cache.new_generation()
        caches.agree()


@pytest.mark.parametrize("blocks", [1, 2, 3, 4, 5, 7, 8, 63, 64, 100])
@pytest.mark.parametrize("search", SEARCHES)
def test_how_many_lookups_a_match_makes(search: str, blocks: int) -> None:
    keys = [bytes([i]) for i in range(blocks)]
    for hits in range(blocks + 1):
        cached = set(keys[:hits])
        asked: list[bytes] = []

        def is_cached(key: bytes, cached: set[bytes] = cached, asked: list[bytes] = asked) -> bool:
            asked.append(key)
            return key in cached

        found, lookups = SEARCHES[search](keys, blocks, is_cached)
        assert (found, lookups) == (hits, len(asked))
        assert (
            lookups
            <= {
                "binary": math.ceil(math.log2(blocks + 1)),
                "linear": hits + 1,
                "galloping": 2 * math.ceil(math.log2(hits + 1)) + 1,
            }[search]
        )


@pytest.mark.parametrize("prompt_blocks", [1, 10, 100, 1000])
def test_a_probe_makes_logarithmically_many_lookups(prompt_blocks: int) -> None:
    cache = PrefixCache("hash_chain", block_size=4, capacity=2000)
    request = cache.open(range(prompt_blocks * 2))
    request.computed(prompt_blocks * 2)
    assert cache.probe(range(prompt_blocks * 4 + 1)).cached == prompt_blocks * 2 // 4 * 4
    assert design_of(cache).lookups <= math.ceil(math.log2(prompt_blocks + 1))
