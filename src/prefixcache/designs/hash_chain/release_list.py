"""Idle runs in the order in which they were let go of: LRU without a heap.

A path is let go of tail first, and whoever holds a block holds all blocks before it (of a key with several
copies: some copy). So a child is always queued before its parent, and the last block of the first run never
has a cached child. The list is doubly linked through the runs, so that both parts of a run that is cut while
it waits keep its place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import cast

from prefixcache.designs.base import Holding
from prefixcache.designs.hash_chain.run import Link, Path, Run


class ReleaseList:
    """See the module. Every operation is O(1).

    Attributes:
        whole: a run may leave in one piece, for its blocks follow each other in the order anyway.
    """

    whole = True

    def __init__(self) -> None:
        self._old, self._new = _List(), _List()  # of old generations, and what can still be hit

    def __iter__(self) -> Iterator[Run]:
        yield from self._old
        yield from self._new

    def must_have(self, run: Run) -> bool:
        """Whether an idle run must be in the order: all are."""
        return True

    def first(self) -> Run | None:
        """The run whose last block leaves next."""
        return self._old.first() or self._new.first()

    def add(self, run: Run) -> None:
        """The run became idle."""
        (self._old if run.stale else self._new).append(run)

    def discard(self, run: Run) -> None:
        """The run is in use again, or gone."""
        _unlink(run)

    def cut(self, upper: Run, lower: Run) -> None:
        """A run was cut into these; the lower one is the run as it was known."""
        if lower.after is not None:
            _link(upper, lower)

    def retire(self, runs: Iterable[Run]) -> None:
        """All these runs, idle or not, are stale from now on. O(runs)."""
        for run in runs:
            run.stale = True
        for run in list(self._new):
            _unlink(run)
            self._old.append(run)

    def spans(self, holding: Holding, start: int, end: int) -> list[int]:
        """Where the blocks [start, end) of a holding must be cut so that each part has one rank: nowhere."""
        return [end]

    def stored(self, run: Run, path: Path, holding: Holding, known: int) -> None:
        """Nothing to note: only the order of release counts."""

    def passed(self, runs: list[Run], path: Path, holding: Holding) -> None:
        """Nothing to note: only the order of release counts."""

    def released(self, runs: list[Run], step: int) -> None:
        """Nothing to note: runs that became idle are added."""

    def trimmed(self, run: Run, key: bytes, gone: bool) -> None:
        """The last blocks of the first run were evicted."""
        if not run.keys:
            _unlink(run)

    def expire(self, now: float) -> None:
        """Nothing to note: only the order of release counts."""

    def check(self) -> None:
        """Nothing to assert beyond what the design asserts of every order."""


class _List:
    """A ring of links, closed by one that is no run."""

    def __init__(self) -> None:
        self._end = Link()
        self._end.ahead = self._end.after = self._end

    def __iter__(self) -> Iterator[Run]:
        link = self._end.after
        while link is not self._end:
            assert link is not None
            yield cast(Run, link)
            link = link.after

    def first(self) -> Run | None:
        link = self._end.after
        return None if link is self._end else cast(Run, link)

    def append(self, run: Run) -> None:
        last = self._end.ahead
        assert last is not None
        _link(run, last)


def _link(run: Link, behind: Link) -> None:
    following = behind.after
    assert following is not None
    run.ahead, run.after = behind, following
    behind.after = following.ahead = run


def _unlink(run: Link) -> None:
    ahead, after = run.ahead, run.after
    if ahead is not None and after is not None:
        ahead.after, after.ahead = after, ahead
        run.ahead = run.after = None
