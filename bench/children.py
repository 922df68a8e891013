"""The best partial match among many children: `ChildIndex` against the scan that it replaces.

    python bench/children.py [--write FILE]

Children of 32 tokens that all share 16 tokens with the query (the hardest tie: every one of them is best),
or none. CPU time per operation, the median of seven rounds. `--write bench/results/children.json` keeps the figures.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prefixcache.designs.children import ChildIndex
from prefixcache.keys.tokens import TOKEN_BYTES, common_tokens
from record import keep

COUNTS = (1, 2, 8, 31, 32, 1024, 16_384, 131_072)
BLOCK, SHARED, ROUNDS = 32, 16, 7


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", type=Path, help="a file for the figures, as JSON")
    arguments = parser.parse_args()
    rows = [measure(count, shared) for shared in (SHARED, 0) for count in COUNTS]
    print(f"{'children':>9} {'shared':>6} {'best':>8} {'scan':>10} {'add':>7} {'discard':>8} {'bytes per child':>16}")
    for row in rows:
        print(
            f"{row['children']:9,} {row['shared']:6} {row['best_us']:8.2f} {row['scan_us']:10.2f} "
            f"{row['add_us']:7.2f} {row['discard_us']:8.2f} {row['bytes_per_child']:16.0f}"
        )
    if arguments.write:
        keep(arguments.write, {"block_tokens": BLOCK, "rounds": ROUNDS, "rows": rows})
    flat = [row["best_us"] for row in rows if row["shared"] and row["children"] <= 16_384]
    return 0 if max(flat) <= 3 * min(flat) else 1


def measure(count: int, shared: int) -> dict[str, Any]:
    rng = random.Random(f"{count} {shared}")
    head = rng.randbytes(shared * TOKEN_BYTES)
    rest = (BLOCK - shared) * TOKEN_BYTES
    children = [head + rng.randbytes(rest) for _ in range(count)]
    query = head + rng.randbytes(rest)
    index: ChildIndex[int] = ChildIndex()
    add = once(lambda: [index.add(child, i) for i, child in enumerate(children)]) / count
    best = median(lambda: index.best(query), 2000)
    scan = median(lambda: scanned(children, query), max(1, 4000 // count))
    size = sys.getsizeof(index) + sum(map(sys.getsizeof, reachable(index))) - count * sys.getsizeof(query)
    discard = once(lambda: [index.discard(child) for child in children]) / count
    return {
        "children": count,
        "shared": shared,
        "best_us": round(best, 3),
        "scan_us": round(scan, 3),
        "add_us": round(add, 3),
        "discard_us": round(discard, 3),
        "bytes_per_child": round(size / count),
    }


def scanned(children: list[bytes], query: bytes) -> tuple[int, int]:
    """What a design without the index does."""
    best, longest = -1, 0
    for i, child in enumerate(children):
        common = common_tokens(child, 0, query, 0, BLOCK)
        if common > longest:
            best, longest = i, common
    return best, longest


def reachable(index: ChildIndex[int]) -> list[object]:
    """The objects that the index is made of, without the children themselves."""
    found: dict[int, object] = {}
    stack: list[object] = [getattr(index, name) for name in index.__slots__]
    while stack:
        item = stack.pop()
        if id(item) in found or item is None or isinstance(item, int | type):
            continue
        found[id(item)] = item
        if isinstance(item, dict):
            stack += [*item, *item.values()]
        elif isinstance(item, list | tuple):
            stack += item
        else:
            stack += [getattr(item, name) for name in getattr(item, "__slots__", ())]
    return list(found.values())


def once(call: Callable[[], object]) -> float:
    started = time.process_time_ns()
    call()
    return (time.process_time_ns() - started) / 1e3


def median(call: Callable[[], object], times: int) -> float:
    """CPU microseconds of one call."""

    def batch() -> None:
        for _ in range(times):
            call()

    return statistics.median(once(batch) / times for _ in range(ROUNDS))


if __name__ == "__main__":
    sys.exit(main())
