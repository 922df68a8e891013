"""Claims C30 to C33: where it pays, and which design for whom (section 7)."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import numpy as np

from prefixcache.article.claim import CONDITION, Finding, Measured, Row, claim, microseconds
from prefixcache.article.serving import LIMITLESS, THE_FOUR, serve
from prefixcache.article.structures import saved_tokens
from prefixcache.cache import PrefixCache
from prefixcache.designs.hash_chain.search import SEARCHES
from prefixcache.keys import Media, Scope


@claim("C30", "7", "RAG with a 3,072-token prefix: time to first token falls from 620 ms to 70 ms")
def rag() -> Finding:
    return saved_tokens(3072, 620 / 70)


_COMPARED = (("radix", 1), ("hash_chain", 16), ("hash_chain", 128))


def sweep() -> tuple[Row, ...]:
    """Reused tokens by length of the system prompt, its share of a prompt and the prompts that share it."""
    head = ("system prompt", "share of prompt", "prompts each", *(f"{name} at {size}" for name, size in _COMPARED))
    rows: list[Row] = [(*head, "radix over 128", "tokens a prompt")]
    for length in (200, 1000, 4000):
        for share in (0.5, 0.9):
            for fan_out in (4, 32):
                reused = [_reused(name, size, length, share, fan_out) for name, size in _COMPARED]
                rates = [found / total for found, total in reused]
                more = (reused[0][0] - reused[-1][0]) / (8 * fan_out)
                shown = (f"{rate:.1%}" for rate in rates)
                rows.append((length, f"{share:.0%}", fan_out, *shown, f"{rates[0] - rates[-1]:.1%}", f"{more:.0f}"))
    return tuple(rows)


def _reused(design: str, block_size: int, length: int, share: float, fan_out: int) -> tuple[int, int]:
    """(reused, all) prompt tokens of eight system prompts of about this length, each with as many prompts."""
    rng = np.random.default_rng(31)
    cache = PrefixCache(design, block_size=block_size, capacity=LIMITLESS, events=False)
    for system in range(8):
        beginning = rng.integers(0, 50_000, length + 16 * system)  # ends anywhere in a block of 128
        own = round(len(beginning) / share - len(beginning))
        for _ in range(fan_out):
            serve(cache, np.concatenate([beginning, rng.integers(0, 50_000, own)]))
    stats = cache.stats()
    return stats.hits, stats.queries


@claim("C31", "7", "the more prompt-heavy the traffic, the larger the radix tree's advantage")
def prompt_heavy() -> Finding:
    return Finding(
        CONDITION,
        "a prompt loses less than a block at its boundary, whatever it is made of. As a share of all tokens that grows "
        "with the system prompt's share and with how many prompts share it, as the article says; it shrinks the longer "
        "the system prompt is, and at blocks of 16 about an eighth of it is left",
        table=sweep(),
    )


_BIG = 1 << 26  # bytes: more than a processor's caches hold


def search_times(repeat: int = 7) -> tuple[Row, ...]:
    """CPU microseconds of the three searches, data in the processor's caches and not, by hit and blocks."""
    rng = random.Random(32)
    swept = np.zeros(_BIG, np.uint8)
    others = dict.fromkeys((rng.randbytes(32) for _ in range(100_000)), 0)
    rows: list[Row] = [("blocks N", "hit", "method", "lookups", "warm, us", "cold, us")]
    for blocks in (128, 512, 2048, 8192):
        keys = [rng.randbytes(32) for _ in range(blocks)]
        for hit in (blocks // 16, blocks):
            is_cached = (others | dict.fromkeys(keys[:hit], 0)).__contains__
            for name, search in SEARCHES.items():
                found, lookups = search(keys, blocks, is_cached)
                assert found == hit

                def work(search=search, keys=keys, is_cached=is_cached) -> object:  # type: ignore[no-untyped-def]
                    return search(keys, len(keys), is_cached)

                rows.append((blocks, hit, name, lookups, microseconds(work, repeat), _cold(work, swept, repeat)))
    return tuple(rows)


def _cold(work: Callable[[], object], swept: np.ndarray[tuple[int], np.dtype[np.uint8]], repeat: int) -> Measured:
    """Median CPU time of a call whose data was pushed out of the processor's caches before."""
    samples = []
    for _ in range(repeat):
        swept += 1
        started = time.thread_time_ns()
        work()
        samples.append(time.thread_time_ns() - started)
    return Measured(sorted(samples)[repeat // 2] / 1000)


@claim("C32", "7", "bisection against a linear scan at N about 512: cache misses dominate")
def search_methods() -> Finding:
    return Finding(
        CONDITION,
        "cold caches do dominate: a call costs many times as much, the interpreter's own code included. But that is no "
        "reason to scan: bisection makes ten lookups where a scan of 512 makes hundreds, and stays well ahead on a "
        "long hit, warm and cold. Only on a hit of a few blocks is there little between them",
        table=search_times(),
    )


@claim(
    "C33",
    "7",
    "which design for whom: radix for long system prompts, a hash map for simplicity, TensorRT-LLM's trie for tenants",
)
def which_design() -> Finding:
    beginning = list(range(2100))
    picture, other_picture = [Media(b"cat", 0, 4)], [Media(b"dog", 0, 4)]
    rows: list[Row] = [
        ("design", "block", "reused of 2,100 shared", "copies", "tenants apart", "adapters apart", "pictures apart")
    ]
    for name in THE_FOUR:
        block_size = {"radix": 1, "hash_chain": 128}.get(name, 32)
        cache = PrefixCache(name, block_size=block_size, capacity=LIMITLESS, events=False)
        serve(cache, [*beginning, 9_999])
        request = cache.open([*beginning, 8_888])
        serve(cache, range(300), media=picture)
        apart = (
            cache.probe(beginning, Scope(salt="tenant")).cached == 0,
            cache.probe(beginning, Scope(adapter="a")).cached == 0,
            cache.probe(range(300), media=picture).cached > cache.probe(range(300), media=other_picture).cached == 0,
        )
        rows.append((name, block_size, request.cached, len(request.copies), *apart))
    return Finding(
        CONDITION,
        "the grain decides as the article says, and costs nothing in radix but a copy of a block in the two others. "
        "Isolation is no reason: all four keep tenants, adapters and pictures apart. `prefixcache compare` answers "
        "for your own traffic",
        table=tuple(rows),
    )
