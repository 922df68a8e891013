"""The main job at full size: `prefixcache compare` on an hour of a chat service, 144.8 million tokens.

    python bench/compare_mooncake.py [--trace FILE] [--write FILE]

Runs the command as a user would, in a process of its own, first for two designs and then for all four, and
holds CPU time and peak memory against the goals below; the exit status is 1 when one is missed. Beside it
stands what the machine cannot avoid: going once over the same bytes with memcmp (what a tree must do to
compare), SHA-256 and xxh3-128 (what a chain must do to hash). `--write FILE` keeps everything.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from prefixcache.replay.traces import Trace, read_trace
from record import keep

ROOT = Path(__file__).resolve().parents[1]
TRACE = ROOT.parent / "shared" / "traces" / "mooncake_conversation.jsonl.zst"

CAPACITY = "4M"
TWO = ("radix@1", "hash_chain@16")
FOUR = (*TWO, "block_trie@32", "digest_chain@32")


@dataclass(frozen=True)
class Goal:
    """What one run may cost."""

    designs: tuple[str, ...]
    cpu_seconds: float
    memory_bytes: int


GOALS = (Goal(TWO, 45.0, 2**30), Goal(FOUR, 60.0, 2 * 2**30))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--trace", type=Path, default=TRACE, help="the Mooncake conversation trace")
    parser.add_argument("--write", type=Path, help="a file for the figures, as JSON")
    arguments = parser.parse_args()
    if not arguments.trace.exists():
        parser.error(f"{arguments.trace.name} is not there; say where with --trace")

    runs = [run_command(arguments.trace, goal) for goal in GOALS]
    result = {
        "runs": runs,
        "physical_limits": physical_limits(read_trace(arguments.trace)),
    }
    show(result)
    if arguments.write:
        keep(arguments.write, result)
    return 0 if all(run["goal_met"] for run in runs) else 1


def run_command(trace: Path, goal: Goal) -> dict[str, Any]:
    """The command's rows, CPU time of all its threads, and peak memory."""
    designs = [argument for design in goal.designs for argument in ("--design", design)]
    options = [*designs, "--capacity", CAPACITY, "--json", "-"]
    started = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "prefixcache", "compare", str(trace), *options], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    printed = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)  # what this process used, not all that were waited for
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"the command failed with status {process.returncode}")
    cpu = used.ru_utime + used.ru_stime
    memory = used.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return {
        "command": " ".join(["prefixcache compare", trace.name, *options]),
        "cpu_seconds": round(cpu, 2),
        "wall_seconds": round(time.perf_counter() - started, 2),
        "peak_memory_bytes": memory,
        "goal": {"cpu_seconds": goal.cpu_seconds, "memory_bytes": goal.memory_bytes},
        "goal_met": cpu < goal.cpu_seconds and memory < goal.memory_bytes,
        "rows": json.loads(printed)["rows"],
    }


def physical_limits(trace: Trace) -> dict[str, Any]:
    """CPU seconds of one pass over all prompts, each expanded outside the clock."""
    passes: dict[str, Callable[[bytes, bytes], object]] = {
        "memcmp": lambda data, copy: data == copy,
        "sha256": lambda data, copy: hashlib.sha256(data).digest(),
        "xxh3_128": lambda data, copy: xxhash.xxh3_128_digest(data),
    }
    seconds = dict.fromkeys(passes, 0.0)
    total = 0
    for request in trace.requests:
        tokens = np.ascontiguousarray(trace.tokens(request))
        data, copy = tokens.tobytes(), tokens.tobytes()
        total += len(data)
        for name, once in passes.items():
            started = time.process_time_ns()
            once(data, copy)
            seconds[name] += (time.process_time_ns() - started) / 1e9
    return {"bytes": total, "cpu_seconds": {name: round(taken, 3) for name, taken in seconds.items()}}


def show(result: dict[str, Any]) -> None:
    for run in result["runs"]:
        memory, limit = run["peak_memory_bytes"] / 2**20, run["goal"]["memory_bytes"] / 2**20
        print(run["command"])
        print(f"CPU    {run['cpu_seconds']:8.1f} s    goal {run['goal']['cpu_seconds']:.0f} s")
        print(f"memory {memory:8.0f} MiB  goal {limit:.0f} MiB")
        for row in run["rows"]:
            share = row["hit_tokens"] / row["prompt_tokens"]
            print(
                f"  {row['design']:12} {row['block_size']:4}   reused {share:.4%}   "
                f"us per request p50 {row['us_p50']:,.0f}  p99 {row['us_p99']:,.0f}"
            )
    limits = result["physical_limits"]
    print(f"once over the same {limits['bytes'] / 1e6:,.0f} MB:")
    for name, seconds in limits["cpu_seconds"].items():
        print(f"  {name:9} {seconds:6.3f} s of CPU")


if __name__ == "__main__":
    sys.exit(main())
