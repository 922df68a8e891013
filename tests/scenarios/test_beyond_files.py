"""Cases of the collections that a scenario file cannot say: injected hashes, other processes, memory, cost, aliases."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from array import array
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prefixcache import DESIGNS, PrefixCache, Scope, Stored
from prefixcache.scenario import report
from prefixcache.scenario.load import load
from prefixcache.scenario.play import play

HERE = Path(__file__).parent

every_design = pytest.mark.parametrize("design", sorted(DESIGNS))


def _run(cache: PrefixCache, tokens: Any, scope: Scope | None = None) -> int:
    request = cache.open(tokens, scope)
    request.copied()
    request.computed(request.length)
    request.close()
    return request.cached


# B01 (a)


@pytest.mark.parametrize(
    "hash", [lambda message: 7, lambda message: sum(message) % 3], ids=["constant", "three values"]
)
def test_a_weak_hash_never_hands_out_another_prompt(hash: Callable[[bytes], int]) -> None:
    scenario = load(HERE / "bug_reports" / "b01_weak_hash.yaml")
    (played,) = play(replace(scenario, cache={**scenario.cache, "hash": hash}))
    assert not played.differs, "\n".join(report.lines(played))


# B24


@pytest.mark.parametrize("design", sorted(set(DESIGNS) - {"hash_chain"}))  # which remembers chains, within a bound
def test_nothing_stays_of_a_name_space_whose_blocks_are_gone(design: str) -> None:
    cache = PrefixCache(design, block_size=4, capacity=1000)
    for warm_up in range(2):  # the first round makes what a cache makes once
        for number in range(100):
            _run(cache, [1, 2, 3, 4, 5], Scope(salt=f"{warm_up}-{number}"))
        cache.evict(1000)
        cache.take_events()
        for _ in range(3):  # one pass may stop tracking only the inner tuple of a pair, the next one the outer
            gc.collect()
        count = len(gc.get_objects())
        if not warm_up:
            before = count
    assert count - before < 50, "objects were left behind for 100 dead name spaces"
    alive = weakref.ref(cache)
    del cache
    gc.collect()
    assert alive() is None


# B48

_PRINT_KEYS = """
import sys
from prefixcache import PrefixCache, Scope
for scope in (Scope(), Scope(adapter="x"), Scope(salt="s")):
    cache = PrefixCache(sys.argv[1], block_size=4, capacity=8)
    request = cache.open(range(1, 9), scope)
    request.computed(8)
    for event in cache.take_events()[2]:
        print(*(key.hex() for key in event.keys))
"""


@every_design
def test_the_same_prompt_has_the_same_keys_in_every_process(design: str) -> None:
    outputs = set()
    for hash_seed in ("0", "1", "random"):
        run = subprocess.run(
            [sys.executable, "-c", _PRINT_KEYS, design],
            env={"PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        outputs.add(run.stdout)
    (printed,) = outputs
    keys = printed.split()
    assert len(keys) == len(set(keys)) == 6


@every_design
@pytest.mark.parametrize(
    "container",
    [list, tuple, lambda tokens: array("I", tokens)]
    + [lambda tokens, dtype=dtype: np.array(tokens, dtype=dtype) for dtype in ("int32", "int64", "uint32", "uint8")],
    ids=["list", "tuple", "array", "int32", "int64", "uint32", "uint8"],
)
def test_the_container_of_the_tokens_does_not_matter(design: str, container: Callable[[Any], Any]) -> None:
    def keys(tokens: Any) -> list[bytes]:
        cache = PrefixCache(design, block_size=4, capacity=8)
        _run(cache, tokens)
        events = cache.take_events()[2]
        return [key for event in events if isinstance(event, Stored) for key in event.keys]

    assert keys(container(range(1, 9))) == keys(range(1, 9))


# B65


@pytest.mark.parametrize("design", sorted(set(DESIGNS) - {"naive"}))
def test_chains_deeper_than_the_recursion_limit(design: str) -> None:
    depth = 3000
    assert depth > 2 * sys.getrecursionlimit()
    cache = PrefixCache(design, block_size=1, capacity=2 * depth)
    tokens = np.ones(depth + 2, dtype=np.uint32)
    for length in range(1, depth + 1, 2):  # one new node each
        _run(cache, tokens[: length + 1])
    tokens[-1] = 2
    assert cache.probe(tokens[1:]).cached == depth
    _run(cache, [*[1] * (depth // 2), 3])  # a split in the middle
    cache.check()
    repr(cache)
    assert cache.evict(2 * depth) == depth + 1
    assert cache.books().free == 2 * depth
    del cache
    gc.collect()


# B66


def _calls(work: Callable[[], object]) -> int:
    """How many functions of the library, and built-in ones, the work calls."""
    count = 0

    def counted(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(counted)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("design", sorted(set(DESIGNS) - {"naive"}))
def test_an_eviction_costs_the_same_among_ten_times_as_many_leaves(design: str) -> None:
    counts = []
    for leaves in (1_000, 10_000):
        cache = PrefixCache(design, block_size=1, capacity=leaves)
        for token in range(leaves):
            _run(cache, [token])
        assert cache.books().idle == leaves
        counts.append(_calls(lambda: [cache.evict(1) for _ in range(100)]))  # noqa: B023
    assert counts[1] <= 3 * counts[0]


# B71


@every_design
def test_the_cache_keeps_no_alias_of_what_it_was_given(design: str) -> None:
    cache = PrefixCache(design, block_size=4, capacity=8)
    for tokens in ([1, 2, 3, 4, 5], array("I", [1, 2, 3, 4, 5]), np.array([1, 2, 3, 4, 5], dtype=np.uint32)):
        request = cache.open(tokens)
        tokens[0] = 99
        request.computed(5)
        tokens[1] = 99
        request.close()
        assert cache.probe([1, 2, 3, 4, 5]).cached == 4
        assert cache.probe([99, 2, 3, 4, 5]).cached == 0
        cache.reset()


@every_design
def test_a_lookup_leaves_the_callers_buffer_alone(design: str) -> None:
    cache = PrefixCache(design, block_size=4, capacity=8)
    tokens = np.arange(1, 17, dtype=np.uint32)
    cache.probe(tokens)
    _run(cache, tokens)
    cache.probe(tokens)
    assert tokens.tolist() == list(range(1, 17))


@every_design
def test_a_changed_block_table_changes_nothing_in_the_cache(design: str) -> None:
    cache = PrefixCache(design, block_size=4, capacity=8)
    request = cache.open([1, 2, 3, 4, 5])
    table = request.block_table
    with pytest.raises(ValueError, match="read-only"):
        table[0] = 7
    changed = table.tolist()
    changed[0] = 7
    assert request.block_table.tolist() == table.tolist()
    request.computed(5)
    request.close()
    assert cache.probe([1, 2, 3, 4, 5]).cached == 4
    cache.check()
