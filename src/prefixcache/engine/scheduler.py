"""Who runs: admission, growth, preemption and release of sequences. No model and no memory here."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from prefixcache.cache import PrefixCache
from prefixcache.engine.sequence import Sequence
from prefixcache.engine.waiting import WaitingQueue
from prefixcache.errors import NoSpace

PADDING = 2  # rows of one batch differ in length by this factor at most: the rest would be reading padding


class Scheduler:
    """Three places for a sequence that is not finished: it waits, it runs, or it was preempted.

    Args:
        cache: gives blocks.
        max_running: sequences that run at most.
        aging, probes: see `WaitingQueue`.
        dropped: called with a sequence before it gives up its blocks.

    Attributes:
        running: in the order of admission: the last one is the first to be preempted.
        preempted: the first to be admitted again, before anybody who waits.
    """

    def __init__(
        self,
        cache: PrefixCache,
        *,
        max_running: int,
        aging: int,
        probes: int,
        dropped: Callable[[Sequence], None],
    ) -> None:
        self.cache = cache
        self.max_running = max_running
        self.waiting: WaitingQueue[Sequence] = WaitingQueue(self._probe, aging=aging, probes=probes)
        self.preempted: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self._dropped = dropped

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.running or self.preempted or len(self.waiting))

    def _probe(self, sequence: Sequence) -> int:
        job = sequence.job
        return self.cache.probe(job.tokens, job.scope).cached if job.opening.get("read", True) else 0

    # -- coming in ------------------------------------------------------------------------------------

    def admit(self) -> Sequence | None:
        """Let one sequence run: who was preempted first, then who waits. None when nobody can now.

        Its request then has its hit, its blocks, and perhaps copies to be made. A refusal changes nothing; but
        when nobody runs, nothing will make room, and the sequence comes back released.
        """
        if len(self.running) >= self.max_running:
            return None
        sequence = self.preempted[0] if self.preempted else self.waiting.first()
        if sequence is None:
            return None
        try:
            self._open(sequence)
        except NoSpace:
            if self.running:
                return None
            self.release(sequence)
            return sequence
        if self.preempted:
            self.preempted.popleft()
        else:
            self.waiting.remove(sequence)
        self.running.append(sequence)
        return sequence

    def _open(self, sequence: Sequence) -> None:
        request = sequence.request
        if request is None:
            job = sequence.job
            sequence.request = self.cache.open(sequence.tokens(), job.scope, **job.opening)
        else:
            # All sampled tokens belong to it, the one whose append was refused too.
            request.resume(sequence.tokens(request.length) if sequence.length > request.length else None)

    # -- going on -------------------------------------------------------------------------------------

    def grow(self) -> None:
        """Give every running sequence room for the tokens it has sampled, the oldest first.

        Where there is none, the youngest is preempted: its blocks become idle, and what fits of them is found
        again when it comes back. The oldest always gets on, since nothing that fits alone was let in.
        """
        for sequence in list(self.running):
            while sequence in self.running and not sequence.has_room:
                request = sequence.request
                assert request is not None
                try:
                    request.append(sequence.tokens(request.length))
                except NoSpace:
                    self.preempt(self.running[-1])

    def preempt(self, sequence: Sequence) -> None:
        """Take a running sequence's blocks; it runs again later, with the same tokens."""
        assert sequence.request is not None
        self._dropped(sequence)
        self.running.remove(sequence)
        sequence.request.preempt()
        sequence.ready, sequence.state = 0, None
        self.preempted.appendleft(sequence)

    # -- going out ------------------------------------------------------------------------------------

    def release(self, sequence: Sequence, *, abort: bool = False) -> None:
        """Forget a sequence, wherever it is. What it computed stays findable. Idempotent."""
        if sequence in self.running:
            self._dropped(sequence)
            self.running.remove(sequence)
        elif sequence in self.preempted:
            self.preempted.remove(sequence)
        else:
            self.waiting.remove(sequence)
        if sequence.request is not None:
            if abort:
                sequence.request.abort()
            else:
                sequence.request.close()
        sequence.ready, sequence.state = 0, None


def similar_in_length(sequences: list[Sequence]) -> list[list[Sequence]]:
    """Groups that are run as one batch each: similar in length, and with a recurrent state or all without."""
    groups: list[list[Sequence]] = []
    for sequence in sorted(sequences, key=lambda sequence: (sequence.state is None, sequence.length)):
        first = groups[-1][0] if groups else None
        if (
            first is not None
            and (first.state is None) == (sequence.state is None)
            and sequence.length <= PADDING * first.length
        ):
            groups[-1].append(sequence)
        else:
            groups.append([sequence])
    return groups
