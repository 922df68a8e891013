"""Claims C11 to C16: chained hashes, bisection and collisions (section 3)."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

from prefixcache.article.claim import CONDITION, HOLDS, WRONG, Finding, Row, claim
from prefixcache.article.serving import LIMITLESS, THE_FOUR, serve
from prefixcache.cache import PRESETS, PrefixCache
from prefixcache.designs.hash_chain.search import SEARCHES
from prefixcache.errors import NoSpace
from prefixcache.events import Removed, Stored
from prefixcache.keys import ChainHash, Scope, as_tokens
from prefixcache.scenario.oracle import KVOracle, OracleError


def patterns_under_pressure(seed: int, steps: int) -> tuple[int, int, int]:
    """Random traffic through hash_chain; (prompts looked at, blocks evicted, prompts whose hits have a hole)."""
    rng = random.Random(seed)
    cache = PrefixCache("hash_chain", block_size=4, capacity=40)
    chain = ChainHash("sha256", 4)
    root = chain.root(Scope().encode(0))
    cached: set[bytes] = set()
    prompts = [[rng.randrange(3) for _ in range(60)] for _ in range(12)]
    seen = holes = 0
    for _ in range(steps):
        prompt = [*rng.choice(prompts)[: rng.randrange(5, 60)], rng.randrange(3)]
        try:
            serve(cache, prompt)
        except NoSpace:
            continue
        for event in cache.take_events()[2]:
            if isinstance(event, Stored):
                cached.update(event.keys)
            elif isinstance(event, Removed):
                cached.difference_update(event.keys)
        whole = as_tokens(rng.choice(prompts))
        pattern = [key in cached for key in chain.blocks(root, whole, 0, 15, None)]
        seen += 1
        holes += pattern != sorted(pattern, reverse=True)
    return seen, cache.stats().evicted_blocks, holes


@claim("C11", "3", "the chained hash makes hits monotone: True ... True, False ... False")
def monotone() -> Finding:
    seen, evicted, holes = patterns_under_pressure(11, 1500)
    return Finding(
        CONDITION,
        "a chained key says which prefix a block belongs to, not that the blocks before it are still there. The shape "
        "holds while no block is evicted before the blocks behind it: our structure sees to that, 0.8.5 does not (C12)",
        (("prompts looked up under eviction", seen), ("blocks evicted meanwhile", evicted), ("with a hole", holes)),
    )


def evicted_first_in_085() -> str:
    """Which of a shared parent and a child 0.8.5 evicts first, when the request used least recently ends last.

    A block is stamped with the last step of whoever lets go of it last; the smallest stamp leaves first.
    """
    last_step = {"first request": 1, "second request": 5}
    stamps = {"child": last_step["second request"], "parent": last_step["first request"]}  # the second ends first
    return min(stamps, key=lambda block: stamps[block])


@claim("C12", "3", "bisection finds the longest cached prefix in O(log N) lookups")
def bisection() -> Finding:
    rows: list[Row] = [("blocks N", "most lookups", "ceil(log2(N + 1))")]
    for blocks in (128, 512, 2048, 8192):
        keys = [i.to_bytes(4, "big") for i in range(blocks)]
        most = 0
        for cached in range(0, blocks + 1, blocks // 64):
            found, lookups = SEARCHES["binary"](keys, blocks, set(keys[:cached]).__contains__)
            if found != cached:
                return Finding(WRONG, f"{cached} of {blocks} blocks cached, bisection finds {found}")
            most = max(most, lookups)
        rows.append((blocks, most, math.ceil(math.log2(blocks + 1))))
    over_hole = {
        name: search([b"parent", b"child"], 2, {b"child"}.__contains__)[0] for name, search in SEARCHES.items()
    }
    return Finding(
        CONDITION,
        "under C11. Over a hole it is not slow but wrong: 0.8.5 stamps a shared parent with the step of whoever lets "
        "go of it last, and if that is an old step the parent leaves before its child. Bisection then answers 2 "
        "blocks where 0 are usable, and KV is read that nobody wrote",
        (
            ("0.8.5 evicts first", evicted_first_in_085()),
            ("then found by a linear search", over_hole["linear"]),
            ("then found by bisection", over_hole["binary"]),
        ),
        tuple(rows),
    )


def birthday(items: int, bits: int) -> float:
    """Odds that any two of `items` random digests of `bits` bits are equal: n(n-1)/2 pairs, each 2^-bits."""
    return items * (items - 1) / 2 / 2.0**bits


@claim("C13", "3", "collision odds at 10^6 blocks: 5.4e-8 for 64 bit, 4.3e-63 for SHA-256")
def odds() -> Finding:
    rows: list[Row] = [("blocks", "64 bit", "128 bit", "256 bit")]
    rows += [(f"10^{e}", *(f"{birthday(10**e, bits):.1e}" for bits in (64, 128, 256))) for e in (6, 9)]
    return Finding(
        WRONG,
        "the birthday bound n(n-1)/2 x 2^-bits gives 2.7e-8 and 4.3e-66: the article counts every pair twice for 64 "
        "bit and is off by 1,000 for SHA-256. Neither says anything about somebody who constructs a collision, which "
        "a hash that is not collision-resistant allows",
        table=tuple(rows),
    )


def weak_hash(message: bytes) -> int:
    """A hash of 101 values."""
    return sum(message) % 101


@claim("C14", "3", "a collision serves wrong content")
def wrong_content() -> Finding:
    rng = random.Random(14)
    prompts = [[rng.randrange(50) for _ in range(9)] for _ in range(300)]
    cache = PrefixCache("hash_chain", block_size=4, capacity=LIMITLESS, hash=weak_hash)
    oracle = KVOracle(4)
    trusting: dict[int, list[int]] = {}  # block 0 of a prompt, found by its digest alone
    wrong = {"digests alone": 0, "ours": 0}
    for prompt in prompts:
        wrong["digests alone"] += trusting.setdefault(weak_hash(as_tokens(prompt[:4])), prompt[:4]) != prompt[:4]
        request = cache.open(prompt)
        try:
            oracle.write(request, request.cached, request.length)
            oracle.verify(request, request.length)
        except OracleError:
            wrong["ours"] += 1
        request.computed(request.length)
        request.close()
    return Finding(
        CONDITION,
        "in designs that compare digests alone. Where a hash is not collision-resistant ours compares the tokens of "
        "every hit, so that a collision is a miss; SHA-256 is the default",
        (
            ("prompts, under a hash of 101 values", len(prompts)),
            ("served another's first block by digests alone", wrong["digests alone"]),
            ("served wrong content by hash_chain", wrong["ours"]),
        ),
    )


@claim("C15", "3", "deferred marking: blocks made in one step are not found in it")
def deferred() -> Finding:
    rows: list[Row] = [("found of 9 tokens at 4", "admitted", "computed", "in the next step")]
    for name in ("vllm-0.8.5", "vllm-1", "hash_chain"):
        make: Callable[..., PrefixCache] = PrefixCache.preset if name in PRESETS else PrefixCache
        cache = make(name, block_size=4, capacity=64)
        request = cache.open(range(9))
        found = [cache.probe(range(9)).cached]
        request.computed(9)
        found.append(cache.probe(range(9)).cached)
        cache.end_step()
        rows.append((name, *found, cache.probe(range(9)).cached))
        request.close()
    return Finding(
        HOLDS,
        "in 0.8.5, whose preset registers a block at once and matches it after the step. v1 registers blocks before "
        "they are computed; our designs and presets never show a block before that",
        table=tuple(rows),
    )


@claim("C16", "3", "the partial tail never takes part")
def partial_tail() -> Finding:
    figures = []
    for name in THE_FOUR:
        cache = PrefixCache(name, block_size=16, capacity=LIMITLESS)
        serve(cache, range(40))
        figures.append((f"{name} at 16, 40 tokens cached before", cache.probe([*range(40), 99]).cached))
    return Finding(
        HOLDS,
        "of vLLM with full attention, v1 of 0.33.0 included (beside a Mamba group it keeps one partial entry at a "
        "prompt's end): 8 of 40 tokens sit in no full block. The two TensorRT-LLM designs store the tail and copy it",
        tuple(figures),
    )
