"""digest_chain: what an exact walk, a partial match, an insertion and a block cost, beside the ways not taken.

    python bench/digest_chain.py [--write FILE]

CPU time, medians of several rounds; block sizes 32 and 16. The ways of finding 32,768 cached tokens are compared
on the same prompts (see docs/decisions). `--write bench/results/digest_chain.json` keeps the figures.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import subprocess
import sys
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from prefixcache import PrefixCache
from prefixcache.keys.chain import ChainHash
from prefixcache.keys.memo import ChainMemo
from prefixcache.keys.tokens import TOKEN_BYTES, as_tokens
from record import keep

LONG = 32_768
CHILDREN = (1, 8, 31, 32, 1024, 16_384)
ROUNDS = 9


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", type=Path, help="a file for the figures, as JSON")
    parser.add_argument("--memory", choices=("chains", "branches"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.memory:
        print(json.dumps(memory(arguments.memory)))
        return 0
    result: dict[str, Any] = {}
    for size in (32, 16):
        result[f"block {size}"] = {
            "exact": exact(size),
            "partial us by children": {count: partial(size, count) for count in CHILDREN},
            "insert 32,768 tokens us": insertion(size),
            "mixed": mixed(size),
        }
    result["unaligned 2,060 tokens"] = {prompts: unaligned(prompts) for prompts in (200, 20)}
    result["bytes per block at 10^6 blocks of 32"] = {kind: in_process(kind) for kind in ("chains", "branches")}
    print(json.dumps(result, indent=2))
    if arguments.write:
        keep(arguments.write, result)
    return 0


def cache_of(size: int, **options: Any) -> PrefixCache:
    return PrefixCache("digest_chain", block_size=size, capacity=2**31 - 1, events=False, **options)


def run(cache: PrefixCache, tokens: Any) -> None:
    request = cache.open(tokens)
    request.copied()
    request.computed(len(tokens))
    request.close()


def tokens_of(rng: np.random.Generator, length: int) -> Any:
    return rng.integers(0, 128_000, length, dtype=np.uint32)


def median_us(call: Callable[[], object], times: int) -> float:
    """CPU microseconds of one call."""
    rounds = []
    for _ in range(ROUNDS):
        started = time.process_time_ns()
        for _ in range(times):
            call()
        rounds.append((time.process_time_ns() - started) / 1e3 / times)
    return round(statistics.median(rounds), 2)


# -- finding 32,768 cached tokens ----------------------------------------------------------------------------


def exact(size: int) -> dict[str, float]:
    """Ways of finding a prompt that is cached whole, in microseconds of CPU."""
    prompt = tokens_of(np.random.default_rng(7), LONG)
    text, blocks = as_tokens(prompt), LONG // size
    chain = ChainHash("sha256", size)
    root = chain.root(b"scope")
    keys = chain.blocks(root, text, 0, blocks, None)
    block_of = {key: i for i, key in enumerate(keys)}
    parent = array("i", range(-1, blocks - 1))
    memo = ChainMemo(chain)
    memo.keys(b"scope", text, blocks, None)
    stored = [text[at : at + size * TOKEN_BYTES] for at in range(0, len(text), size * TOKEN_BYTES)]

    def a_hash_and_a_lookup_per_block() -> list[int]:
        found, digest = [], root
        for at in range(0, len(text), size * TOKEN_BYTES):
            digest = chain.block(digest, text[at : at + size * TOKEN_BYTES], None)
            block = block_of.get(digest)
            if block is None:
                break
            found.append(block)
        return found

    def bisected(chained: list[bytes]) -> list[int]:
        low, high = 0, len(chained)
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if chained[middle] in block_of else (low, middle)
        path, block = [], block_of[chained[low - 1]]
        while block >= 0:
            path.append(block)
            block = parent[block]
        return path[::-1]

    def joined() -> bool:
        return b"".join(stored) == text

    cache = cache_of(size)
    run(cache, prompt)
    branching = cache_of(size)
    run(branching, prompt)
    for at in range(1024, LONG, 1024):  # 31 branches on the way
        run(branching, np.concatenate((prompt[:at], tokens_of(np.random.default_rng(at), size))))
    miss = tokens_of(np.random.default_rng(9), LONG)
    longer = np.append(prompt, np.uint32(1))
    return {
        "a hash and a lookup per block (the original's way)": median_us(a_hash_and_a_lookup_per_block, 5),
        "the chain hashed whole, then bisected": median_us(
            lambda: bisected(chain.blocks(root, text, 0, blocks, None)), 5
        ),
        "the chain remembered by an earlier request, then bisected": median_us(
            lambda: bisected(memo.keys(b"scope", text, blocks, None)), 50
        ),
        "stored blocks joined and compared": median_us(joined, 100),
        "this design, probe of the same tokens": median_us(lambda: cache.probe(longer), 100),
        "this design, probe across 31 branches": median_us(lambda: branching.probe(longer), 50),
        "this design, probe that misses at the first block": median_us(lambda: branching.probe(miss), 100),
        "of a probe: taking the caller's tokens": median_us(lambda: as_tokens(longer), 200),
    }


def partial(size: int, count: int) -> float:
    """A probe that ends inside a block with this many candidates, all of which share half a block."""
    rng = np.random.default_rng(count)
    head = tokens_of(rng, size // 2)
    cache = cache_of(size)
    for _ in range(count):
        run(cache, np.concatenate((head, tokens_of(rng, size // 2))))
    query = np.concatenate((head, tokens_of(rng, size // 2)))
    assert cache.probe(query).cached == size // 2
    return median_us(lambda: cache.probe(query), 2000)


def insertion(size: int) -> float:
    """Opening, publishing and closing a new prompt of 32,768 tokens."""
    rng = np.random.default_rng(3)
    cache = cache_of(size)
    return median_us(lambda: run(cache, tokens_of(rng, LONG)), 3)


# -- traffic -------------------------------------------------------------------------------------------------


def mixed(size: int) -> dict[str, float]:
    """200 shared prompts of 2,048 tokens, 5,000 requests that go on for 128 to 512 tokens."""
    rng = np.random.default_rng(11)
    prompts = [tokens_of(rng, 2048) for _ in range(200)]
    choices = rng.integers(0, 200, 5000)
    requests = [np.concatenate((prompts[i], tokens_of(rng, rng.integers(128, 513)))) for i in choices]
    cache = cache_of(size)
    taken = array("q")
    for tokens in requests:
        started = time.process_time_ns()
        run(cache, tokens)
        taken.append(time.process_time_ns() - started)
    stats = cache.stats()
    return {
        "requests per CPU second": round(len(requests) / (sum(taken) / 1e9)),
        "median us per request": round(statistics.median(taken) / 1e3, 1),
        "tokens hit": round(stats.hits / stats.queries, 4),
        "blocks": stats.published_blocks,
    }


def unaligned(prompts: int) -> dict[str, int]:
    """Prompts that end 12 tokens into a block, 5,000 requests: how many get these 12 tokens."""
    found = {}
    for name, options in (("here", {}), ("child_limit=32", {"child_limit": 32})):
        rng = np.random.default_rng(5)
        shared = [tokens_of(rng, 2060) for _ in range(prompts)]
        cache = cache_of(32, **options)
        hits = 0
        seen: set[int] = set()
        for i in rng.integers(0, prompts, 5000).tolist():
            request = cache.open(np.concatenate((shared[i], tokens_of(rng, 100))))
            request.copied()
            hits += request.cached >= 2060
            seen.add(i)
            request.computed(request.length)
            request.close()
        found[f"repeats with all 12 tokens, {name}"] = hits
        found["repeats"] = 5000 - len(seen)
    return found


# -- memory ----------------------------------------------------------------------------------------------------


def in_process(kind: str) -> dict[str, float]:
    """Measured in a process of its own, so that nothing else is counted."""
    command = [sys.executable, __file__, "--memory", kind]
    found: dict[str, float] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    return found


def memory(kind: str) -> dict[str, float]:
    """Resident memory per block: long prompts (chains), or every block a child of one root (branches)."""
    size, blocks = 32, 1_000_000
    length = 1000 * size if kind == "chains" else size
    cache = cache_of(size)
    rng = random.Random(1)
    run(cache, array("I", rng.randbytes(length * TOKEN_BYTES)))
    gc.collect()
    before = resident()
    for _ in range(blocks * size // length):
        run(cache, array("I", rng.randbytes(length * TOKEN_BYTES)))
    gc.collect()
    return {
        "resident": round((resident() - before) / blocks),
        "of these tokens": size * TOKEN_BYTES,
        "garbage collector objects": round(len(gc.get_objects()) / blocks, 3),
    }


def resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


if __name__ == "__main__":
    sys.exit(main())
