"""What a host tier costs per block: requests whose prefix lies below, on the device, or nowhere.

    python bench/tiers.py                                   1,000 requests, every design
    python bench/tiers.py --write bench/results/tiers.json

Prompts of 2,048 tokens in blocks of 16, again and again in the same order, opened, computed, closed; CPU microseconds
of the thread, no KV is moved. "below": the device holds 4 prompts, the host all others, so that each request loads its
128 blocks and spills 128 of another one. "on the device": there is room for all. "gone": the small device alone, so
that each request computes, publishes and evicts 128 blocks. The last row is what moves one block of 2 MiB down and up.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

from prefixcache import DESIGNS, Copy, KVStore, PrefixCache
from record import keep

SIZE, TOKENS, PROMPTS, ON_DEVICE = 16, 2048, 32, 4
BLOCKS = TOKENS // SIZE
SIDES: dict[str, dict[str, Any]] = {
    "on the device": {"capacity": (PROMPTS + 1) * (BLOCKS + 1)},
    "gone": {"capacity": ON_DEVICE * (BLOCKS + 1)},
    "below": {"capacity": ON_DEVICE * (BLOCKS + 1), "tiers": {"host": PROMPTS * BLOCKS}},
}


def serve(design: str, side: str, requests: int) -> list[float]:
    """CPU microseconds of each request, once every prompt has been there."""
    rng = random.Random(7)
    prompts = [[rng.randrange(50_000) for _ in range(TOKENS + 1)] for _ in range(PROMPTS)]
    cache = PrefixCache(design, block_size=SIZE, events=False, **SIDES[side])
    times = []
    for number in range(-PROMPTS, requests):
        tokens = prompts[number % PROMPTS]
        begin = time.thread_time_ns()
        request = cache.open(tokens)
        request.copied()
        request.computed(len(tokens))
        request.close()
        if number >= 0:
            times.append((time.thread_time_ns() - begin) / 1000)
            assert request.cached == (0 if side == "gone" else TOKENS), f"{design}, {side}: hit {request.cached}"
    loaded, spilled = cache.stats().loaded_blocks, cache.stats().spilled_blocks
    assert (loaded >= requests * BLOCKS and spilled >= loaded) == (side == "below")
    return times


def measure(design: str, requests: int) -> list[dict[str, Any]]:
    """Alternating rounds of the three sides."""
    rounds: dict[str, list[float]] = {side: [] for side in SIDES}
    for number in range(5):
        for side in SIDES if number % 2 else reversed(SIDES):
            rounds[side] += serve(design, side, requests // 5)
    base = statistics.median(rounds["on the device"])
    rows = []
    for side, times in rounds.items():
        times.sort()
        middle = statistics.median(times)
        rows.append(
            {
                "design": design,
                "prefix": side,
                "us_p50": round(middle, 2),
                "us_p99": round(times[int(len(times) * 0.99)], 2),
                "us_per_block": round((middle - base) / BLOCKS, 3) if side != "on the device" else None,
            }
        )
    return rows


def moving_a_block() -> dict[str, float]:
    """Microseconds that a block of 2 MiB takes down and up again."""
    store = KVStore(layers=16, blocks=64, block_size=SIZE, width=1024, dtype=np.float32, host_blocks=64)
    assert store.block_bytes == 2 * 2**20
    times = []
    for number in range(500):
        down = Copy(number % 64, number % 64, SIZE, target_tier="host")
        up = Copy(number % 64, (number + 32) % 64, SIZE, source_tier="host")
        begin = time.perf_counter_ns()
        store.copy((down, up))
        times.append((time.perf_counter_ns() - begin) / 1000)
    times.sort()
    return {"us_p50": round(statistics.median(times), 1), "us_p99": round(times[int(len(times) * 0.99)], 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--design", action="append", choices=tuple(DESIGNS))
    parser.add_argument("--write", type=Path)
    given = parser.parse_args()
    rows = []
    print(f"{'design':13} {'prefix':15} {'us p50':>9} {'us p99':>9} {'us a block':>10}")
    for design in given.design or [name for name in DESIGNS if name != "naive"]:
        for row in measure(design, given.requests):
            rows.append(row)
            print(f"{design:13} {row['prefix']:15} {row['us_p50']:9} {row['us_p99']:9} {row['us_per_block'] or '':>10}")
    block = moving_a_block()
    print(f"a block of 2 MiB, down and up: {block['us_p50']} us ({block['us_p99']})")
    if given.write:
        keep(given.write, {"rows": rows, "block": block})


if __name__ == "__main__":
    main()
