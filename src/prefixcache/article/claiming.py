"""Claims C22 to C25 and C29: who gets which block, and what a lock is needed for (sections 4.3, 5 and 6)."""

from __future__ import annotations

import threading
from typing import Any

from prefixcache.article.claim import CONDITION, HOLDS, WRONG, Finding, Row, claim, microseconds
from prefixcache.article.serving import LIMITLESS, serve
from prefixcache.cache import PrefixCache, Request


def admitted(cache: PrefixCache, prompts: list[list[int]]) -> list[Request]:
    """A batch of prompts that all fit."""
    outcomes = cache.open_batch([{"tokens": prompt} for prompt in prompts])
    return [request for request in outcomes if isinstance(request, Request)]


@claim("C22", "4.3", "two phases: claims under the lock in microseconds, memory work outside")
def two_phases() -> Finding:
    cache = PrefixCache("block_trie", block_size=32, capacity=LIMITLESS, events=False)
    shared = list(range(2060))
    serve(cache, [*shared, 1])
    batch = [[*shared, 10 + i, 5, 6] for i in range(8)]

    def admit() -> int:
        requests = admitted(cache, batch)
        copies = sum(len(request.copies) for request in requests)
        for request in requests:
            request.abort()
        return copies

    return Finding(
        CONDITION,
        "the source holds the tree's lock through both phases and only enqueues copies meanwhile. Ours claims and "
        "allocates under the lock, and leaves the copies to the caller, outside it",
        (
            ("copies that a batch of 8 prompts leaves to the caller", admit()),
            ("admission and release of the 8, of 2,063 tokens each, us", microseconds(admit, 7)),
        ),
    )


@claim("C23", "4.3", "phase 1 counts a reference")
def reference_count() -> Finding:
    cache = PrefixCache("block_trie", block_size=4, capacity=4)
    serve(cache, range(8))
    batch = admitted(cache, [[*range(8), 9], [*range(50, 54)]])
    return Finding(
        WRONG,
        "the source's phase 1 takes the block out of the free queue; the reference is added in phase 2. What matters "
        "is the same in ours: nothing that one request of a batch brings in evicts what another has matched",
        (("cached by the first of a batch that fills the cache", batch[0].cached),),
        source_read=True,
    )


@claim("C24", "4.3", "the last competitor becomes the reuser, the others copy")
def last_wins() -> Finding:
    rows: list[Row] = [("batch", "request", "cached", "copies", "block table")]
    for told, prompts in (
        ("three partial matches of an unused leaf", [[0, 1, 2, 3, 4, tail] for tail in (10, 20, 30)]),
        ("the same, and a full match", [[0, 1, 2, 3, 4, 10], [*range(8), 40], [0, 1, 2, 3, 4, 30]]),
    ):
        cache = PrefixCache.preset("trtllm", block_size=4, capacity=16)
        serve(cache, range(9))  # blocks 0 and 1
        for number, request in enumerate(admitted(cache, prompts), 1):
            copies = [f"{copy.tokens} of block {copy.source} to {copy.target}" for copy in request.copies]
            rows.append((told, number, request.cached, ", ".join(copies) or "none", request.block_table.tolist()))
    return Finding(
        HOLDS,
        "among partial matches of an unused leaf: the last one has block 1 in its own table. A full match of it beats "
        "them all, and then all of them copy",
        table=tuple(rows),
    )


def enters_again(lock: Any) -> bool:
    """Whether a thread that holds the lock can take it once more."""
    with lock:
        entered = lock.acquire(blocking=False)
        if entered:
            lock.release()
        return bool(entered)


def clock_looks_in() -> int:
    """Admissions during which the cache's own clock has asked the cache for its books."""
    looks = 0
    cache: PrefixCache | None = None

    def clock() -> float:
        nonlocal looks
        if cache is not None:
            looks += cache.books().free >= 0
        return 0.0

    cache = PrefixCache("block_trie", block_size=4, capacity=8, clock=clock)
    serve(cache, range(5), ttl=1.0)
    return looks


@claim("C25", "6", "a recursive mutex is needed")
def recursive_mutex() -> Finding:
    return Finding(
        CONDITION,
        "only where code under the lock calls something that takes it again; a plain lock then waits for itself for "
        "ever. Our designs call nothing back, but a cache is given its clock by the caller, who may look at the cache "
        "in it: the lock is reentrant for that",
        (
            ("a holder enters a plain lock again", enters_again(threading.Lock())),
            ("a holder enters a reentrant lock again", enters_again(threading.RLock())),
            ("a clock asks the cache that asks it", "answered" if clock_looks_in() else "never asked"),
        ),
    )


@claim("C29", "5, 6", "v2 needs no two-phase claim because of the GIL")
def gil() -> Finding:
    cache = PrefixCache("hash_chain", block_size=4, capacity=2)
    prompt = [0, 1, 2, 3, 9]
    serve(cache, prompt)
    checked = cache.probe(prompt).cached
    other = threading.Thread(target=serve, args=(cache, range(50, 58)))  # runs between the check and the act
    other.start()
    other.join()
    return Finding(
        WRONG,
        "the GIL makes one bytecode atomic, not a check and the act that follows it: between the two another thread "
        "may run. In ours match, pin and allocate are one call under one lock. And v2 is C++ with a reader-writer lock "
        "by now",
        (("cached when a thread checks", checked), ("cached when it acts on that", cache.open(prompt).cached)),
    )
