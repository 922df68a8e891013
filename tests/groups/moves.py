"""Random histories over a `World`: what a serving engine does to a cache, in any order."""

from __future__ import annotations

from contextlib import suppress

from prefixcache import NoSpace, Request, RequestError
from prefixcache.keys.scope import Scope
from tests.groups.world import World

SCOPES = (None, Scope(salt="a"))


def prompt(world: World) -> list[int]:
    """A prompt out of few tokens, often the continuation of a live or an earlier one."""
    rng = world.rng
    trunk = [rng.randrange(2) for _ in range(rng.randrange(1, 5))]
    body = list(range(10, 10 + rng.randrange(0, 28)))
    tail = [rng.randrange(3) for _ in range(rng.randrange(0, 6))]
    known = [request.tokens.tolist() for request in (*world.live, *world.resting)]
    if known and rng.random() < 0.3:
        own = rng.choice(known)
        return own[: rng.randrange(1, len(own) + 1)] + tail or [1]
    return trunk[: rng.randrange(2)] + body + tail or [1]


def opened(world: World, request: Request) -> None:
    world.live.append(request)
    world.hits += request.cached > 0


def priority(world: World, tokens: list[int]) -> list[tuple[int, int | None, int, None]]:
    """Where any block may go, its beginning often goes first."""
    rng = world.rng
    if world.cache.options.evict_from == "leaves" or rng.random() < 0.5:
        return []
    at = rng.randrange(1, len(tokens) + 1)
    return [(0, at, rng.randrange(100), None), (at, None, rng.randrange(100), None)]


def open_one(world: World) -> None:
    rng, tokens = world.rng, prompt(world)
    scope = rng.choice(SCOPES)
    hit = world.cache.probe(tokens, scope)
    world.cuts += hit.reason in ("anchor missing", "no checkpoint")
    world.compare(tokens, scope, hit.cached)
    reserve = rng.choice((None, None, min(len(tokens), hit.cached + 4)))
    before = [world.cache.books(group) for group in range(len(world.cache.groups))]
    try:
        request = world.cache.open(
            tokens, scope, reserve=reserve, store=rng.random() < 0.9, priority=priority(world, tokens)
        )
    except NoSpace:
        assert before == [world.cache.books(group) for group in range(len(world.cache.groups))]
        return
    if reserve is None:
        # A refusal to reuse inside a block for want of room is the only reason for less than was probed.
        assert request.cached == hit.cached, (request.cached, hit)
    opened(world, request)


def open_batch(world: World) -> None:
    rng = world.rng
    asks = [{"tokens": prompt(world), "scope": rng.choice(SCOPES)} for _ in range(rng.randrange(1, 4))]
    planned = world.cache.plan(asks)
    results = world.cache.open_batch(asks)
    claims = world.cache._batch == "claim"
    for plan, result in zip(planned, results, strict=True):
        if claims:
            assert plan.fits == isinstance(result, Request)
        if isinstance(result, Request):
            assert not claims or plan.cached == result.cached
            opened(world, result)


def step(world: World) -> None:
    """Compute on: to the next checkpoint, to the end, or anywhere."""
    rng = world.rng
    if not world.live:
        return
    request = rng.choice(world.live)
    begin, length = request.computed_tokens, request.length
    ends = [length, rng.randrange(begin, length + 1), *request.checkpoints[:1]]
    end = rng.choice(ends)
    try:
        request.reserve(end)
        world.compute(request, end)
    except NoSpace:
        return
    except RequestError as error:
        assert "yet to copy" in str(error), error


def decode(world: World) -> None:
    if not world.live:
        return
    request = world.rng.choice(world.live)
    with suppress(NoSpace):
        request.append([world.rng.randrange(3) for _ in range(world.rng.randrange(1, 4))])


def rewind(world: World) -> None:
    if not world.live:
        return
    request = world.rng.choice(world.live)
    before = (request.tokens.tolist(), [table.tolist() for table in request.tables])
    try:
        request.rewind(max(1, request.length - world.rng.randrange(0, 12)))
    except (NoSpace, RequestError):
        assert before == (request.tokens.tolist(), [table.tolist() for table in request.tables])


def fork(world: World) -> None:
    if not world.live or len(world.live) > 6:
        return
    try:
        opened(world, world.rng.choice(world.live).fork())
    except NoSpace:
        pass
    except RequestError as error:
        assert "copies are pending" in str(error)


def end(world: World) -> None:
    rng = world.rng
    if not world.live:
        return
    request = world.live.pop(rng.randrange(len(world.live)))
    in_flight = rng.random() < 0.3
    how = rng.choice((request.close, request.close, request.abort, request.preempt))
    if in_flight:
        world.release_in_flight(request, how)
    else:
        how()
    if request.state == "preempted":
        world.resting.append(request)


def settle(world: World) -> None:
    if world.in_flight:
        world.settle()


def resume(world: World) -> None:
    if not world.resting:
        return
    request = world.resting.pop(world.rng.randrange(len(world.resting)))
    try:
        opened(world, request.resume())
    except NoSpace:
        world.resting.append(request)


def evict(world: World) -> None:
    world.cache.evict(world.rng.randrange(1, 5), group=world.rng.randrange(len(world.cache.groups)))


def generation(world: World) -> None:
    if world.rng.random() < 0.1:
        world.cache.new_generation()
        world.take_events()
        assert not any(world.mirror.values()), "found under weights that are gone"


def pin(world: World) -> None:
    held = world.cache.pin(prompt(world), world.rng.choice(SCOPES))
    world.cache.evict(2)
    world.check()
    held.release()


def reset(world: World) -> None:
    if world.rng.random() < 0.1:
        pinned = any(
            books.pinned or books.quarantined for books in map(world.cache.books, range(len(world.cache.groups)))
        )
        assert world.cache.reset() is not pinned


def end_step(world: World) -> None:
    world.cache.end_step()


MOVES = (
    *(open_one,) * 5,
    open_batch,
    *(step,) * 8,
    *(decode,) * 3,
    rewind,
    fork,
    *(end,) * 5,
    settle,
    resume,
    evict,
    generation,
    pin,
    reset,
    end_step,
)


def play(world: World, steps: int) -> None:
    """Random moves, everything checked after each."""
    for _ in range(steps):
        world.rng.choice(MOVES)(world)
        world.check()
    world.finish()
