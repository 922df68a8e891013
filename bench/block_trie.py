"""block_trie: what an exact walk, a hit inside a block, an insertion and a block cost, beside the ways not taken.

    python bench/block_trie.py [--trace FILE] [--write FILE]

CPU time, medians of several rounds. The ways of finding 1,024 cached blocks of 32 tokens are compared on the same
prompt (see docs/decisions). With a trace of the Mooncake kind its replay is timed, by default and with the preset
`trtllm`. `--write bench/results/block_trie.json` keeps the figures.
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
from prefixcache.designs import Prompt
from prefixcache.keys.scope import Scope
from prefixcache.keys.tokens import TOKEN_BYTES, as_tokens
from prefixcache.replay.setups import Setup
from prefixcache.replay.simulate import compare
from prefixcache.replay.traces import read_trace
from record import keep

ROOT = Path(__file__).resolve().parents[1]
TRACE = ROOT.parent / "shared" / "traces" / "mooncake_conversation.jsonl.zst"
LONG = 32_768
SIZE = 32
CHILDREN = (1, 31, 32, 1024, 16_384)
ROUNDS = 9


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--trace", type=Path, default=TRACE, help="the Mooncake conversation trace")
    parser.add_argument("--write", type=Path, help="a file for the figures, as JSON")
    parser.add_argument("--memory", choices=("chains", "branches"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.memory:
        print(json.dumps(memory(arguments.memory)))
        return 0
    result: dict[str, Any] = {
        "1,024 blocks of 32 found, us": exact(),
        "hit inside a block by children, us": {count: partial(count) for count in CHILDREN},
        "insert 32,768 tokens, us": {name: insertion(name) for name in ("block_trie", "trtllm")},
        "bytes per block at 10^6 blocks of 32": {kind: in_process(kind) for kind in ("chains", "branches")},
    }
    if arguments.trace.exists():
        result["replay of the trace, CPU seconds"] = {
            name: replay(arguments.trace, name) for name in ("block_trie", "trtllm")
        }
    print(json.dumps(result, indent=2))
    if arguments.write:
        keep(arguments.write, result)
    return 0


def cache_of(name: str = "block_trie") -> PrefixCache:
    given: dict[str, Any] = {"block_size": SIZE, "capacity": 2**31 - 1, "events": False}
    return PrefixCache.preset(name, **given) if name == "trtllm" else PrefixCache(name, **given)


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


# -- finding 1,024 cached blocks -----------------------------------------------------------------------------


class _Node:
    """One object per block, as the original has it."""

    __slots__ = ("block", "children")

    def __init__(self, block: int) -> None:
        self.block = block
        self.children: dict[Any, _Node] = {}


def exact() -> dict[str, float]:
    """Ways of finding a prompt that is cached whole; all return its 1,024 block ids."""
    prompt = tokens_of(np.random.default_rng(7), LONG)
    text, step = as_tokens(prompt), SIZE * TOKEN_BYTES
    stored = [text[at : at + step] for at in range(0, len(text), step)]
    root = node = _Node(-1)
    for i, tokens in enumerate(stored):
        child = node.children[tokens] = _Node(i)
        node = child
    whole = ("", 0, None, None, False)  # the rest of a full block key, where each block carries it
    keyed_root = node = _Node(-1)
    for i, tokens in enumerate(stored):
        child = node.children[whole, tokens] = _Node(i)
        node = child

    def a_lookup_per_block() -> list[int]:
        found, at_node = [], root
        for at in range(0, len(text), step):
            child = at_node.children.get(text[at : at + step])
            if child is None:
                break
            found.append(child.block)
            at_node = child
        return found

    def a_lookup_per_block_by_full_key() -> list[int]:
        found, at_node = [], keyed_root
        for at in range(0, len(text), step):
            child = at_node.children.get((whole, text[at : at + step]))
            if child is None:
                break
            found.append(child.block)
            at_node = child
        return found

    def joined() -> list[int]:
        found, parts, at_node = [], [], root
        while at_node.children:
            ((tokens, child),) = at_node.children.items()
            parts.append(tokens)
            found.append(child.block)
            at_node = child
        return found if b"".join(parts) == text else []

    assert a_lookup_per_block() == a_lookup_per_block_by_full_key() == joined() == list(range(len(stored)))
    cache, branching = cache_of(), cache_of()
    for each in (cache, branching):
        run(each, prompt)
    for at in range(1024, LONG, 1024):
        run(branching, np.concatenate((prompt[:at], tokens_of(np.random.default_rng(at), SIZE))))
    longer = np.append(prompt, np.uint32(1))
    asked = Prompt(as_tokens(longer), Scope().encode(0), Scope(generation=0))
    assert len(cache._core.design.match(asked, LONG).blocks) == len(stored)
    return {
        "a node and a lookup per block": median_us(a_lookup_per_block, 20),
        "the same with the full key of each block": median_us(a_lookup_per_block_by_full_key, 20),
        "a node per block, joined and compared": median_us(joined, 20),
        "this design, its match alone": median_us(lambda: cache._core.design.match(asked, LONG), 100),
        "this design, a probe of the same tokens": median_us(lambda: cache.probe(longer), 100),
        "this design, its match across 31 branches": median_us(lambda: branching._core.design.match(asked, LONG), 50),
    }


def partial(count: int) -> float:
    """A lookup that ends inside a block with this many candidates, all of which share half a block."""
    rng = np.random.default_rng(count)
    head = tokens_of(rng, SIZE // 2)
    cache = cache_of()
    for _ in range(count):
        run(cache, np.concatenate((head, tokens_of(rng, SIZE // 2))))
    query = np.concatenate((head, tokens_of(rng, SIZE // 2)))
    assert cache.probe(query).cached == SIZE // 2
    return median_us(lambda: cache.probe(query), 1000)


def insertion(name: str) -> float:
    """Opening, publishing and closing a new prompt of 32,768 tokens."""
    rng = np.random.default_rng(3)
    cache = cache_of(name)
    prompts = iter([tokens_of(rng, LONG) for _ in range(3 * ROUNDS)])
    return median_us(lambda: run(cache, next(prompts)), 3)


# -- traffic and memory ----------------------------------------------------------------------------------------


def replay(path: Path, name: str) -> dict[str, float]:
    """One pass over the trace with 4 Mi tokens of room, its expansion included."""
    trace = read_trace(path)
    started = time.process_time()
    (row,) = compare(trace, [Setup(name, SIZE, 4 * 2**20)]).rows
    return {
        "seconds": round(time.process_time() - started, 2),
        "us per request, p50": round(row.us_p50 or 0, 1),
        "hit rate": round(row.hit_tokens / row.prompt_tokens, 4),
    }


def in_process(kind: str) -> dict[str, float]:
    """Measured in a process of its own, so that nothing else is counted."""
    command = [sys.executable, __file__, "--memory", kind]
    found: dict[str, float] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    return found


def memory(kind: str) -> dict[str, float]:
    """Resident memory per block: long prompts (chains), or every block a child of one root (branches)."""
    blocks = 1_000_000
    length = 1000 * SIZE if kind == "chains" else SIZE
    cache = cache_of()
    rng = random.Random(1)
    run(cache, array("I", rng.randbytes(length * TOKEN_BYTES)))
    gc.collect()
    before = resident()
    for _ in range(blocks * SIZE // length):
        run(cache, array("I", rng.randbytes(length * TOKEN_BYTES)))
    gc.collect()
    return {"resident": round((resident() - before) / blocks), "of these tokens": SIZE * TOKEN_BYTES}


def resident() -> int:
    """Bytes of this process in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


if __name__ == "__main__":
    sys.exit(main())
