"""This library and its rivals on the same work in the same run.

    python -m bench.rivals.run                                     what can be had here
    python -m bench.rivals.run --write bench/results/rivals.json   and keep the raw rows

Rivals are fetched as wheels without their dependencies into build/rivals (--folder) and run without a GPU:

    sglang.py   SGLang's RadixCache and its compiled tree; needs torch for the CPU in this environment
    vllm.py     vLLM's v1 KV cache manager; needs torch as well
    dynamo.py   NVIDIA Dynamo's block hashing and RadixTree

One that cannot be fetched or imported is named in a line and left out. Figures of TensorRT-LLM and of an older vLLM
are quoted (quoted.json): they were measured earlier with the projects' own code, on another machine of the same kind.

Times are microseconds of CPU of the whole process per call, helper threads included: median and 99th percentile.
Unless said otherwise each side gets its tokens in the form it takes fastest, made before the clock starts.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from bench.record import keep
from bench.rivals import dynamo, sglang, vllm
from bench.rivals.ours import SETUPS, Ours
from bench.rivals.side import Server, Side, Tokens, unpack

from prefixcache.keys.layouts import make_chain

ROOT = Path(__file__).resolve().parents[2]
LONG = 32_768
PLENTY = 1 << 22  # tokens
MIXED_CAPACITY = 500_000
MIXED_REQUESTS = 5_000


@dataclass(frozen=True)
class Row:
    what: str
    side: str
    unit: str
    median: float
    p99: float | None
    samples: int


class SGLang:
    """One of SGLang's trees, see sglang.py.

    Args:
        kind: "python" or "rust".
        capacity: tokens.
    """

    def __init__(self, kind: str, block_size: int, capacity: int) -> None:
        self.name = f"sglang {kind} at {block_size}"
        self.block_size = block_size
        self._capacity = capacity
        self._tree = sglang.Tree(kind, block_size)

    def prompt(self, tokens: Tokens | list[int]) -> Any:
        tokens = tokens if isinstance(tokens, list) else tokens.tolist()
        return self._tree.key(tokens)

    def store(self, prompt: Any) -> None:
        self._tree.insert(prompt, self._tree.values(len(prompt)))

    def find(self, prompt: Any) -> int:
        return self._tree.match(prompt)

    def serve(self, prompt: Any) -> int:
        """SGLang's life of a request: match, lock, evict, insert, match, lock, unlock both."""
        tree = self._tree
        hit, lock = tree.hold(prompt)
        short = tree.size + len(prompt) - hit - self._capacity
        if short > 0:
            tree.evict(short)
        self.store(prompt)
        _, inner = tree.hold(prompt)
        tree.unlock(lock)
        tree.unlock(inner)
        return min(hit, (len(prompt) - 1) // self.block_size * self.block_size)


@dataclass(frozen=True)
class Rivals:
    """Which of them can be had here."""

    sglang: bool
    vllm: bool
    dynamo: bool

    def servers(self, capacity: int) -> list[Server]:
        made: list[Server] = [Ours(design, size, capacity) for design, size in SETUPS]
        if self.sglang:
            made += [SGLang(kind, size, capacity) for size in (1, 16) for kind in ("python", "rust")]
        if self.vllm:
            made += [vllm.VLLM(16, capacity, hash) for hash in ("sha256", "xxhash")]
        return made

    def sides(self) -> list[Side]:
        return [*self.servers(PLENTY), *([dynamo.Dynamo(16)] if self.dynamo else [])]


def timed(calls: Iterable[Callable[[], object]]) -> tuple[float, float, int]:
    """(median, 99th percentile, number) of the CPU microseconds that the calls take."""
    return summary(samples_of(calls))


def samples_of(calls: Iterable[Callable[[], object]]) -> list[float]:
    """The CPU microseconds that each call takes; garbage collection waits."""
    gc.collect()
    gc.disable()
    clock = time.process_time_ns
    samples = []
    for call in calls:
        started = clock()
        call()
        samples.append((clock() - started) / 1000)
    gc.enable()
    return samples


def summary(samples: list[float]) -> tuple[float, float, int]:
    ordered = sorted(samples)
    return ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.99)], len(ordered)


def find_rows(rivals: Rivals, repeat: int) -> Iterator[Row]:
    """A long prompt that is cached, and one of which nothing is."""
    tokens, other = np.arange(LONG, dtype=np.uint32), np.arange(100_000, 100_000 + LONG, dtype=np.uint32)
    for side in rivals.sides():
        side.store(side.prompt(tokens))
        cached, unknown, listed = side.prompt(tokens), side.prompt(other), tokens.tolist()
        least = LONG - side.block_size  # a request would compute at least one token
        assert side.find(cached) >= least and side.find(unknown) == 0
        yield Row(f"find {LONG:,} cached tokens", side.name, "us", *timed([partial(side.find, cached)] * repeat))
        whole = [partial(_find_listed, side, listed)] * repeat
        yield Row(f"find {LONG:,} cached tokens, given as a list", side.name, "us", *timed(whole))
        missed = [partial(side.find, unknown)] * repeat
        yield Row(f"find nothing of {LONG:,} tokens", side.name, "us", *timed(missed))


def _find_listed(side: Side, tokens: list[int]) -> int:
    return side.find(side.prompt(tokens))


def store_rows(rivals: Rivals, repeat: int) -> Iterator[Row]:
    """2,048 tokens of which the first half is cached; each time another prompt."""
    rng = np.random.default_rng(1)
    heads = rng.integers(0, 100_000, (repeat, 1024), dtype=np.uint32)
    tails = rng.integers(0, 100_000, (2, repeat, 1024), dtype=np.uint32)
    for side in rivals.sides():
        prompts = [[np.concatenate([head, tail]) for head, tail in zip(heads, tails[i], strict=True)] for i in (0, 1)]
        for tokens in prompts[0]:
            side.store(side.prompt(tokens))
        made = [side.prompt(tokens) for tokens in prompts[1]]
        if isinstance(side, dynamo.Dynamo):
            made = [side.event(prompt) for prompt in made]
        calls = [partial(side.store, prompt) for prompt in made]
        yield Row("store 2,048 tokens, 1,024 of them cached", side.name, "us", *timed(calls))


def mixed(requests: int) -> list[Tokens]:
    """200 system prompts of 2,048 tokens; each request one of them and 128 to 512 tokens of its own."""
    rng = np.random.default_rng(3)
    system = rng.integers(0, 100_000, (200, 2048), dtype=np.uint32)
    return [
        np.concatenate([system[rng.integers(200)], rng.integers(0, 100_000, rng.integers(128, 513), dtype=np.uint32)])
        for _ in range(requests)
    ]


def mixed_rows(rivals: Rivals, requests: int) -> Iterator[Row]:
    """Whole requests through 500,000 tokens of memory: their times, and what share of the tokens is reused."""
    prompts = mixed(requests)
    total = sum(map(len, prompts))
    what = f"{requests:,} mixed requests, {MIXED_CAPACITY // 1000}k tokens"
    for side in rivals.servers(MIXED_CAPACITY):
        reused: list[int] = []
        calls = [partial(_serve_counted, side, side.prompt(tokens), reused) for tokens in prompts]
        samples = samples_of(calls)
        yield Row(what, side.name, "requests/s", 1e6 * requests / sum(samples), None, requests)
        yield Row(f"{what}: one of them", side.name, "us", *summary(samples))
        yield Row(f"{what}: tokens reused", side.name, "%", 100 * sum(reused) / total, None, requests)


def _serve_counted(side: Server, prompt: Any, reused: list[int]) -> None:
    reused.append(side.serve(prompt))


def key_rows(rivals: Rivals, repeat: int) -> Iterator[Row]:
    """The keys of 2,048 blocks of 16 tokens; Dynamo's are not chained."""
    tokens = np.arange(LONG, dtype=np.uint32)
    data, listed = tokens.tobytes(), tokens.tolist()
    what = "keys of 2,048 blocks of 16 tokens"
    for hash in ("sha256", "xxh3-128", "sha256_cbor"):
        chain = make_chain(hash, 16)
        calls = [partial(chain.blocks, chain.root(b"scope"), data, 0, LONG // 16, None)] * repeat
        yield Row(what, f"hash_chain, {hash}", "us", *timed(calls))
    for hash in ("sha256", "xxhash") if rivals.vllm else ():
        manager = vllm.VLLM(16, PLENTY, hash)
        yield Row(what, f"vllm v1, {hash}", "us", *timed([partial(manager.hashes, listed)] * repeat))
    if rivals.dynamo:
        index = dynamo.Dynamo(16)
        yield Row(what, "dynamo, xxh3-64", "us", *timed([partial(index.hashes, listed)] * repeat))


def limit_rows(repeat: int) -> Iterator[Row]:
    """What the machine cannot avoid: once over the 131,072 bytes of 32,768 tokens."""
    data = np.arange(LONG, dtype=np.uint32).tobytes()
    copy = bytes(bytearray(data))
    passes: dict[str, Callable[[], object]] = {
        "memcmp": lambda: data == copy,
        "sha256": lambda: hashlib.sha256(data).digest(),
        "xxh3-128": lambda: xxhash.xxh3_128_digest(data),
    }
    for name, once in passes.items():
        yield Row(f"once over the bytes of {LONG:,} tokens", name, "us", *timed([once] * repeat))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "rivals")
    parser.add_argument("--repeat", type=int, default=300)
    parser.add_argument("--requests", type=int, default=MIXED_REQUESTS)
    parser.add_argument("--write", type=Path, help="a file for the raw rows, as JSON")
    arguments = parser.parse_args()
    folder = arguments.folder
    faults = {
        "sglang": _sglang(folder / "sglang"),
        "vllm": vllm.load(folder / "vllm"),
        "dynamo": dynamo.load(folder / "dynamo"),
    }
    for name, fault in faults.items():
        if fault:
            print(f"without {name}: {fault}")
    rivals = Rivals(**{name: not fault for name, fault in faults.items()})
    rows = []
    tables = (
        find_rows(rivals, arguments.repeat),
        store_rows(rivals, arguments.repeat),
        mixed_rows(rivals, arguments.requests),
        key_rows(rivals, arguments.repeat),
        limit_rows(arguments.repeat),
    )
    print(f"{'':52} {'':26} {'median':>12} {'p99':>10}")
    for table in tables:
        for row in table:
            rows.append(row)
            p99 = "" if row.p99 is None else f"{row.p99:,.1f}"
            print(f"{row.what:52} {row.side:26} {row.median:12,.1f} {p99:>10} {row.unit}", flush=True)
    quoted = json.loads((ROOT / "bench" / "rivals" / "quoted.json").read_text())
    for entry in quoted:
        print(f"{entry['what']:52} {entry['who']:38} {entry['figure']:,} {entry['unit']} (quoted)")
    if arguments.write:
        figures = {
            "not_run": {name: fault for name, fault in faults.items() if fault},
            "rows": [asdict(row) for row in rows],
            "quoted": quoted,
        }
        versions = {"sglang": sglang.VERSION, "vllm": vllm.VERSION, "dynamo": dynamo.VERSION}
        keep(arguments.write, figures, **{name: versions[name] for name in versions if not faults[name]})


def _sglang(folder: Path) -> str:
    return unpack("sglang", sglang.VERSION, folder) or sglang.load(folder / "unpacked")


if __name__ == "__main__":
    main()
