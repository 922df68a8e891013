"""The log of events until somebody takes them: numbered, bounded, in order.

Until then they are kept as they come, in a fraction of the time and memory of the values that are given out:
tokens as one buffer, and the keys of removals that follow each other in one list.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Sequence
from typing import TypeAlias

from prefixcache.cache.removals import Removals
from prefixcache.events import Cleared, Event, Moved, Removed, Stored
from prefixcache.keys.scope import Scope

_StoredRaw: TypeAlias = tuple[tuple[bytes, ...], bytes | None, bytes, Scope, int]
_Raw: TypeAlias = _StoredRaw | list[bytes] | Removed | Moved | Cleared  # a list: keys removed from the tree's group

_MOST_KEYS = 1024  # of one removed event


class Journal:
    """Events with consecutive sequence numbers under an epoch that is new in every cache.

    When nobody takes them, the oldest are dropped beyond `most`; the gap shows in the next first sequence
    number, and a consumer that sees one must start again from a snapshot.

    Args:
        most: events to keep.
        removals: told of every removal, whether events are taken or not.
        tree_group: attention group whose blocks are those of the design's tree.
    """

    def __init__(self, most: int, removals: Removals, tree_group: int = 0) -> None:
        self._tree_group = tree_group
        self.removals = removals
        self.epoch = secrets.randbits(63)
        self._first = 0
        self._events: deque[_Raw] = deque()
        self._most = most

    def stored(
        self, keys: Sequence[bytes], parent: bytes | None, tokens: bytes, scope: Scope, group: int | None = None
    ) -> None:
        """Became findable; without a group: in the tree's own."""
        self._add((tuple(keys), parent, bytes(tokens), scope, self._tree_group if group is None else group))

    def removed(self, keys: Sequence[bytes], group: int | None = None) -> None:
        """Findable no longer."""
        if not keys:
            return
        if group is not None:
            self._add(Removed(tuple(keys), group))
            return
        self.removals.note(keys)
        last = self._events[-1] if self._events else None
        if isinstance(last, list) and len(last) < _MOST_KEYS:
            last += keys
        else:
            self._add(list(keys))

    def moved(self, keys: Sequence[bytes], tier: str) -> None:
        """Findable in this tier from now on."""
        self._add(Moved(tuple(keys), tier))

    def cleared(self) -> None:
        self.removals.clear()
        self._add(Cleared())

    def _add(self, event: _Raw) -> None:
        self._events.append(event)
        if len(self._events) > self._most:
            self._events.popleft()
            self._first += 1

    def take(self) -> tuple[int, int, list[Event]]:
        """(epoch, sequence number of the first event, events), and forget them."""
        first, events = self._first, [self._given_out(raw) for raw in self._events]
        self._first += len(events)
        self._events.clear()
        return self.epoch, first, events

    def _given_out(self, raw: _Raw) -> Event:
        if isinstance(raw, tuple):
            keys, parent, tokens, scope, group = raw
            return Stored(keys, parent, tokens, scope, group)
        return Removed(tuple(raw), self._tree_group) if isinstance(raw, list) else raw
