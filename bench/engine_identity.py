"""Greedy answers of every supported family, in the middle of everything, beside those of transformers alone.

    python bench/engine_identity.py
    python bench/engine_identity.py --steps 600 --write bench/results/engine_identity.json

Random traffic over a pool so small that sequences are preempted, prefixes evicted, and prompts cancelled all the time.
Counted are answers that leave those of transformers; that happens only where its two best logits differ by less
than 1e-4, or this program stops. Needs `prefixcache[engine]`.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
from tests.engine.identity import under_pressure
from tests.engine.small import CONFIGURATIONS

from record import keep


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--steps", type=int, default=300)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--design", default="radix")
    options.add_argument("--write", type=Path)
    given = options.parse_args()
    torch.set_num_threads(1)
    rows = []
    for family in CONFIGURATIONS:
        found = under_pressure(family, given.design, given.seed, given.steps)
        rows.append(asdict(found))
        print(
            f"{family:12} {found.answers:4} answers, {found.tokens:5} tokens, {found.near_ties} near ties, "
            f"logits within {found.largest_difference:.1e}; {found.cancelled} cancelled, "
            f"{found.preempted} preemptions, {found.evicted_blocks:,} blocks evicted",
            flush=True,
        )
    if given.write:
        figures = {"seed": given.seed, "design": given.design, "rows": rows}
        keep(given.write, figures)


if __name__ == "__main__":
    main()
