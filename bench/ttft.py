"""Time to first token of a real model: cold, warm, and the floor, in alternating runs.

    python bench/ttft.py                                      21 warm runs, 7 cold ones, SmolLM2 on two threads
    python bench/ttft.py --write bench/results/ttft.json      and keep every single run

Needs `prefixcache[engine]` and, for the real weights, `prefixcache[demo]` (`make engine` installs both). What must
hold, in milliseconds of the wall: a warm first token takes at most 1.15 times the floor, the median of the ratios of
neighbouring runs; a cold one at least 4.7 times a warm one at 2,048 tokens in common, 8.9 times at 3,072.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

import torch

from prefixcache.engine import load
from prefixcache.engine.ttft import CASES, measure
from record import keep

SETUPS = [("radix", 1), ("hash_chain", 16), ("block_trie", 32), ("digest_chain", 32)]
MOST_OVER_FLOOR = 1.15
LEAST_GAIN = {"system prompt": 4.7, "RAG": 8.9}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--model", default="smollm2")
    options.add_argument("--runs", type=int, default=21)
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--design", action="append", help="only these")
    options.add_argument("--write", type=Path)
    given = options.parse_args()
    torch.set_num_threads(given.threads)
    model, _ = load(given.model)
    setups = [setup for setup in SETUPS if not given.design or setup[0] in given.design]
    rows = []
    print(
        "case           design        block  computed   cold ms   warm ms  floor ms  cold/warm  warm/floor  same tokens"
    )
    for row in measure(model, setups, CASES, runs=given.runs):
        cold, warm, floor = (1000 * seconds for seconds in (row.cold, row.warm, row.floor))
        counted = f"{row.case.name:15}{row.design:14}{row.block_size:5}{row.warm_tokens:10}"
        timed = f"{cold:10.0f}{warm:10.0f}{floor:10.0f}{cold / warm:11.1f}{row.over_floor:12.3f}"
        print(f"{counted}{timed}  {'yes' if row.identical else 'NO'}", flush=True)
        kept = row.over_floor <= MOST_OVER_FLOOR and row.cold / row.warm >= LEAST_GAIN.get(row.case.name, 0.0)
        rows.append(asdict(row) | {"over_floor": row.over_floor, "gain": row.cold / row.warm, "kept": kept})
    if given.write:
        figures = {"model": given.model, "threads": given.threads, "rows": rows}
        keep(given.write, figures)


if __name__ == "__main__":
    main()
