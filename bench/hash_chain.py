"""What the hash_chain design costs: keys, searches, whole requests, bytes per block.

    python bench/hash_chain.py
    python bench/hash_chain.py --write bench/results/hash_chain.json

Times are microseconds of CPU of one call, median and 99th percentile, one thread; tokens come as a Python list
where a row says so. "cold" rows touch 64 MiB of other memory before each call. The mixed workload is 5,000
requests (`open`, `computed`, `close`) of 128 to 512 tokens of their own behind one of 200 system prompts of 2,048
tokens, through 500,000 tokens of memory; all counters are on, and events, where they are on, are taken every 64
requests. Bytes per block are resident memory of a process of its own, what the memo remembers included.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import os
import random
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from prefixcache import PrefixCache
from prefixcache.designs.hash_chain.search import SEARCHES
from prefixcache.keys import as_tokens
from prefixcache.keys.layouts import make_chain
from record import keep

LONG = 32_768
SIZE = 16
UNBOUNDED = 2**31 - 1
SIDES: dict[str, dict[str, Any]] = {
    "hash_chain": {},
    "hash_chain, events off": {"events": False},
    "hash_chain, xxh3-128": {"hash": "xxh3-128"},
    "vllm-1": {"preset": "vllm-1"},
    "vllm-0.8.5": {"preset": "vllm-0.8.5"},
}


@dataclass(frozen=True)
class Row:
    what: str
    side: str
    unit: str
    median: float
    p99: float | None
    samples: int


def make(side: str, capacity: int, **more: Any) -> PrefixCache:
    options = SIDES[side] | more
    preset = options.pop("preset", None)
    if preset is not None:
        return PrefixCache.preset(preset, block_size=SIZE, capacity=capacity, **options)
    return PrefixCache("hash_chain", block_size=SIZE, capacity=capacity, **options)


def timed(
    what: str, side: str, call: Callable[[], object], repeat: int, before: Callable[[], object] | None = None
) -> Row:
    """A row of one call repeated; garbage collection waits."""
    gc.collect()
    gc.disable()
    clock, times = time.thread_time_ns, []
    for _ in range(repeat):
        if before is not None:
            before()
        start = clock()
        call()
        times.append((clock() - start) / 1000)
    gc.enable()
    times.sort()
    return Row(what, side, "us", times[len(times) // 2], times[int(len(times) * 0.99)], len(times))


def key_rows(repeat: int) -> Iterator[Row]:
    rng = random.Random(1)
    tokens = [rng.randrange(100_000) for _ in range(LONG)]
    text = as_tokens(tokens)
    for name in ("sha256", "xxh3-128", "sha256_cbor"):
        chain = make_chain(name, SIZE)
        root = chain.root(b"")

        def from_list(chain: Any = chain, root: bytes = root) -> object:
            return chain.blocks(root, as_tokens(tokens), 0, LONG // SIZE, None)

        def from_buffer(chain: Any = chain, root: bytes = root) -> object:
            return chain.blocks(root, text, 0, LONG // SIZE, None)

        yield timed("keys of 32,768 tokens, from a list", name, from_list, repeat)
        yield timed("keys of 32,768 tokens, from a buffer", name, from_buffer, repeat)
    yield timed("tokens of 32,768, from a list to a buffer", "as_tokens", lambda: as_tokens(tokens), repeat)
    # What a chain of 64-byte blocks must do at least: two compressions per block, and one pass over the bytes.
    twice = text + text
    yield timed("limit", "sha256 of 256 KiB in one message", lambda: hashlib.sha256(twice).digest(), repeat)
    yield timed("limit", "xxh3-128 of 128 KiB in one message", lambda: xxhash.xxh3_128_digest(text), repeat)


def search_rows(repeat: int) -> Iterator[Row]:
    trash = np.zeros(8 << 20, np.int64)

    def cool() -> None:
        trash.__iadd__(1)

    for blocks in (128, 512, 2_048, 8_192):
        cached = dict.fromkeys(os.urandom(32) for _ in range(max(blocks, 31_250)))
        every = list(cached)[:blocks]
        strangers = [os.urandom(32) for _ in range(blocks)]
        for hits in (blocks, blocks // 2, 0):
            keys = every[:hits] + strangers[hits:]
            for name, search in SEARCHES.items():

                def call(search: Any = search, keys: list[bytes] = keys, cached: Any = cached) -> object:
                    return search(keys, len(keys), cached.__contains__)

                what = f"search {blocks:,} keys, {hits:,} cached"
                yield timed(what, name, call, repeat)
                yield timed(f"{what}, cold", name, call, max(repeat // 10, 20), cool)


def request_rows(repeat: int) -> Iterator[Row]:
    rng = random.Random(2)
    prompt = np.array([rng.randrange(100_000) for _ in range(LONG + 1)], np.uint32)
    for side in SIDES:
        cache = make(side, UNBOUNDED, events=False)
        request = cache.open(prompt)
        request.computed(len(prompt))
        cache.end_step()
        assert cache.probe(prompt).cached == LONG
        yield timed("probe 32,768 cached tokens", side, lambda cache=cache: cache.probe(prompt), repeat)
        fresh = [np.concatenate(([10**6 + i], prompt[:2_047])).astype(np.uint32) for i in range(repeat)]

        prompts = iter(fresh)

        def whole(cache: PrefixCache = cache, prompts: Iterator[Any] = prompts) -> None:
            tokens = next(prompts)
            request = cache.open(tokens)
            request.computed(len(tokens))
            request.close()

        yield timed("request of 2,048 new tokens", side, whole, repeat)


def workload(requests: int) -> list[list[int]]:
    rng = random.Random(7)
    systems = [[rng.randrange(50_000) for _ in range(2_048)] for _ in range(200)]
    return [
        rng.choice(systems) + [rng.randrange(50_000) for _ in range(rng.randrange(128, 513))] for _ in range(requests)
    ]


def mixed_rows(requests: int) -> Iterator[Row]:
    lists = workload(requests)
    forms = {"lists": lists, "arrays": [np.array(tokens, np.uint32) for tokens in lists]}
    gc.collect()
    gc.freeze()  # the prompts are the caller's: their garbage is not the cache's
    for form, side in ((form, side) for side in SIDES for form in forms):
        rates, rate, clock = [], 0.0, time.thread_time_ns
        for _ in range(5):
            cache = make(side, 500_000 // SIZE)
            began = clock()
            for _ in serve(cache, forms[form]):
                pass
            rates.append(requests * 1e9 / (clock() - began))
            rate = cache.stats().hit_rate
        what = f"mixed workload, from {form}"
        yield Row(what, side, "requests/s", statistics.median(rates), None, len(rates))
        # The clock costs more than a microsecond a request, so what one of them takes is another run.
        ends = [clock(), *(clock() for _ in serve(make(side, 500_000 // SIZE), forms[form]))]
        times = sorted((end - start) / 1000 for start, end in pairwise(ends))
        yield Row(f"{what}, one", side, "us", times[len(times) // 2], times[int(len(times) * 0.99)], len(times))
        yield Row(f"{what}, reused", side, "share", rate, None, 1)
    gc.unfreeze()


def serve(cache: PrefixCache, prompts: Iterable[Any]) -> Iterator[None]:
    """Request after request, each from its admission to its end."""
    listening, in_steps = cache.options.events, cache.options.visibility == "step"
    for number, tokens in enumerate(prompts):
        request = cache.open(tokens)
        request.computed(len(tokens))
        if in_steps:
            cache.end_step()
        request.close()
        if listening and number % 64 == 63:
            cache.take_events()
        yield


def memory_rows(blocks: int) -> Iterator[Row]:
    for side in ("hash_chain, events off", "hash_chain, xxh3-128", "vllm-1"):
        for per_prompt in (128, 4):
            child = [sys.executable, __file__, "--blocks", str(blocks), "--child", side, str(per_prompt)]
            done = subprocess.run(child, capture_output=True, text=True, check=True)
            what = f"memory at {blocks:,} blocks, prompts of {per_prompt}"
            yield Row(what, side, "bytes/block", float(done.stdout), None, 1)


def bytes_per_block(side: str, per_prompt: int, blocks: int) -> float:
    """Resident memory that a cache with this many blocks adds to this process, per block."""
    rng = np.random.default_rng(3)
    cache = make(side, UNBOUNDED, events=False)
    tokens = rng.integers(0, 2**31, per_prompt * SIZE, np.uint32)
    before = resident()
    for number in range(blocks // per_prompt):
        tokens[:2] = number >> 16, number & 0xFFFF
        request = cache.open(tokens)
        request.computed(len(tokens))
        request.close()
    books = cache.books()
    assert books.idle == blocks // per_prompt * per_prompt
    return (resident() - before) / books.idle


def resident() -> int:
    """Bytes of resident memory now."""
    gc.collect()
    status = Path("/proc/self/statm")
    if status.exists():
        return int(status.read_text().split()[1]) * resource.getpagesize()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=300)
    parser.add_argument("--requests", type=int, default=5_000)
    parser.add_argument("--blocks", type=int, default=1_000_000, help="for the memory rows")
    parser.add_argument("--only", choices=("keys", "search", "requests", "mixed", "memory"), action="append")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--write", type=Path, help="a file for the raw rows, as JSON")
    arguments = parser.parse_args()
    if arguments.child:
        print(bytes_per_block(arguments.child[0], int(arguments.child[1]), arguments.blocks))
        return
    tables: dict[str, Callable[[], Iterable[Row]]] = {
        "keys": lambda: key_rows(arguments.repeat),
        "search": lambda: search_rows(arguments.repeat),
        "requests": lambda: request_rows(arguments.repeat),
        "mixed": lambda: mixed_rows(arguments.requests),
        "memory": lambda: memory_rows(arguments.blocks),
    }
    rows = []
    for name in arguments.only or tables:
        for row in tables[name]():
            rows.append(row)
            p99 = "" if row.p99 is None else f"{row.p99:12.1f}"
            print(f"{row.what:48} {row.side:36} {row.median:12.5g} {row.unit:12} {p99}", flush=True)
    if arguments.write:
        keep(arguments.write, {"rows": [asdict(row) for row in rows]})


if __name__ == "__main__":
    main()
