"""Time to first token of a real model: cold, warm, and the floor, in alternating runs.

    python bench/ttft.py                                      21 warm runs, 7 cold ones, SmolLM2 on two threads
    python bench/ttft.py --write bench/results/ttft.json      and keep every single run

Needs `prefixcache[engine]` and, for the real weights, `prefixcache[demo]` (`make engine` installs both). What must
hold, in milliseconds of the wall: a warm first token takes at most 1.15 times the floor, the median of the ratios of
neighbouring runs; a cold one at least 4.7 times a warm one at 2,048 tokens in common, 8.9 times at 3,072.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from dataclasses import asdict
from pathlib import Path

import torch

from prefixcache.engine import load
from prefixcache.engine.ttft import CASES, measure

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
    print(f"{'case':15}{'design':14}{'block':>6}{'computed':>10}{'cold ms':>9}{'warm ms':>9}{'floor ms':>10}", end="")
    print(f"{'cold/warm':>11}{'warm/floor':>12}  same tokens")
    for row in measure(model, setups, CASES, runs=given.runs):
        print(f"{row.case.name:15}{row.design:14}{row.block_size:6}{row.warm_tokens:10}", end="")
        print(
            "".join(
                f"{1000 * seconds:{width}.0f}" for seconds, width in ((row.cold, 9), (row.warm, 9), (row.floor, 10))
            ),
            end="",
        )
        print(f"{row.cold / row.warm:11.1f}{row.over_floor:12.3f}  {'yes' if row.identical else 'NO'}", flush=True)
        kept = row.over_floor <= MOST_OVER_FLOOR and row.cold / row.warm >= LEAST_GAIN.get(row.case.name, 0.0)
        rows.append(asdict(row) | {"over_floor": row.over_floor, "gain": row.cold / row.warm, "kept": kept})
    if given.write:
        machine = {"cpu": platform.processor(), "cores": os.cpu_count(), "load": os.getloadavg()}
        document = {"model": given.model, "threads": given.threads, "torch": torch.__version__, **machine, "rows": rows}
        given.write.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
