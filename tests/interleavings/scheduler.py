"""Threads that take turns as they are told, and a search through all the turns there are.

Threads are real. Each stops at every *point*: before it takes the cache's lock, before it copies, before it writes; it
goes on when the scheduler says so, alone, until its next point. What lies between two points is one step; a step that
takes the lock is what another thread would see of it in any case, since nobody gets in before the lock is free again.

A schedule is the sequence of threads that were let go. `explore` runs a story under every one of them, or under
every one with at most so many *preemptions*: turns taken from a thread that could have gone on.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

# Only a request's own calls change these, so no other thread can come first in a way that shows.
_OWN_AFFAIRS = {"block_table", "tables", "copies"}
_MOST_STEPS = 400  # of one schedule: a story is small, what goes on for longer gets nowhere


class Deadlock(AssertionError):
    """Nobody can go on, or everybody goes on for ever."""


class _Stopped(BaseException):
    """Thrown into threads that are no longer needed."""


class Story(Protocol):
    """What the threads do, and what must hold after each of their steps."""

    def threads(self, scheduler: Scheduler) -> dict[str, Callable[[], None]]: ...
    def after_step(self) -> None: ...
    def at_the_end(self) -> None: ...


class _Lane:
    """One thread, stopped at a point or done."""

    def __init__(self, scheduler: Scheduler, name: str, work: Callable[[], None]) -> None:
        self.scheduler, self.name, self.work = scheduler, name, work
        self.at = "the beginning"
        self.ready: Callable[[], bool] = _always
        self.done = self.unwanted = False
        self.error: BaseException | None = None
        self._go, self._stands = threading.Lock(), threading.Lock()
        self._go.acquire()
        self._stands.acquire()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        self._stands.acquire()

    def _run(self) -> None:
        _HERE.lane = self
        try:
            self.stop("the beginning", _always)
            self.work()
        except _Stopped:
            pass
        except BaseException as error:  # shown by the scheduler: an exception must not die with its thread
            self.error = error
        self.done = True
        self._stands.release()

    def stop(self, at: str, ready: Callable[[], bool]) -> None:
        """Called by the thread itself: stand here until it is let go."""
        self.at, self.ready = at, ready
        self._stands.release()
        self._go.acquire()
        if self.unwanted:
            raise _Stopped

    def step(self) -> None:
        """Called by the scheduler: let it go until its next point."""
        self._go.release()
        self._stands.acquire()

    def end(self) -> None:
        self.unwanted = True
        while not self.done:
            self.step()
        self._thread.join()


class _Here(threading.local):
    lane: _Lane | None = None


_HERE = _Here()


def _always() -> bool:
    return True


class Scheduler:
    """One run of a story under one schedule.

    Args:
        choices: which of the threads that can go on is let go, step by step; the first one from then on.
        preemptions: how many there may be, None for any number.

    Attributes:
        taken: (choice, number of choices) of each step.
        log: (thread, point) of each step.
    """

    def __init__(self, choices: list[int], preemptions: int | None) -> None:
        self._choices, self._left = choices, preemptions
        self.taken: list[tuple[int, int]] = []
        self.log: list[tuple[str, str]] = []
        self._lanes: list[_Lane] = []

    def point(self, at: str, ready: Callable[[], bool] = _always) -> None:
        """A place where another thread may come first; the thread stands until `ready`. Nothing outside of a story."""
        if (lane := _HERE.lane) is not None:
            lane.stop(at, ready)

    def run(self, story: Story) -> None:
        try:
            self._lanes = [_Lane(self, name, work) for name, work in story.threads(self).items()]
            for lane in self._lanes:  # what comes before the first point is nobody else's business
                self._let_go(lane)
            running: _Lane | None = None
            while any(not lane.done for lane in self._lanes):
                running = self._next(running)
                self.log.append((running.name, running.at))
                self._let_go(running)
                story.after_step()
                if len(self.log) > _MOST_STEPS:
                    raise Deadlock(f"no end after {_MOST_STEPS} steps")
            story.at_the_end()
        except Exception as error:
            error.add_note("schedule: " + ", ".join(f"{name} {at}" for name, at in self.log))
            raise
        finally:
            for lane in self._lanes:
                lane.end()

    def _let_go(self, lane: _Lane) -> None:
        lane.step()
        if lane.error is not None:
            raise lane.error

    def _next(self, running: _Lane | None) -> _Lane:
        enabled = [lane for lane in self._lanes if not lane.done and lane.ready()]
        if not enabled:
            waiting = ", ".join(f"{lane.name} at {lane.at}" for lane in self._lanes if not lane.done)
            raise Deadlock(f"nobody can go on: {waiting}")
        could_go_on = running in enabled
        if could_go_on:
            assert running is not None
            enabled.remove(running)
            enabled = [running, *enabled] if self._left != 0 else [running]
        place = len(self.taken)
        choice = self._choices[place] if place < len(self._choices) else 0
        self.taken.append((choice, len(enabled)))
        if could_go_on and choice and self._left is not None:
            self._left -= 1
        return enabled[choice]


@dataclass
class SteppedLock:
    """Takes the place of a cache's lock: taking it is a point, and who holds it is known.

    Args:
        reentrant: whether its holder may take it again. Where not, that is a deadlock, found without waiting.
    """

    scheduler: Scheduler
    reentrant: bool = True
    holder: _Lane | None = field(default=None, init=False)
    depth: int = field(default=0, init=False)

    def __enter__(self) -> None:
        lane = _HERE.lane
        if lane is None:
            assert self.holder is None, "a look at the cache while a thread stands inside of a call"
            return
        if lane is self.holder and self.reentrant:
            self.depth += 1
            return
        call = sys._getframe(1).f_code.co_name
        if call not in _OWN_AFFAIRS:
            self.scheduler.point(call, lambda: self.holder is None)
        self.holder, self.depth = lane, 1

    def __exit__(self, *_: object) -> None:
        if _HERE.lane is not None and _HERE.lane is self.holder:
            self.depth -= 1
            if not self.depth:
                self.holder = None

    @contextmanager
    def let_go(self, at: str) -> Iterator[None]:
        """For rules broken on purpose: the lock is free in the middle of a call."""
        if _HERE.lane is None:
            yield
            return
        self.holder, depth = None, self.depth
        yield
        self.scheduler.point(at, lambda: self.holder is None)
        self.holder, self.depth = _HERE.lane, depth


def explore(tell: Callable[[], Story], preemptions: int | None = None, most: int = 100_000) -> int:
    """Run a story, told anew each time, under every schedule there is; how many that were.

    Raises what the first one that fails raised, with its schedule as a note.
    """
    choices: list[int] = []
    for count in range(1, most + 1):
        scheduler = Scheduler(choices, preemptions)
        scheduler.run(tell())
        taken: list[Any] = scheduler.taken
        while taken and taken[-1][0] == taken[-1][1] - 1:
            taken.pop()
        if not taken:
            return count
        choices = [choice for choice, _ in taken]
        choices[-1] += 1
    raise AssertionError(f"more than {most} schedules: allow fewer preemptions")
