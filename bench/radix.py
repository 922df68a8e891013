"""What the radix design costs, beside SGLang's trees where they can be had.

    python bench/radix.py                          ours alone
    python bench/rivals/sglang.py                  ours and SGLang's Python and Rust trees, in one run
    python bench/rivals/sglang.py -- --write bench/results/radix.json

Times are microseconds of one call, median and 99th percentile, one thread. Each side gets its tokens in the
form it takes fastest, made before the clock starts: a uint32 buffer here, an int64 array there. "ours" is the
design with its own defaults, "preset" the same with the decisions of the original; both are timed at the design
itself, under the lock and the checks of the public calls, as the rivals' trees are. Only the mixed workload goes
through the front door: one request is `open`, `computed`, `close`.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import subprocess
import sys
import time
import tracemalloc
from array import array
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from prefixcache import PrefixCache, Scope
from prefixcache.designs import Holding, Prompt
from record import keep

sys.path.insert(0, str(Path(__file__).parent))
from rivals import sglang

LONG = 32_768
UNBOUNDED = 2**31 - 1


@dataclass(frozen=True)
class Row:
    what: str
    side: str
    unit: str
    median: float
    p99: float | None
    samples: int


def timed(calls: Iterable[Callable[[], object]]) -> tuple[float, float, int]:
    """(median, 99th percentile, number) of the microseconds that the calls take; garbage collection waits."""
    gc.collect()
    gc.disable()
    times = []
    clock = time.perf_counter_ns
    for call in calls:
        start = clock()
        call()
        times.append(clock() - start)
    gc.enable()
    times.sort()
    return times[len(times) // 2] / 1000, times[int(len(times) * 0.99)] / 1000, len(times)


class Ours:
    """The radix design, driven without its front door."""

    def __init__(self, side: str, page: int) -> None:
        self.side, self.page = side, page
        self.cache = (
            PrefixCache.preset("sglang", block_size=page, capacity=UNBOUNDED, events=False)
            if side == "preset"
            else PrefixCache("radix", block_size=page, capacity=UNBOUNDED, events=False)
        )
        self.design: Any = self.cache._core.design
        self._scope = Scope(generation=0)
        self._root = self._scope.encode(0)

    def key(self, tokens: Iterable[int]) -> Prompt:
        return Prompt(array("I", tokens).tobytes(), self._root, self._scope)

    def match(self, key: Prompt) -> int:
        return int(self.design.match(key, len(key.tokens) // 4).tokens)

    def table(self, key: Prompt) -> int:
        return len(self.design.match(key, len(key.tokens) // 4).blocks[:])

    def values(self, count: int) -> Any:
        return self.design.pool.take(-(-count // self.page))

    def insert(self, key: Prompt, values: Any) -> None:
        holding = Holding(key, table=values, prompt_length=len(key.tokens) // 4)
        self.design.publish(holding, holding.prompt_length)
        self.design.release(holding)

    def evict(self, tokens: int) -> int:
        return int(self.design.evict(-(-tokens // self.page)))


def sides(rivals: bool, page: int) -> list[tuple[str, Any]]:
    made: list[tuple[str, Any]] = [("ours", Ours("ours", page)), ("preset", Ours("preset", page))]
    if rivals:
        made += [(f"sglang {kind}", sglang.Tree(kind, page)) for kind in ("python", "rust")]
    return made


def match_rows(rivals: bool, repeat: int) -> Iterable[Row]:
    """A cached prompt of 32,768 tokens, in one node or in 64."""
    tokens = list(range(LONG))
    for page in (1, 16):
        for nodes in (1, 64):
            for side, tree in sides(rivals, page):
                step = LONG // nodes
                for end in range(step, LONG + 1, step):
                    part = tokens[:end]
                    tree.insert(tree.key(part), tree.values(end))
                key = tree.key(tokens)
                assert tree.match(key) == LONG and tree.table(key) in (LONG, LONG // page)
                name = f"match {LONG} tokens, page {page}, {nodes} nodes"
                yield Row(name, side, "us", *timed([lambda t=tree, k=key: t.match(k)] * repeat))
                name += ", with the block table"
                yield Row(name, side, "us", *timed([lambda t=tree, k=key: t.table(k)] * repeat))


def insert_rows(rivals: bool, repeat: int) -> Iterable[Row]:
    """2,048 tokens that share 1,024 with what is there (a split), and 2,048 that are all there."""
    for page in (1, 16):
        for side, tree in sides(rivals, page):
            rng = random.Random(1)
            pairs = []
            for _ in range(repeat):
                shared = [rng.randrange(100_000) for _ in range(1024)]
                first, second = ([rng.randrange(100_000) for _ in range(1024)] for _ in range(2))
                tree.insert(tree.key(shared + first), tree.values(2048))
                pairs.append((tree.key(shared + second), tree.values(2048)))
            again = [
                (tree.key(np.frombuffer(k.tokens, "u4").tolist()) if isinstance(tree, Ours) else k) for k, _ in pairs
            ]
            calls = [lambda t=tree, k=key, v=values: t.insert(k, v) for key, values in pairs]
            yield Row(f"insert 2048 tokens with a split, page {page}", side, "us", *timed(calls))
            present = [(key, tree.values(2048)) for key in again]
            calls = [lambda t=tree, k=key, v=values: t.insert(k, v) for key, values in present]
            yield Row(f"insert 2048 tokens that are there, page {page}", side, "us", *timed(calls))


def evict_rows(rivals: bool, repeat: int) -> Iterable[Row]:
    """evict(1) among so many leaves of 16 tokens."""
    for leaves in (100, 1_000, 10_000, 50_000):
        for side, tree in sides(rivals, 1):
            rng = random.Random(2)
            for i in range(leaves):
                key = tree.key([i, *(rng.randrange(100_000) for _ in range(15))])
                tree.insert(key, tree.values(16))
            number = min(repeat, leaves // 2)
            if side == "sglang python":
                number = min(number, 60)  # it walks all leaves each time
            yield Row(f"evict(1) of {leaves} leaves", side, "us", *timed([lambda t=tree: t.evict(1)] * number))


def workload(requests: int) -> list[np.ndarray[Any, Any]]:
    """200 system prompts of 2,048 tokens, each request one of them and 128 to 512 tokens of its own."""
    rng = np.random.default_rng(3)
    system = rng.integers(0, 100_000, (200, 2048), dtype=np.uint32)
    return [
        np.concatenate([system[rng.integers(200)], rng.integers(0, 100_000, rng.integers(128, 513), dtype=np.uint32)])
        for _ in range(requests)
    ]


def mixed_rows(rivals: bool, requests: int, capacity: int = 500_000) -> Iterable[Row]:
    """Requests per second of CPU time through a cache of 500,000 tokens, and the part of the tokens that hit.

    SGLang's life of a request: match, lock, evict, insert, match, lock, unlock both.
    """
    prompts = workload(requests)
    total = sum(map(len, prompts))
    for page in (1, 16):
        name = f"mixed workload, page {page}"
        for side in ("ours", "preset"):
            keywords: dict[str, Any] = {"block_size": page, "capacity": capacity // page, "events": False}
            cache = PrefixCache("radix", **keywords) if side == "ours" else PrefixCache.preset("sglang", **keywords)
            start = time.process_time()
            for prompt in prompts:
                request = cache.open(prompt)
                request.computed(len(prompt))
                request.close()
            rate = requests / (time.process_time() - start)
            yield Row(name, side, "requests/s", rate, None, requests)
            yield Row(f"{name}, hit rate", side, "", cache.stats().hit_rate, None, requests)
        for kind in ("python", "rust") if rivals else ():
            tree = sglang.Tree(kind, page)
            keys = [tree.key(prompt.tolist()) for prompt in prompts]
            values = [tree.values(len(prompt)) for prompt in prompts]
            hits = 0
            start = time.process_time()
            for key, slots in zip(keys, values, strict=True):
                hit, lock = tree.hold(key)
                hits += min(hit, (len(slots) - 1) // page * page)
                short = tree.size + len(slots) - hit - capacity
                if short > 0:
                    tree.evict(short)
                tree.insert(key, slots)
                _, inner = tree.hold(key)
                tree.unlock(lock)
                tree.unlock(inner)
            rate = requests / (time.process_time() - start)
            yield Row(name, f"sglang {kind}", "requests/s", rate, None, requests)
            yield Row(f"{name}, hit rate", f"sglang {kind}", "", hits / total, None, requests)


def memory_rows(folder: Path | None, nodes: int) -> Iterable[Row]:
    """Bytes per node of 16 tokens at page 1, tokens and slots included, and full garbage collections over them.

    Each in a process of its own, so that no memory of another side is used again.
    """
    for side in ("ours", "preset", *(("sglang python", "sglang rust") if folder else ())):
        count = nodes if not side.startswith("sglang") else min(nodes, 100_000)
        command = [sys.executable, __file__, "--child", side, "--nodes", str(count)]
        command += ["--sglang", str(folder)] if folder and side.startswith("sglang") else []
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        for row in json.loads(done.stdout.splitlines()[-1]):
            yield Row(**row)


def grown(side: str, count: int) -> list[Row]:
    """The rows of one side: a tree of so many nodes is grown in this process."""
    traced = min(count, 50_000)
    tracemalloc.start()
    kept = [grow(side, traced)]
    rows = [Row("bytes per node, traced", side, "bytes", tracemalloc.get_traced_memory()[0] / traced, None, traced)]
    tracemalloc.stop()
    before = resident()
    kept.append(grow(side, count))
    gc.collect()
    rows.append(Row("bytes per node, resident", side, "bytes", (resident() - before) / count, None, count))
    name = f"full garbage collection over {count + traced} nodes"
    rows.append(Row(name, side, "us", *timed([gc.collect] * 5)))
    if side == "ours":
        gc.freeze()
        rows.append(Row(f"{name}, after gc.freeze()", side, "us", *timed([gc.collect] * 5)))
    return rows


def grow(side: str, count: int) -> Any:
    """A tree of so many leaves of 16 tokens."""
    tree = Ours(side, 1) if not side.startswith("sglang") else sglang.Tree(side.split()[1], 1)
    rng = np.random.default_rng(4)
    for _ in range(count):
        tree.insert(tree.key(rng.integers(0, 2**31, 16).tolist()), tree.values(16))
    return tree


def resident() -> int:
    """Bytes of memory that the process holds now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sglang", type=Path, help="folder of the unpacked package (see bench/rivals/sglang.py)")
    parser.add_argument("--repeat", type=int, default=300)
    parser.add_argument("--requests", type=int, default=5_000)
    parser.add_argument("--nodes", type=int, default=200_000, help="for the memory rows; rivals have 100,000 at most")
    parser.add_argument("--only", choices=("match", "insert", "evict", "mixed", "memory"), action="append")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--write", type=Path, help="a file for the raw rows, as JSON")
    arguments = parser.parse_args()
    rivals = False
    if arguments.sglang is not None:
        fault = sglang.load(arguments.sglang)
        rivals = not fault
        if fault:
            print(f"without SGLang: {fault}")
    if arguments.child:
        print(json.dumps([asdict(row) for row in grown(arguments.child, arguments.nodes)]))
        return
    tables: dict[str, Callable[[], Iterable[Row]]] = {
        "match": lambda: match_rows(rivals, arguments.repeat),
        "insert": lambda: insert_rows(rivals, arguments.repeat),
        "evict": lambda: evict_rows(rivals, arguments.repeat),
        "mixed": lambda: mixed_rows(rivals, arguments.requests),
        "memory": lambda: memory_rows(arguments.sglang if rivals else None, arguments.nodes),
    }
    rows = []
    for name in arguments.only or tables:
        for row in tables[name]():
            rows.append(row)
            p99 = "" if row.p99 is None else f"{row.p99:12.1f}"
            print(f"{row.what:62} {row.side:14} {row.median:14.4g} {row.unit:10} {p99}", flush=True)
    if arguments.write:
        versions = {"sglang": sglang.VERSION} if rivals else {}
        keep(arguments.write, {"rows": [asdict(row) for row in rows]}, **versions)


if __name__ == "__main__":
    main()
