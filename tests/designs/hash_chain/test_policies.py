"""Every eviction policy by its name: the victims are those of a scan over all idle leaves."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pytest

from prefixcache import POLICIES, PrefixCache, Removed, Stored, tlru
from prefixcache.blocks.eviction import Facts, Policy
from prefixcache.blocks.retention import DEFAULT_PRIORITY

_SIZE = 2


@dataclass(eq=False)
class Known:
    """One cached block, by the prefix that it ends."""

    prefix: tuple[int, ...]
    created: int
    hits: int = 1
    priority: int = DEFAULT_PRIORITY
    last_access: int = 0
    history: int = 0
    queued: int = 0  # when it became an idle leaf


class Reference:
    """Requests come one after the other, so that all blocks are idle whenever one is evicted."""

    def __init__(self, policy: Policy) -> None:
        self.policy, self.known, self.tick = policy, dict[tuple[int, ...], Known](), 0

    def run(self, tokens: list[int], priority: int | None) -> None:
        ends = range(_SIZE, len(tokens) + 1, _SIZE)
        path = [tuple(tokens[:end]) for end in ends]
        for prefix in path:
            self.tick += 1
            block = self.known.get(prefix)
            if block is None:
                block = self.known[prefix] = Known(prefix, self.tick)
            else:
                block.hits += 1  # reused, or computed again and given back
            if priority is not None:
                block.priority = priority
        for prefix in path:
            self.known[prefix].history = max(self.known[prefix].history, len(path) * _SIZE)
        self.tick += 1
        for prefix in reversed(path):
            self.known[prefix].last_access = self.tick
            self.queue(prefix)

    def queue(self, prefix: tuple[int, ...]) -> None:
        if prefix in self.known and self.is_leaf(prefix):
            self.tick += 1
            self.known[prefix].queued = self.tick

    def is_leaf(self, prefix: tuple[int, ...]) -> bool:
        return not any(len(p) == len(prefix) + _SIZE and p[: len(prefix)] == prefix for p in self.known)

    def evict(self) -> tuple[int, ...]:
        leaves = [block for prefix, block in self.known.items() if self.is_leaf(prefix)]
        victim = min(leaves, key=lambda block: (self.policy.rank(self.facts(block)), block.queued))
        del self.known[victim.prefix]
        self.queue(victim.prefix[:-_SIZE])
        return victim.prefix

    @staticmethod
    def facts(block: Known) -> Facts:
        depth = len(block.prefix)
        return Facts(block.last_access, block.created, block.hits, block.priority, depth, _SIZE, block.history)


def prefixes(stored: dict[bytes, tuple[int, ...]], cache: PrefixCache) -> list[tuple[int, ...]]:
    """Prefixes removed since the last call; `stored` learns those that were added."""
    removed = []
    for event in cache.take_events()[2]:
        if isinstance(event, Stored):
            before = stored[event.parent] if event.parent else ()
            for i, key in enumerate(event.keys):
                before = stored[key] = before + event.tokens[i * _SIZE : (i + 1) * _SIZE]
        elif isinstance(event, Removed):
            removed += [stored.pop(key) for key in event.keys]
    return removed


@pytest.mark.parametrize("eviction", [*POLICIES.values(), tlru(4, 2)], ids=[*POLICIES, "tlru(4, 2)"])
@pytest.mark.parametrize("duplicates", ["give_back", "keep"])
def test_the_victims_are_those_of_a_scan(eviction: Policy, duplicates: str, seed: int) -> None:
    dice = random.Random(f"{seed} {eviction.name}")
    cache = PrefixCache("hash_chain", block_size=_SIZE, capacity=400, eviction=eviction, duplicates=duplicates)
    reference = Reference(eviction)
    stored: dict[bytes, tuple[int, ...]] = {}
    for _ in range(500):
        if dice.random() < 0.6 or not reference.known:
            tokens = [dice.randrange(2) for _ in range(dice.randrange(1, 10))]
            if duplicates == "keep":
                tokens = [*tokens[: len(tokens) // _SIZE * _SIZE], 9]  # a full hit would make a second copy
            priority = dice.choice((None, None, 0, 50, 100))
            run(cache, tokens, priority)
            reference.run(tokens, priority)
        else:
            assert cache.evict(1) == 1
            prefixes_gone = prefixes(stored, cache)
            assert prefixes_gone == [reference.evict()]
        cache.check()
        assert not prefixes(stored, cache)


def run(cache: PrefixCache, tokens: list[int], priority: int | None) -> None:
    request: Any = cache.open(tokens, priority=priority)
    request.computed(len(tokens))
    request.close()


def test_a_priority_holds_for_its_time() -> None:
    now = [0.0]
    cache = PrefixCache("hash_chain", block_size=4, capacity=2, eviction="priority", clock=lambda: now[0])

    def once(tokens: list[int], **terms: Any) -> None:
        request = cache.open(tokens, **terms)
        request.computed(len(tokens))
        request.close()

    once([1, 2, 3, 4], priority=80, ttl=0.1)
    once([5, 6, 7, 8])
    now[0] = 0.01
    once([9, 9, 9, 9])  # takes the place of 5 6 7 8: the first prompt still has its priority
    assert cache.probe([1, 2, 3, 4, 0]).cached == 4
    now[0] = 0.2
    once([7, 7, 7, 7])  # now the first prompt has fallen to the default, and it is the older one
    assert cache.probe([1, 2, 3, 4, 0]).cached == 0
    assert cache.probe([9, 9, 9, 9, 0]).cached == 4


def test_the_last_claim_decides_how_long_a_block_stays() -> None:
    now = [0.0]
    cache = PrefixCache("hash_chain", block_size=4, capacity=3, eviction="priority", clock=lambda: now[0])
    for at, tokens, terms in (
        (0.0, [1, 2, 3, 4], {"priority": 80, "ttl": 0.1}),
        (0.05, [1, 2, 3, 4, 9], {"priority": 80}),  # claimed again, without a limit
        (0.2, [5, 6, 7, 8], {}),
        (0.2, [15, 16, 17, 18], {}),
        (0.2, [25, 26, 27, 28], {}),
    ):
        now[0] = at
        request = cache.open(tokens, **terms)
        request.computed(len(tokens))
        request.close()
    assert cache.probe([1, 2, 3, 4, 0]).cached == 4
