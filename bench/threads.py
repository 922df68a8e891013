"""What the lock of a cache costs, and whether copies of blocks run side by side.

    python bench/threads.py
    python bench/threads.py --write bench/results/threads.json

Three questions, each answered in alternating rounds of one process, so that other work disturbs all sides alike:

*   For how long does one `open` hold the lock, beside the time of copying one block of 2 MiB? Requests of 2,048 shared
    and 128 to 512 own tokens, blocks of 16, on one thread and on two.
*   How much faster do batches get their copies with two copy workers than with one, or with two threads that each admit
    batches and copy for them, beside the same copies in bare threads without any cache? Each request of a batch
    matches 15 of the 16 tokens of a stored block, which it copies.
    The goal is 0.9 of what bare threads gain; on the wall, so it wants two idle cores.
*   What do requests on one thread cost with the lock, and without? CPU time; the goal is at most 15 % more.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import prefixcache
from prefixcache import CopyWorkers, KVStore, PrefixCache, Request, Transfer
from prefixcache.blocks.transfers import carry_out
from record import keep

SIZE, CAPACITY = 16, 500_000 // 16
DESIGNS = ("radix", "hash_chain", "block_trie", "digest_chain")
LAYERS, WIDTH = 4, 4096  # float32: blocks of 2 MiB, in pieces of 256 KiB
BATCH = 16  # requests
LEAST_SHARE, MOST_RATIO = 0.9, 1.15


def workload(requests: int) -> list[list[int]]:
    rng = random.Random(7)
    systems = [[rng.randrange(50_000) for _ in range(2048)] for _ in range(200)]
    return [
        rng.choice(systems) + [rng.randrange(50_000) for _ in range(rng.randrange(128, 513))] for _ in range(requests)
    ]


def serve(cache: PrefixCache, prompts: Sequence[list[int]]) -> None:
    for tokens in prompts:
        request = cache.open(tokens)
        request.copied()
        request.computed(len(tokens))
        request.close()


def together(works: Sequence[Callable[[], None]]) -> float:
    """Seconds on the wall until all are done, each on a thread of its own."""
    threads = [threading.Thread(target=work) for work in works]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - began


# -- how long the lock is held --------------------------------------------------------------------


def holds(requests: int) -> list[dict[str, Any]]:
    prompts = workload(requests)
    rows = []
    for design in DESIGNS:
        for threads in (1, 2):
            cache = PrefixCache(design, block_size=SIZE, capacity=CAPACITY, events=False, lock_times=True)
            parts = [prompts[number::threads] for number in range(threads)]
            together([lambda cache=cache, part=part: serve(cache, part) for part in parts])
            held = cache.stats().lock_holds["open"]
            rows.append({"design": design, "threads": threads, "us_p50": held.p50, "us_p99": held.p99})
    return rows


def block_copy(store: KVStore, times: int) -> dict[str, Any]:
    """One block of 2 MiB, copied to another."""
    blocks, taken = store.memory.shape[2], []
    for number in range(times):
        copy = prefixcache.Copy(number % blocks, (number + blocks // 2) % blocks, SIZE)
        began = time.perf_counter()
        store.copy((copy,))
        taken.append((time.perf_counter() - began) * 1e6)
    return {
        "bytes": store.block_bytes,
        "us_p50": statistics.median(taken),
        "us_p99": sorted(taken)[int(len(taken) * 0.99)],
    }


# -- copies side by side --------------------------------------------------------------------------


class Batches:
    """A cache full of stored blocks, and batches whose requests each copy 15 tokens out of one."""

    def __init__(self, stored: int) -> None:
        self.cache = PrefixCache("block_trie", block_size=SIZE, capacity=stored + 2 * BATCH, partial="copy")
        self.store = KVStore(layers=LAYERS, blocks=self.cache.capacity, block_size=SIZE, width=WIDTH)
        self.store.memory[:] = 1  # no page is touched for the first time under the clock
        prompts = [[number] * SIZE for number in range(stored)]
        for prompt in prompts:
            request = self.cache.open(prompt)
            request.computed(SIZE)
            request.close()
        self.asks = [{"tokens": [*prompt[:-1], 1_000_000], "store": False} for prompt in prompts]

    def admit(self, number: int) -> list[Request]:
        at = number * BATCH % len(self.asks)
        admitted = [
            result for result in self.cache.open_batch(self.asks[at : at + BATCH]) if isinstance(result, Request)
        ]
        assert [copy.tokens for request in admitted for copy in request.copies] == [SIZE - 1] * BATCH
        return admitted

    def through_workers(self, batches: int, workers: int) -> float:
        """Seconds of batches from `open_batch` until their requests are gone; one is admitted while one is copied."""
        with CopyWorkers(self.store, workers=workers, most=2 * BATCH) as pool:
            began = time.perf_counter()
            before: list[Transfer[Request]] = []
            for number in range(batches):
                transfers = [pool.submit(request) for request in self.admit(number)]
                for transfer in reversed(before):  # the last one first: one wait instead of sixteen
                    transfer.result().abort()
                before = transfers
            for transfer in reversed(before):
                transfer.result().abort()
            return time.perf_counter() - began

    def by_themselves(self, batches: int, threads: int) -> float:
        """The same, by threads that each take the next batch, admit it and carry out its copies."""
        numbers = iter(range(batches))

        def work() -> None:
            for number in numbers:
                for request in self.admit(number):
                    carry_out(self.store, request)
                    request.abort()

        return together([work] * threads)

    def bare(self, batches: int, threads: int) -> float:
        """Seconds of the same copies by threads that do nothing else, and take them in the same portions."""
        portions = []
        for number in range(0, batches, threads):
            # As many as threads are admitted at the same time, with targets of their own, as where threads admit.
            group = [self.admit(number + n) for n in range(threads)]
            portions += [[copy for request in admitted for copy in request.copies] for admitted in group]
            for request in chain.from_iterable(group):
                request.abort()
        waiting = iter(portions)

        def work() -> None:
            for portion in waiting:
                self.store.copy(portion)

        return together([work] * threads)


def speed_ups(batches: Batches, count: int, rounds: int) -> dict[str, Any]:
    ways = {"bare": batches.bare, "workers": batches.through_workers, "themselves": batches.by_themselves}
    sides = {(name, threads): partial(way, count, threads) for threads in (1, 2) for name, way in ways.items()}
    seconds: dict[tuple[str, int], list[float]] = {side: [] for side in sides}
    for number in range(rounds + 1):
        for side in sides if number % 2 else reversed(sides):
            taken = sides[side]()
            if number:  # the first round warms up
                seconds[side].append(taken)
    gains = {name: [one / two for one, two in zip(seconds[name, 1], seconds[name, 2], strict=True)] for name in ways}
    result: dict[str, Any] = {
        name: {
            "ms_one": 1000 * statistics.median(seconds[name, 1]),
            "ms_two": 1000 * statistics.median(seconds[name, 2]),
            "speed_up": statistics.median(gains[name]),
        }
        for name in ways
    }
    for name in ways:
        result[name]["share"] = result[name]["speed_up"] / result["bare"]["speed_up"]
    result["copies"], result["rounds"] = count * BATCH, rounds
    return result


# -- with the lock and without --------------------------------------------------------------------


def without_lock(requests: int, rounds: int) -> list[dict[str, Any]]:
    prompts = workload(requests)
    rows = []
    for design in DESIGNS:
        times: dict[bool, list[float]] = {True: [], False: []}
        for number in range(rounds):
            for locked in (True, False) if number % 2 else (False, True):
                cache = PrefixCache(design, block_size=SIZE, capacity=CAPACITY, events=False)
                if not locked:
                    cache._core.lock = nullcontext()
                gc.collect()
                gc.disable()
                began = time.thread_time()
                serve(cache, prompts)
                times[locked].append((time.thread_time() - began) * 1e6 / requests)
                gc.enable()
        ratio = statistics.median(a / b for a, b in zip(times[True], times[False], strict=True))
        rows.append(
            {
                "design": design,
                "us_lock": statistics.median(times[True]),
                "us_none": statistics.median(times[False]),
                "ratio": ratio,
            }
        )
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--copy-rounds", type=int, default=31)
    parser.add_argument("--batches", type=int, default=32, help="of 16 requests, in one round")
    parser.add_argument("--write", type=Path)
    given = parser.parse_args()
    batches = Batches(stored=8 * BATCH)
    copy = block_copy(batches.store, 500)
    speed = speed_ups(batches, given.batches, given.copy_rounds)
    held = holds(given.requests)
    lock = without_lock(given.requests, given.rounds)

    print(f"one block of {copy['bytes'] / 2**20:.0f} MiB copied: {copy['us_p50']:.0f} us, p99 {copy['us_p99']:.0f}")
    for row in held:
        print(
            f"lock held by open, {row['design']}, {row['threads']} threads: {row['us_p50']:.1f}, {row['us_p99']:.1f} us"
        )
    for name in ("bare", "workers", "themselves"):
        ms = f"{speed[name]['ms_one']:.0f} ms, two {speed[name]['ms_two']:.0f} ms"
        print(f"{name}: {ms}, speed-up {speed[name]['speed_up']:.2f}, {speed[name]['share']:.2f} of bare")
    for row in lock:
        print(f"{row['design']}: {row['us_lock']:.1f} us, without lock {row['us_none']:.1f}, {row['ratio']:.3f}")
    if given.write:
        keep(given.write, {"copy": copy, "holds": held, "speed": speed, "lock": lock})
    good = all(speed[name]["share"] >= LEAST_SHARE for name in ("workers", "themselves")) and all(
        row["ratio"] <= MOST_RATIO for row in lock
    )
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
