"""The mirror: what a stranger knows of a cache from its events alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from prefixcache import Scope
from prefixcache.events import Cleared, Event, Moved, Removed, Stored
from tests.model.prompts import ScopeKey, Unit, scope_key

Prefix = tuple[ScopeKey, int | None, tuple[Unit, ...]]  # scope, generation, everything from the first token on
Resolve = Callable[[Scope, tuple[Unit, ...], tuple[int, ...]], tuple[Unit, ...]]


@dataclass(frozen=True)
class Entry:
    parent: bytes | None
    prefix: Prefix
    tier: str = "device"


class Mirror:
    """Findable prefixes by key. It holds that a key is stored behind its parent, once, and removed once.

    Args:
        block_size: tokens of a full block.
        looks_ahead: a key covers the token behind its block too, so that one prefix may have several.
        resolve: gives the units (tokens with the media over them) behind a scope and the units of
            the parent, from the tokens of an event. Events carry no media; the caller knows who
            computed what, and refuses what nobody computed.
    """

    def __init__(self, block_size: int, resolve: Resolve, looks_ahead: bool = False) -> None:
        self.block_size = block_size
        self.looks_ahead = looks_ahead
        self.entries: dict[bytes, Entry] = {}
        self._resolve = resolve
        self._epoch: int | None = None
        self._next = 0
        self.removed: list[Prefix] = []  # since the last `apply`, in the order of the events

    def apply(self, epoch: int, first_sequence: int, events: Iterable[Event]) -> None:
        self.removed = []
        if self._epoch is None:
            self._epoch, self._next = epoch, first_sequence
        assert epoch == self._epoch, f"the epoch went from {self._epoch} to {epoch} under one cache"
        assert first_sequence == self._next, f"events from {first_sequence} on, {self._next} was next"
        for event in events:
            self._next += 1
            match event:
                case Stored():
                    self._store(event)
                case Removed():
                    self._remove(event)
                case Cleared():
                    self.entries.clear()
                case Moved():
                    assert set(event.keys) <= self.entries.keys(), f"{event} of a key that is not stored"
                    for key in event.keys:
                        assert self.entries[key].tier != event.tier, f"{event} of a key that is there"
                        self.entries[key] = replace(self.entries[key], tier=event.tier)
        for key, entry in self.entries.items():
            assert entry.parent is None or entry.parent in self.entries, (
                f"{key.hex()[:8]} of {entry.prefix} outlived its parent"
            )

    def _store(self, event: Stored) -> None:
        size, count = self.block_size, len(event.keys)
        assert count, f"{event} stores nothing"
        assert size * (count - 1) < len(event.tokens) <= size * count, (
            f"{len(event.tokens)} tokens for {count} keys of {size}"
        )
        assert event.parent is None or event.parent in self.entries, f"{event} behind an unknown parent"
        before = self.entries[event.parent].prefix[2] if event.parent is not None else ()
        assert len(before) % size == 0, f"{event} behind a partial block"
        units = before + self._resolve(event.scope, before, event.tokens)
        parent = event.parent
        for index, key in enumerate(event.keys):
            assert key not in self.entries, f"{key.hex()[:8]} of {event} was stored already"
            end = min(len(units), len(before) + (index + 1) * size)
            prefix = (scope_key(event.scope), event.scope.generation, units[:end])
            assert self.looks_ahead or prefix not in self.prefixes(), f"{prefix} has two keys"
            self.entries[key] = Entry(parent, prefix)
            parent = key

    def _remove(self, event: Removed) -> None:
        for key in event.keys:
            assert key in self.entries, f"{key.hex()[:8]} of {event} was not stored, or removed twice"
            self.removed.append(self.entries.pop(key).prefix)

    def prefixes(self) -> set[Prefix]:
        return {entry.prefix for entry in self.entries.values()}

    def reachable(self, transit: set[bytes]) -> list[tuple[Prefix, str]]:
        """Prefixes with the tier of their last block, without those that have a block in transit between tiers."""
        found = dict[bytes | None, bool]({None: True})
        for key in self.entries:
            path = [key]
            while path[-1] not in found and (parent := self.entries[path[-1]].parent) is not None:
                path.append(parent)
            for step in reversed(path):
                if step not in found:
                    found[step] = found[self.entries[step].parent] and step not in transit
        return [(entry.prefix, entry.tier) for key, entry in self.entries.items() if found[key]]

    def leaves(self, transit: set[bytes]) -> list[Prefix]:
        """Of the reachable prefixes, those that no other goes on from."""
        reachable = self.reachable(transit)
        within = {prefix for prefix, _ in reachable}
        parents = {
            self.entries[entry.parent].prefix
            for entry in self.entries.values()
            if entry.parent is not None and entry.prefix in within
        }
        return [prefix for prefix, _ in reachable if prefix not in parents]
