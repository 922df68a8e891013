"""Ten minutes of random traffic with cancellations: no block is lost and memory stays flat.

    python bench/engine_soak.py
    python bench/engine_soak.py --minutes 1 --seed 3 --write bench/results/engine_soak.json

A small model, so that bookkeeping and not matrix products fill the time; a pool so small that sequences are
preempted and prefixes evicted all the time. Needs `prefixcache[engine]`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
from tests.engine.small import VOCABULARY, engine
from tests.engine.traffic import Traffic

from record import keep

SAMPLES = 60
MOST_GROWTH = 0.02  # of the resident memory, from the middle of the run to its end


def resident() -> int:
    """Bytes of memory that this process holds."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--minutes", type=float, default=10.0)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--design", default="radix")
    options.add_argument("--family", default="llama")
    options.add_argument("--write", type=Path)
    given = options.parse_args()
    torch.set_num_threads(1)
    served = engine(given.family, design=given.design, tokens=240, step_tokens=24)
    traffic = Traffic(served, given.seed, VOCABULARY, checks=False)
    start = time.monotonic()
    memory, steps = [], 0
    while (elapsed := time.monotonic() - start) < 60 * given.minutes:
        for _ in range(20):
            traffic.step()
        steps += 20
        served.cache.check()
        if elapsed * SAMPLES / (60 * given.minutes) >= len(memory):
            memory.append(resident())
    traffic.drain()
    books, stats = served.cache.books(), served.cache.stats()
    middle, end = memory[len(memory) // 2 : -len(memory) // 4], memory[-len(memory) // 4 :]
    growth = statistics.median(end) / statistics.median(middle) - 1
    print(f"{steps:,} steps, {traffic.finished:,} prompts finished, {traffic.cancelled:,} cancelled")
    print(f"{stats.preempted_requests:,} preemptions, {stats.evicted_blocks:,} blocks evicted", end=", ")
    print(f"{stats.copied_blocks:,} copied")
    print(f"free {books.free} of {served.cache.capacity}: {'kept' if books.free == served.cache.capacity else 'LOST'}")
    print(f"memory {memory[len(memory) // 2] / 2**20:.0f} MiB half way, {memory[-1] / 2**20:.0f} at the end,", end=" ")
    print(f"growth {growth:+.2%}: {'flat' if growth <= MOST_GROWTH else 'NOT FLAT'}")
    if given.write:
        figures = {
            "minutes": given.minutes,
            "seed": given.seed,
            "design": given.design,
            "family": given.family,
            "steps": steps,
            "finished": traffic.finished,
            "cancelled": traffic.cancelled,
            "preempted": stats.preempted_requests,
            "evicted_blocks": stats.evicted_blocks,
            "free": books.free,
            "capacity": served.cache.capacity,
            "growth": growth,
            "resident_bytes": memory,
        }
        keep(given.write, figures)


if __name__ == "__main__":
    main()
