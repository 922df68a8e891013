"""Random histories of every design and preset with random groups, against what each layer would read."""

from __future__ import annotations

import random
from typing import Any

import pytest

from prefixcache import DESIGNS, PRESETS, Full, PrefixCache, Recurrent, Window
from tests.groups.moves import play
from tests.groups.world import World

SETS: list[tuple[int, list[Any]]] = [
    (2, [Full(), Window(4)]),
    (4, [Full(), Window(8), Window(5)]),
    (4, [Full(), Recurrent(8)]),
    (4, [Full(), Recurrent()]),
    (4, [Window(6)]),
    (2, [Window(5, sinks=3), Full()]),
    (4, [Full(), Window(9, block_size=2), Recurrent(4)]),
    (2, [Full(), Window(7, block_size=4)]),
    (1, [Full(), Window(3)]),
    (4, [Recurrent(4)]),
    (3, [Full(), Window(1)]),
    (4, [Full(), Window(6), Window(11, sinks=2), Recurrent(8)]),
    (4, [Full()]),
]


OPTIONS: list[tuple[str, Any]] = [
    ("partial", "take"),
    ("partial", "off"),
    ("store_last", False),
    ("evict_unit", "node"),
    ("child_limit", 2),
    ("lookahead", 1),
    ("backoff", 3),
    ("visibility", "step"),
    ("recency", "use"),
    *(("eviction", policy) for policy in ("lfu", "fifo", "mru", "priority", "slru")),
]


def make(name: str, rng: random.Random, beside: tuple[int, int] = (10, 40)) -> PrefixCache:
    """A cache with groups drawn at random: a set of the list, or any; `beside` full attention with so many blocks."""
    size, groups = rng.choice(SETS) if rng.random() < 0.6 else drawn(rng)
    options = {} if name in PRESETS else drawn_options(name, size, rng)
    capacity = [rng.randrange(*((10, 40) if isinstance(kind, Full) else beside)) for kind in groups]
    if "lookahead" in options and (name != "radix" or any(isinstance(kind, Recurrent) for kind in groups)):
        options["lookahead_by"] = rng.choice(("drop", "key")) if name == "hash_chain" else "drop"
    build = PrefixCache.preset if name in PRESETS else PrefixCache
    return build(name, block_size=size, capacity=capacity, groups=groups, **options)


def drawn_options(name: str, size: int, rng: random.Random) -> dict[str, Any]:
    """Some options that the design can honour."""
    options: dict[str, Any] = {}
    for option, value in OPTIONS:
        if rng.random() < 0.15 and value in DESIGNS[name].can.get(option, (value,)):
            options[option] = value
    if name == "naive" or (name == "hash_chain" and "partial" in options):
        options = {option: value for option, value in options.items() if option == "events"}
    if name == "block_trie" and rng.random() < 0.3:
        options |= {"duplicates": "keep", "evict_from": "anywhere", "eviction": "priority"}
    if name == "hash_chain" and rng.random() < 0.3:
        options |= {"visibility": "step", "duplicates": rng.choice(("give_back", "keep"))}
    if name == "radix" and size > 1 and rng.random() < 0.4:
        options["partial"] = "copy"
    return options


def drawn(rng: random.Random) -> tuple[int, list[Any]]:
    size = rng.choice((1, 2, 4, 6))
    groups: list[Any] = [Full()] if rng.random() < 0.8 else []
    for _ in range(rng.randrange(0 if groups else 1, 3)):
        if rng.random() < 0.7:
            own = rng.choice((None, None, size * 2, size // 2 or None))
            groups.append(Window(rng.randrange(1, 20), sinks=rng.choice((0, 0, 1, 5)), block_size=own))
        else:
            groups.append(Recurrent(rng.choice((None, size, 2 * size))))
    rng.shuffle(groups)
    return size, groups


@pytest.mark.parametrize("name", [*DESIGNS, *PRESETS])
@pytest.mark.parametrize("history", range(25))
def test_every_layer_reads_what_its_prefix_computed(name: str, history: int, seed: int) -> None:
    rng = random.Random(f"{name} {seed} {history}")
    world = World(make(name, rng), rng)
    play(world, 120)


def test_the_histories_meet_what_they_are_about(seed: int) -> None:
    """Hits, and hits cut for want of an anchor or a checkpoint: else the histories would prove little."""
    hits = cuts = 0
    for history in range(20):
        rng = random.Random(f"{seed} {history}")
        world = World(make("radix", rng), rng)
        play(world, 120)
        hits, cuts = hits + world.hits, cuts + world.cuts
    assert hits > 50
    assert cuts > 20


@pytest.mark.parametrize("name", ["block_trie", "hash_chain", "trtllm", "vllm-0.8.5"])
def test_the_histories_meet_what_cannot_be_found(name: str, seed: int) -> None:
    """Behind a hole, or before the step ends: and there not all that a group has is told."""
    unfound = 0
    for history in range(40):  # few of block_trie's make holes
        rng = random.Random(f"{seed} {history}")
        world = World(make(name, rng), rng)
        play(world, 120)
        unfound += world.unfound
        if unfound > 50:
            return
    assert unfound > 10
