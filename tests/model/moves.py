"""What a randomised test may do next. Each move takes its numbers from one chooser, so that hypothesis
(which shrinks) and a seeded generator (which reaches far) drive the same moves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.model.known import Sequence
from tests.model.prompts import SCOPES, Prompt
from tests.model.setup import Setup
from tests.model.world import World
from tests.registration import DESIGNS

Choose = Callable[[int], int]  # n -> a number from 0 to n - 1
_ALPHABET = 2  # so few tokens that prompts collide all the time
_DIGESTS = ("0a", "0b")


@dataclass(frozen=True)
class Move:
    weight: int
    ready: Callable[[World], object]
    play: Callable[[World, Choose], Any]


def _some(items: dict[Any, Any], choose: Choose) -> Any:
    return list(items)[choose(len(items))]


def _tokens(choose: Choose, most: int, least: int = 0) -> tuple[int, ...]:
    return tuple(1 + choose(_ALPHABET) for _ in range(least + choose(most - least + 1)))


def _prompt(world: World, choose: Choose) -> Prompt:
    """A remembered prompt, often cut, mostly extended, at times by a picture."""
    base = Prompt(())
    if world.history and choose(5):
        base = _some(world.history, choose)
        if choose(2):
            base = base.cut(choose(len(base.tokens) + 1))
    else:
        base = Prompt((), scope=choose(len(SCOPES)) if not choose(3) else 0)
    size = world.setup.block_size
    if not choose(6):
        base = base.with_picture(_DIGESTS[choose(2)], _tokens(choose, 1 + size // 2, 1))
    elif not choose(8):
        base = Prompt(base.tokens, choose(len(SCOPES)), base.pictures)
    base = base.then(*_tokens(choose, 2 * size + 1))
    return base if base.tokens else base.then(1)


def _open(world: World, choose: Choose) -> Any:
    prompt = _prompt(world, choose)
    options: dict[str, Any] = {}
    match choose(12):
        case 0:
            options["read"] = False
        case 1:
            options["store"] = False
        case 2 | 3:
            options["reserve"] = 1 + choose(len(prompt.tokens) + world.setup.block_size)
    if world.setup.retains:
        options |= _retention(choose)
    return world.do("open", handle=_handle(world), prompt=prompt, **options)


def _retention(choose: Choose) -> dict[str, Any]:
    match choose(4):
        case 0:
            return {}
        case 1:
            return {"priority": (0, 35, 100)[choose(3)], "decode_priority": (None, 0, 100)[choose(3)]}
        case 2:
            return {"priority": (0, 35, 100)[choose(3)], "ttl": 1 + choose(10)}
    middle = 1 + choose(5)
    return {"priority": [(0, middle, 90, None), (middle, None, 10 + choose(20), 1 + choose(5))]}


def _open_batch(world: World, choose: Choose) -> Any:
    prompts = tuple(_prompt(world, choose) for _ in range(1 + choose(3)))
    return world.do("open_batch", handles=tuple(_handle(world) for _ in prompts), prompts=prompts)


def _handle(world: World) -> int:
    world.handles += 1
    return world.handles


def _computed(world: World, choose: Choose) -> Any:
    handle = _some(world.live, choose)
    sequence = world.live[handle]
    most = min(sequence.request.length, len(sequence.request.block_table) * world.setup.block_size)
    left = max(0, most - sequence.computed)
    return world.do("computed", handle=handle, length=sequence.computed + (left if choose(2) else choose(left + 1)))


def _run(world: World, choose: Choose) -> None:
    """A whole life in one move: admitted, computed, closed."""
    handle = _handle(world)
    if world.do("open", handle=handle, prompt=_prompt(world, choose)) is None:
        return
    if world.live[handle].request.copies:
        world.do("copied", handle=handle)
    if world.do("computed", handle=handle, length=world.live[handle].request.length):
        world.do("end", handle=handle, how="close")


def _append(world: World, choose: Choose) -> Any:
    handle = _some(world.live, choose)
    most = 1 if choose(3) else world.setup.block_size + 1
    return world.do("append", handle=handle, tokens=_tokens(choose, most, 1))


def _reserve(world: World, choose: Choose) -> Any:
    handle = _some(world.live, choose)
    return world.do(
        "reserve",
        handle=handle,
        length=1 + choose(world.live[handle].request.length + 2 * world.setup.block_size),
    )


def _rewind(world: World, choose: Choose) -> Any:
    handle = _some(world.live, choose)
    return world.do("rewind", handle=handle, length=1 + choose(world.live[handle].request.length))


def _fork(world: World, choose: Choose) -> Any:
    return world.do("fork", handle=_some(_copied_up(world), choose), child=_handle(world))


def _copied_up(world: World) -> dict[int, Sequence]:
    return {handle: s for handle, s in world.live.items() if not _waits(s)}


def _end(world: World, choose: Choose) -> Any:
    how = ("close", "close", "abort", "preempt")[choose(4)]
    flags = choose(6)
    return world.do("end", handle=_some(world.live, choose), how=how, in_flight=flags in (0, 1), twice=flags == 2)


def _resume(world: World, choose: Choose) -> Any:
    append = _tokens(choose, 2) if not choose(3) else ()
    handle = _some(_resumable(world), choose)
    return world.do("resume", handle=handle, child=_handle(world), append=append)


def _resumable(world: World) -> dict[int, Sequence]:
    return {handle: s for handle, s in world.preempted.items() if handle not in world.unsettled}


def _waits(sequence: Sequence) -> bool:
    return bool(sequence.request.copies)


def _copied(world: World, choose: Choose) -> Any:
    waiting = {handle: s for handle, s in world.live.items() if _waits(s)}
    return world.do("copied", handle=_some(waiting, choose))


def _spilled(world: World, choose: Choose) -> Any:
    return world.do("spilled", handle=_some(world.spills, choose), done=bool(choose(4)), twice=not choose(4))


def _always(world: World) -> bool:
    return True


MOVES: dict[str, Move] = {
    "open": Move(20, _always, _open),
    "open_batch": Move(4, _always, _open_batch),
    "run": Move(12, _always, _run),
    "probe": Move(3, _always, lambda w, choose: w.do("probe", prompt=_prompt(w, choose))),
    "computed": Move(24, lambda w: w.live, _computed),
    "copied": Move(8, lambda w: any(map(_waits, w.live.values())), _copied),
    "append": Move(14, lambda w: w.live, _append),
    "reserve": Move(2, lambda w: w.live, _reserve),
    "rewind": Move(4, lambda w: w.live, _rewind),
    "fork": Move(4, _copied_up, _fork),
    "end": Move(12, lambda w: w.live, _end),
    "settled": Move(3, lambda w: w.unsettled, lambda w, c: w.do("settled", handle=_some(w.unsettled, c))),
    "resume": Move(4, _resumable, _resume),
    "pin": Move(2, _always, lambda w, c: w.do("pin", handle=_handle(w), prompt=_prompt(w, c))),
    "unpin": Move(3, lambda w: w.pins, lambda w, c: w.do("unpin", handle=_some(w.pins, c), twice=not c(4))),
    "evict": Move(4, _always, lambda w, c: w.do("evict", count=c(1 + w.setup.capacity // 2))),
    "reset": Move(1, _always, lambda w, c: w.do("reset")),
    "new_generation": Move(1, _always, lambda w, c: w.do("new_generation")),
    "spill": Move(3, lambda w: w.setup.host, lambda w, c: w.do("spill", handle=_handle(w))),
    "spilled": Move(4, lambda w: w.spills, _spilled),
    "end_step": Move(2, _always, lambda w, c: w.do("end_step")),
    "advance": Move(1, _always, lambda w, c: w.do("advance", seconds=1 + c(10))),
}


def draw_setup(design: str, choose: Choose, tiered: bool = False) -> Setup:
    """A small cache: so small that most histories meet refusals and evictions. One in two has no options."""
    sizes = DESIGNS[design].block_sizes
    size = sizes[choose(len(sizes))]
    capacity = (5 + choose(20)) if size == 1 else 3 + choose(9)
    options = {}
    if choose(2):
        for name, values in DESIGNS[design].options.items():
            if not choose(4):
                options[name] = values[choose(len(values))]
    if tiered:
        options.pop("hash", None)  # below the device keys must be trusted
        return Setup(design, size, capacity, options, 1 + choose(capacity))
    return Setup(design, size, capacity, options)
