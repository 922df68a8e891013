"""What attention groups cost per request: none, one `Full()`, and real ones, on the same traffic in alternating rounds.

    python bench/groups.py                                   2,000 requests, every design
    python bench/groups.py --against ../older/src            and the same without groups on another checkout, in turns
    python bench/groups.py --write bench/results/groups.json

Requests of 2,048 shared and 128 to 512 own tokens, blocks of 16, opened, computed at their checkpoints, closed; CPU
microseconds of the thread. One `Full()` must cost what no groups cost, within 5 %.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from prefixcache import DESIGNS, PrefixCache
from record import keep

SIZE, CAPACITY, ROUNDS, MOST = 16, 500_000 // 16, 9, 1.05
SETS = {
    "no groups": None,
    "full": ["full"],
    "full, window of 512": ["full", {"window": 512}],
    "full, window of 512, state every 1,024": ["full", {"window": 512}, {"recurrent": 1024}],
}


def workload(requests: int) -> list[list[int]]:
    rng = random.Random(7)
    systems = [[rng.randrange(50_000) for _ in range(2048)] for _ in range(200)]
    return [
        rng.choice(systems) + [rng.randrange(50_000) for _ in range(rng.randrange(128, 513))] for _ in range(requests)
    ]


def serve(design: str, groups: list[Any] | None, prompts: list[list[int]]) -> list[float]:
    """CPU microseconds of each request, events off."""
    extra = {} if groups is None else {"groups": groups}
    cache = PrefixCache(design, block_size=SIZE, capacity=CAPACITY, events=False, **extra)
    stateful = groups is not None and {"recurrent": 1024} in groups
    times = []
    for tokens in prompts:
        begin = time.thread_time_ns()
        request = cache.open(tokens)
        request.copied()
        if stateful:
            for end in request.checkpoints:
                request.computed(end)
                request.copied()
        request.computed(len(tokens))
        request.close()
        times.append((time.thread_time_ns() - begin) / 1000)
    return times


def elsewhere(source: Path, design: str, requests: int) -> list[float]:
    """The same without groups, by the package in another folder."""
    command = [sys.executable, __file__, "--requests", str(requests), "--child", design]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": str(source)}
    )
    times: list[float] = json.loads(done.stdout)
    return times


def measure(design: str, requests: int, against: Path | None) -> list[dict[str, Any]]:
    prompts = workload(requests)
    sides = [*SETS, *(["no groups, elsewhere"] if against else [])]
    rounds: dict[str, list[list[float]]] = {side: [] for side in sides}
    for number in range(ROUNDS):
        for side in sides if number % 2 else reversed(sides):
            if side in SETS:
                rounds[side].append(serve(design, SETS[side], prompts))
            else:
                assert against is not None
                rounds[side].append(elsewhere(against, design, requests))
    base = [statistics.median(times) for times in rounds["no groups"]]
    rows = []
    for side in sides:
        medians = [statistics.median(times) for times in rounds[side]]
        together = sorted(us for times in rounds[side] for us in times)
        ratio = statistics.median(own / other for own, other in zip(medians, base, strict=True))
        rows.append(
            {
                "design": design,
                "groups": side,
                "us_p50": round(statistics.median(together), 2),
                "us_p99": round(together[int(len(together) * 0.99)], 2),
                "ratio": round(ratio, 3),
            }
        )
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--design", action="append", choices=tuple(DESIGNS))
    parser.add_argument("--against", type=Path, help="the folder src of another checkout")
    parser.add_argument("--write", type=Path)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        print(json.dumps(serve(given.child, None, workload(given.requests))))
        return 0
    designs = given.design or ["radix", "hash_chain", "block_trie", "digest_chain"]
    rows = []
    print(f"{'design':13} {'groups':40} {'us p50':>8} {'us p99':>8} {'to none':>8}")
    for design in designs:
        for row in measure(design, given.requests, given.against):
            rows.append(row)
            print(f"{design:13} {row['groups']:40} {row['us_p50']:8} {row['us_p99']:8} {row['ratio']:8}")
    if given.write:
        keep(given.write, {"rows": rows})
    return 0 if all(row["ratio"] <= MOST for row in rows if row["groups"] == "full") else 1


if __name__ == "__main__":
    raise SystemExit(main())
