"""The stories: small enough for all their schedules, each about one rule of the claim."""

from __future__ import annotations

from prefixcache import NoSpace
from tests.interleavings.story import ALL, PARTIAL, TAKE, WHOLE, Case, Work, World


def _one_leaf(world: World) -> dict[str, Work]:
    return {"A": world.life(1, 2, 3, 8), "B": world.life(1, 2, 3, 9)}


def _leaf_and_eviction(world: World) -> dict[str, Work]:
    return {"A": world.life(1, 2, 3, 8), "evicts": world.evict(3), "B": world.life(21, 22, 23, 24)}


def _hit_and_pressure(world: World) -> dict[str, Work]:
    return {"A": world.life(1, 2, 3, 4, 5), "B": world.life(21, 22, 23, 24, 25, 26)}


def _batches(world: World) -> dict[str, Work]:
    def batch(*lasts: int) -> Work:
        def work() -> None:
            for request in world.open_batch(*([1, 2, 3, last] for last in lasts)):
                world.serve(request)

        return work

    return {"A": batch(6, 7), "B": batch(8, 9)}


def _batch_in_order(world: World) -> dict[str, Work]:
    """One thread serves its batch in order: whoever takes the leaf over must come last, or it waits for itself."""

    def work() -> None:
        requests = world.open_batch([1, 2, 3, 7], [1, 2, 3, 8])
        roles = [len(request.copies) for request in requests if request is not None and request.cached == 3]
        for request in requests:
            world.serve(request)
        world.rule(len(roles) < 2 or roles in ([1, 0], [1, 1]), f"the last alone may take over: {roles} copies")

    return {"batch": work, "evicts": world.evict(2)}


def _tight_batch(world: World) -> dict[str, Work]:
    """Room for the first request is made of something, and that must not be what the second one has matched."""

    def work() -> None:
        first, second = world.open_batch([21, 22, 23, 24], [1, 2, 5])
        world.rule(first is not None and second is not None, "both fit")
        world.rule(second is not None and second.cached == 2, "it was there when the batch came")
        world.serve(first)
        world.serve(second)

    def look() -> None:
        for _ in range(2):
            world.cache.probe([1, 2, 5])
            world.cache.plan([{"tokens": [1, 2, 6]}])

    return {"batch": work, "looks": look}


def _taker_elsewhere(world: World) -> dict[str, Work]:
    """The request that takes the leaf over is served by another thread than the one that has yet to copy from it."""

    def batch() -> None:
        first, last = world.open_batch([1, 2, 3, 7], [1, 2, 3, 8])
        world.hand["last"] = last
        world.serve(first)

    def other() -> None:
        world.scheduler.point("wait for the batch", lambda: "last" in world.hand)
        world.serve(world.hand["last"])

    return {"batch": batch, "other": other}


def _taker_shares_less(world: World) -> dict[str, Work]:
    """What the request that takes the leaf over writes first is what the other one has yet to copy."""

    def batch() -> None:
        first, last = world.open_batch([1, 2, 3, 7], [1, 8, 9])
        world.hand["last"] = last
        world.serve(first)

    def other() -> None:
        world.scheduler.point("wait for the batch", lambda: "last" in world.hand)
        world.serve(world.hand["last"])

    return {"batch": batch, "other": other}


def _three_on_one_leaf(world: World) -> dict[str, Work]:
    return {name: world.life(1, 2, 3, last) for name, last in (("A", 7), ("B", 8), ("C", 9))}


def _twins(world: World) -> dict[str, Work]:
    """Two compute the same; one goes on while a third needs room."""

    def longer() -> None:
        request = world.open([1, 2, 3, 4])
        if request is None or not world.copy(request):
            return None
        world.compute(request)
        try:
            request.append(5)
        except NoSpace:
            return world.end(request)
        world.compute(request)
        world.end(request)
        return None

    return {"A": world.life(1, 2, 3, 4), "B": longer, "C": world.life(21, 22, 23, 24)}


def _broken_copies(world: World) -> dict[str, Work]:
    def breaks() -> None:
        world.scheduler.point("break")
        world.broken = True

    return {"A": world.life(1, 2, 3, 8), "B": world.life(1, 2, 3, 8, 9), "device": breaks}


def _broken_copy_of_a_batch(world: World) -> dict[str, Work]:
    """The copy fails when its source is no longer findable, so that what it should have made would be."""

    def batch() -> None:
        for request in world.open_batch([1, 2, 3, 7], [1, 2, 3, 8]):
            world.serve(request)

    def breaks() -> None:
        world.scheduler.point("break")
        world.broken = True

    return {"batch": batch, "device": breaks, "later": world.life(1, 2, 3, 9)}


def _cancelled_copies(world: World) -> dict[str, Work]:
    """The requests of a batch are cancelled while their copies are under way; what comes later finds nothing wrong."""

    def batch() -> None:
        requests = world.open_batch([1, 2, 3, 7], [1, 2, 3, 8])
        done = [request for request in requests if request is not None and world.copy(request)]
        for request in done:
            world.compute(request)
            world.end(request)

    def cancel() -> None:
        world.scheduler.point("cancel")
        world.cancelled = True
        world.cache.evict(1)

    return {"batch": batch, "cancels": cancel}


def _given_up_in_flight(world: World) -> dict[str, Work]:
    """A request is given up while its copy is under way: its blocks wait until that is over."""

    def opens() -> None:
        request = world.open([1, 2, 3, 8])
        if request is None:
            return
        copies = request.copies
        world.hand["copies"] = copies
        world.end(request, "abort", in_flight=True)
        world.scheduler.point("wait for the copy", lambda: "copied" in world.hand)
        request.settled()

    def copies() -> None:
        world.scheduler.point("wait for the request", lambda: "copies" in world.hand)
        for copy in world.hand["copies"]:
            world.scheduler.point("copy")
            world.oracle.copy([copy])
        world.hand["copied"] = True

    return {"opens": opens, "copies": copies, "B": world.life(21, 22, 23, 24)}


def _fork_and_rewind(world: World) -> dict[str, Work]:
    """A parent goes back inside a block that its child has yet to copy."""

    def parent() -> None:
        request = world.open([1, 2, 3])
        if request is None:
            return
        world.copy(request)
        world.compute(request)
        child = request.fork()
        world.live[child.id] = child
        world.hand["child"] = child
        request.append(4)
        request.rewind(3)
        request.append(5)
        world.copy(request)
        world.compute(request)
        world.end(request)

    def child() -> None:
        world.scheduler.point("wait for the fork", lambda: "child" in world.hand)
        world.serve(world.hand["child"])

    return {"parent": parent, "child": child}


def _preempted(world: World) -> dict[str, Work]:
    def preempted() -> None:
        request = world.open([1, 2, 3, 4, 5])
        if request is None:
            return
        world.copy(request)
        world.compute(request)
        world.end(request, "preempt")
        try:
            request.resume(append=[6])
        except NoSpace:
            return
        world.live[request.id] = request
        world.serve(request)

    return {"A": preempted, "evicts": world.evict(2), "B": world.life(1, 2, 3, 9)}


# The preset keeps no last token, so a prompt has to be longer for its first block to be whole; and it makes room of
# what is first in a queue, empty or not, so that less need be stored for the match to be in danger.
_WITHHELD = ([1, 2, 3], [11, 12, 13])

CASES = (
    Case("one leaf", _one_leaf, ALL, 6, ([1, 2, 3, 4],), 50, 3),
    Case("one leaf in a pool without room for copies", _one_leaf, ALL, 3, ([1, 2, 3, 4],), 20, 3),
    Case("one leaf, evictions, and room needed", _leaf_and_eviction, PARTIAL, 4, ([1, 2, 3, 4],), 300, 2),
    Case("a hit under pressure", _hit_and_pressure, ALL, 6, ([1, 2, 3, 4], [11, 12]), 100),
    Case("batch against batch", _batches, PARTIAL, 7, ([1, 2, 3, 4],), 100, 2, asks=True),
    Case("a batch served in order", _batch_in_order, PARTIAL, 8, ([1, 2, 3, 4],), 50, asks=True),
    Case("a tight batch", _tight_batch, WHOLE, 4, ([1, 2], [11, 12], [13, 14]), 50, 2, asks=True),
    Case("a tight batch, last tokens withheld", _tight_batch, ("trtllm",), 4, _WITHHELD, 50, 2, asks=True),
    Case("the taker is served elsewhere", _taker_elsewhere, TAKE, 8, ([1, 2, 3, 4],), 50, 3, asks=True),
    Case("the taker shares less", _taker_shares_less, TAKE, 6, ([1, 2, 3, 4],), 50, 3, asks=True, block_size=4),
    Case("three on one leaf", _three_on_one_leaf, PARTIAL, 8, ([1, 2, 3, 4],), 300, 2),
    Case("twins", _twins, ALL, 6, (), 300, 2),
    Case("copies that fail", _broken_copies, PARTIAL, 8, ([1, 2, 3, 4],), 200, 2),
    Case("a batch whose copy fails", _broken_copy_of_a_batch, TAKE, 8, ([1, 2, 3, 4],), 200, 2, asks=True),
    Case("copies that are cancelled", _cancelled_copies, PARTIAL, 8, ([1, 2, 3, 4],), 50, asks=True),
    Case("given up in flight", _given_up_in_flight, PARTIAL, 6, ([1, 2, 3, 4],), 200, 3),
    Case("fork and rewind", _fork_and_rewind, ALL, 8, (), 20, 2, asks=True),
    Case("preempted and resumed", _preempted, ALL, 6, ([1, 2, 3, 4],), 300, 2),
)
