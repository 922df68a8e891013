"""What a scheduler that works in steps adds (vLLM 0.8.5): recency by step, and blocks shown when a step ends."""

from __future__ import annotations

from collections.abc import Sequence

from prefixcache.blocks.eviction import Facts, Policy
from prefixcache.designs.base import EventSink
from prefixcache.keys.scope import Scope


def _rank(facts: Facts) -> tuple[int, ...]:
    """The earliest scheduled first; of one step, the deepest; of one depth, the smaller block id."""
    return (facts.step, -facts.depth, facts.block)


BY_STEP = Policy("by step", _rank)


class Unseen:
    """Keys registered in the current step: shared by who computes the same, but not matched yet.

    Args:
        events: told when they can be found; None when nobody listens.
    """

    def __init__(self, events: EventSink | None) -> None:
        self._events = events
        self.keys: set[bytes] = set()
        self._announcements: list[tuple[Sequence[bytes], bytes | None, bytes, Scope]] = []

    def add(self, keys: Sequence[bytes], parent: bytes | None, tokens: bytes, scope: Scope) -> None:
        """These keys are registered, to be announced when the step ends."""
        self.keys.update(keys)
        self._announcements.append((keys, parent, tokens, scope))

    def show(self) -> None:
        """The step is over."""
        if self._events is not None:
            for announcement in self._announcements:
                self._events.stored(*announcement)
        self.forget()

    def forget(self) -> set[bytes]:
        """These keys will never be seen; returns them."""
        self._announcements.clear()
        keys, self.keys = self.keys, set()
        return keys
