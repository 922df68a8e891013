"""The stories of the tier below the device: what is loaded, what is spilled, and who may have the slot."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from prefixcache import NoSpace
from tests.interleavings.story import Case, Work, World


def _spills(world: World, blocks: int = 1, times: int = 1) -> Work:
    """Somebody makes spills ahead of need."""

    def work() -> None:
        for _ in range(times):
            world.cache.evict(blocks)
            world.spill()

    return work


def _batch_of_hits_below(world: World) -> dict[str, Work]:
    """Room for the first request is made of what would like to go where the second one's hit lies."""

    def work() -> None:
        requests = world.open_batch([1, 2, 9], [11, 12, 19])
        for request in requests:
            world.rule(request is not None and request.cached == 2, "it lay below when the batch came")
        for request in requests:
            world.serve(request)

    def look() -> None:
        world.cache.probe([1, 2, 9])
        world.cache.plan([{"tokens": [1, 2, 9]}, {"tokens": [11, 12, 19]}])

    return {"batch": work, "looks": look}


def _load_and_pressure(world: World) -> dict[str, Work]:
    return {"A": world.life(1, 2, 3, 4, 5), "B": world.life(31, 32, 33, 34, 35), "spills": _spills(world)}


def _load_onto_what_is_spilled(world: World) -> dict[str, Work]:
    """The blocks that are loaded onto hold what has to be copied away first."""
    return {"A": world.life(1, 2, 3, 4, 5), "B": world.life(21, 22, 24)}


def _asked_for_while_spilled(world: World) -> dict[str, Work]:
    return {"spills": _spills(world, blocks=2), "A": world.life(1, 2, 3, 4, 5)}


def _spilled_by_its_successor(world: World) -> dict[str, Work]:
    """Who is given the block copies it away first; meanwhile others ask for it."""
    return {
        "A": world.life(31, 32, 33, 34, 35),
        "B": world.life(1, 2, 3, 4, 5),
        "C": world.life(1, 2, 3, 4, 6),
    }


def _same_load_twice(world: World) -> dict[str, Work]:
    return {"A": world.life(1, 2, 5), "B": world.life(1, 2, 6), "spills": _spills(world)}


def _given_up_load(world: World, in_flight: bool = False) -> dict[str, Work]:
    """A load is given up while it is made; what it was to read is there for the next one all the same."""

    def opens() -> None:
        request = world.open([1, 2, 3, 4, 5])
        if request is None:
            world.hand["copies"] = ()
            return
        world.hand["copies"] = request.copies if in_flight else ()
        world.end(request, "abort", in_flight=in_flight)
        if in_flight:
            world.scheduler.point("wait for the copies", lambda: "copied" in world.hand)
        request.settled()

    def copies() -> None:
        world.scheduler.point("wait for the request", lambda: "copies" in world.hand)
        for copy in world.hand["copies"]:
            world.scheduler.point("copy")
            world.oracle.copy([copy])
        world.hand["copied"] = True

    return {"opens": opens, "copies": copies, "B": world.life(1, 2, 3, 4, 6)}


def _given_up_load_under_pressure(world: World) -> dict[str, Work]:
    return {**_given_up_load(world, in_flight=True), "B": _spills(world)}


def _broken_copies(world: World) -> dict[str, Work]:
    def breaks() -> None:
        world.scheduler.point("break")
        world.broken = True

    return {"spills": _spills(world), "A": world.life(1, 2, 3, 4, 5), "device": breaks}


def _given_up_spill(world: World) -> dict[str, Work]:
    """A spill is taken, and not made; its block is somebody's else then."""

    def work() -> None:
        world.cache.evict(2)
        world.cache.spill().abort()

    return {"spills": work, "A": world.life(1, 2, 3, 4, 5), "B": world.life(31, 32, 33)}


def _computed_again(world: World) -> dict[str, Work]:
    """What one loads another computes anew: the tier gives it up, and others would like to have its slot."""

    def computes() -> None:
        try:
            request = world.cache.open([1, 2, 7], read=False)
        except NoSpace:
            return
        world.live[request.id] = request
        world.serve(request)

    return {"A": world.life(1, 2, 5), "computes": computes, "spills": _spills(world)}


def _grown(world: World, more: Sequence[int] = (35, 36, 37)) -> dict[str, Work]:
    """A request that grows is given evicted blocks, and copies these away before it goes on."""

    def grows() -> None:
        request = world.open([31, 32, 33])
        if request is None or not world.copy(request):
            return None
        world.compute(request)
        try:
            request.append(more)
        except NoSpace:
            return world.end(request)
        world.serve(request)
        return None

    return {"grows": grows, "A": world.life(1, 2, 3, 4, 5)}


# The tier is one for all; these differ in what they evict, publish and match.
_SETUPS = ("radix, copy", "hash_chain", "block_trie, take", "digest_chain", "trtllm", "vllm-1")
_CLAIM = _SETUPS[:-1]  # the last one admits in a loop
# For the stories with the most schedules.
_THREE, _OTHERS = ("hash_chain", "block_trie, take", "trtllm"), ("radix, copy", "digest_chain", "vllm-1")
_TIGHT = ([21, 22, 23], [25, 26, 27], [41, 42, 43])
TIER_CASES = (
    Case(
        "a batch of hits below",
        _batch_of_hits_below,
        _CLAIM,
        4,
        _TIGHT[:2],
        20,
        host=2,
        below=([1, 2, 3], [11, 12, 13]),
    ),
    Case("a load under pressure", _load_and_pressure, _THREE, 4, _TIGHT[:1], 100, 2, host=2, below=([1, 2, 3, 4, 5],)),
    Case(
        "a load onto what is spilled",
        _load_onto_what_is_spilled,
        _SETUPS,
        3,
        _TIGHT[:1],
        10,
        host=3,
        below=([1, 2, 3, 4, 5],),
    ),
    Case("asked for while it is spilled", _asked_for_while_spilled, _SETUPS, 5, ([1, 2, 3, 4, 5],), 50, host=3),
    Case("spilled by its successor", _spilled_by_its_successor, _OTHERS, 4, ([1, 2, 3, 4, 5],), 100, 2, host=3),
    Case("the same load twice", _same_load_twice, _OTHERS, 5, _TIGHT[:1], 100, 2, host=1, below=([1, 2, 3],)),
    Case("a load that is given up", _given_up_load, _SETUPS, 6, (), 50, 2, host=3, below=([1, 2, 3, 4, 5],)),
    Case(
        "a load that is given up in flight",
        partial(_given_up_load, in_flight=True),
        _SETUPS,
        6,
        (),
        50,
        2,
        host=3,
        below=([1, 2, 3, 4, 5],),
    ),
    Case(
        "a load that is given up under pressure",
        _given_up_load_under_pressure,
        _SETUPS,
        6,
        _TIGHT[:2],
        50,
        2,
        host=2,
        below=([1, 2, 3, 4, 5],),
    ),
    Case(
        "spills and loads that fail", _broken_copies, _SETUPS, 6, _TIGHT[:1], 100, 2, host=3, below=([1, 2, 3, 4, 5],)
    ),
    Case("a spill that is given up", _given_up_spill, _THREE, 5, ([1, 2, 3, 4, 5],), 50, 2, host=3),
    Case(
        "computed again while it is loaded", _computed_again, _THREE, 6, _TIGHT[:1], 100, 2, host=1, below=([1, 2, 3],)
    ),
    Case("a request that grows", _grown, _SETUPS, 4, ([1, 2, 3, 4, 5],), 10, host=3),
)
