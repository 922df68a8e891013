"""A lower tier of KV memory: full blocks that have left the device, kept where they can be loaded from again.

Its blocks are found by the keys that events name them by, each of which stands for its whole prefix. A block can be
loaded only behind its parent, so a block whose parent lies in no tier any more goes with it.

    spill     device block ──▶ slot      begin: waiting ─▶ start: filling ─▶ finish: ready      or undo: gone
    load      slot ──▶ device block      pin: readers + 1 ─▶ unpin                              and on the device again

A spill waits until the device block is given to somebody else, who carries it out before the first write. While it
waits it costs nothing and can be called off; while it runs its slot is nobody else's, and nothing can be loaded from
it before it is finished.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from heapq import heappop, heappush, heapreplace

from prefixcache.blocks.pool import MAX_BLOCKS
from prefixcache.errors import InvariantError, whole_number

_SLACK = 64  # outdated entries of the heap that are not worth a clean-up


class State(Enum):
    """Where an entry is in its life."""

    WAITING = "waiting"  # its content is still in the device block that it left, which is free
    FILLING = "filling"  # the copy is somebody's to make
    READY = "ready"


class Entry:
    """One block of the tier.

    Attributes:
        key, parent: its own key, and that of the block before it in its prompt (None for a first block).
        slot: where in the tier's memory it lies, or is going to.
        source: the device block that it comes from.
        state: see `State`.
        readers: loads under way.
        gone: it is found no more; its slot is free once nobody reads or fills it.
        reported: it was said that the device has it no more.
        recency: the larger the later it came, or was loaded.
        queued: it stands in the order in which entries leave.
    """

    __slots__ = ("gone", "key", "parent", "queued", "readers", "recency", "reported", "slot", "source", "state")

    def __init__(self, key: bytes, parent: bytes | None, slot: int, source: int, recency: int) -> None:
        self.key, self.parent = key, parent
        self.slot, self.source = slot, source
        self.state = State.WAITING
        self.readers = 0
        self.gone = self.reported = self.queued = False
        self.recency = recency

    @property
    def busy(self) -> bool:
        """Whether its slot is being read or written."""
        return self.readers > 0 or self.state is State.FILLING

    def __repr__(self) -> str:
        return f"Entry(slot={self.slot}, {self.state.value}, readers={self.readers}, gone={self.gone})"


class Tier:
    """Slots 0 .. capacity-1 and what lies in them. The least recent block on which no other hangs leaves first.

    Args:
        name: "host".
        capacity: slots, 1 .. `MAX_BLOCKS`. Slots that were never used cost nothing.

    The caller holds the cache's lock.
    """

    def __init__(self, name: str, capacity: int) -> None:
        self.name = name
        self.capacity = whole_number(capacity, f"tiers[{name!r}]", least=1, most=MAX_BLOCKS)
        self._entries: dict[bytes, Entry] = {}
        self._children: dict[bytes, dict[bytes, None]] = {}  # by parent's key, wherever the parent lies
        self._leaving: set[Entry] = set()  # gone and busy
        self._free: list[int] = []
        self._fresh = 0  # slots from here on were never used
        self._tick = 0
        self._order: list[tuple[int, Entry]] = []  # heap by recency; entries that may not leave are skipped

    def __len__(self) -> int:
        """Blocks that have a key here."""
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def get(self, key: bytes) -> Entry | None:
        """The entry of a key, in whatever state."""
        return self._entries.get(key)

    def find(self, key: bytes) -> Entry | None:
        """The entry that a block of this key can be loaded from. O(1)."""
        entry = self._entries.get(key)
        return entry if entry is not None and entry.state is State.READY else None

    # -- in -----------------------------------------------------------------------------------------

    def begin(self, key: bytes, parent: bytes | None, source: int) -> tuple[Entry | None, Entry | None]:
        """A slot for the block that leaves this device block; (its entry, what had to leave the tier for it).

        (None, None) when every slot is in use. O(log slots).
        """
        victim: Entry | None = None
        if self._free:
            slot = self._free.pop()
        elif self._fresh < self.capacity:
            slot, self._fresh = self._fresh, self._fresh + 1
        else:
            victim = self._least_recent()
            if victim is None:
                return None, None
            self._forget(victim)
            slot = self._free.pop()
        self._tick += 1
        entry = self._entries[key] = Entry(key, parent, slot, source, self._tick)
        if parent is not None:
            self._children.setdefault(parent, {})[key] = None
        self._queue(entry)
        return entry, victim

    def start(self, entry: Entry) -> None:
        """Somebody is going to make the copy."""
        entry.state = State.FILLING

    def finish(self, entry: Entry) -> None:
        """The copy is made: the block can be loaded, unless it is gone by now."""
        entry.state = State.READY
        self._settle(entry)

    # -- out ----------------------------------------------------------------------------------------

    def pin(self, entry: Entry) -> None:
        """A load begins."""
        entry.readers += 1

    def unpin(self, entry: Entry) -> None:
        """A load is over: the block was used now."""
        if entry.readers <= 0:
            raise InvariantError(f"{entry!r} is unpinned more often than pinned")
        entry.readers -= 1
        self._tick += 1
        entry.recency = self._tick
        self._settle(entry)

    def drop(self, entry: Entry) -> None:
        """The block is found here no more; what hangs from it stays. Its slot is free when nobody uses it."""
        if not entry.gone:
            self._forget(entry)

    def undo(self, entry: Entry) -> list[Entry]:
        """The copy will not be made, or nobody knows whether it was: what left the tier with it, itself first."""
        entry.state = State.READY  # no longer filled
        if entry.gone:
            self._settle(entry)
            return []
        return self.drop_with_all_behind(entry)

    def drop_with_all_behind(self, entry: Entry) -> list[Entry]:
        """Drop a block and what hangs from it; all of them."""
        self._forget(entry)
        return [entry, *self.drop_behind(entry.key)]

    def drop_behind(self, key: bytes) -> list[Entry]:
        """The block of this key lies in no tier any more: what hangs from it here goes, and is returned."""
        dropped: list[Entry] = []
        parents = [key]
        while parents:
            for child in list(self._children.get(parents.pop(), ())):
                entry = self._entries[child]
                self._forget(entry)
                dropped.append(entry)
                parents.append(child)
        return dropped

    def clear(self) -> list[Entry]:
        """Drop everything; what had a key here."""
        entries = list(self._entries.values())
        for entry in entries:
            self._forget(entry)
        return entries

    def _forget(self, entry: Entry) -> None:
        """Take an entry out of the index, and free its slot unless it is busy."""
        del self._entries[entry.key]
        parent = entry.parent
        if parent is not None:
            siblings = self._children[parent]
            del siblings[entry.key]
            if not siblings:
                del self._children[parent]
                above = self._entries.get(parent)
                if above is not None:
                    self._queue(above)
        entry.gone = True
        self._leaving.add(entry)
        self._settle(entry)

    def _settle(self, entry: Entry) -> None:
        """The entry may have become idle: its slot is free if it is gone, else it may leave."""
        if entry.busy:
            return
        if entry.gone:
            self._leaving.discard(entry)
            self._free.append(entry.slot)
        else:
            self._queue(entry)

    # -- who leaves next ------------------------------------------------------------------------------

    def _queue(self, entry: Entry) -> None:
        if entry.queued or not self._may_leave(entry):
            return
        entry.queued = True
        heappush(self._order, (entry.recency, entry))
        if len(self._order) > 2 * len(self._entries) + _SLACK:
            for _, outdated in self._order:
                outdated.queued = False
            self._order = [(e.recency, e) for e in self._entries.values() if self._may_leave(e)]
            self._order.sort(key=lambda item: item[0])
            for _, waiting in self._order:
                waiting.queued = True

    def _may_leave(self, entry: Entry) -> bool:
        return not entry.gone and not entry.busy and entry.key not in self._children

    def _least_recent(self) -> Entry | None:
        """The next to leave; O(log slots), amortised."""
        while self._order:
            recency, entry = self._order[0]
            if not self._may_leave(entry):
                heappop(self._order)
                entry.queued = False
            elif recency != entry.recency:
                heapreplace(self._order, (entry.recency, entry))  # it was loaded since
            else:
                return entry
        return None

    # -- books ----------------------------------------------------------------------------------------

    @property
    def free(self) -> int:
        """Slots with nothing in them."""
        return len(self._free) + self.capacity - self._fresh

    @property
    def filling(self) -> int:
        """Slots that a copy is being written into. O(slots in use)."""
        return sum(e.state is State.FILLING for e in (*self._entries.values(), *self._leaving))

    @property
    def pinned(self) -> int:
        """Slots that a load reads. O(slots in use)."""
        return sum(e.readers > 0 for e in (*self._entries.values(), *self._leaving))

    def check(self) -> None:
        """Assert every invariant of the tier; raises `InvariantError` naming the broken one."""
        used = [entry.slot for entry in (*self._entries.values(), *self._leaving)]
        if sorted([*used, *self._free]) != list(range(self._fresh)):
            raise InvariantError(f"slots of the {self.name} tier are lost, or owned twice")
        for key, entry in self._entries.items():
            if entry.key != key or entry.gone or entry.readers < 0:
                raise InvariantError(f"{entry!r} of the {self.name} tier is not what its key stands for")
            if entry.readers and entry.state is not State.READY:
                raise InvariantError(f"{entry!r} of the {self.name} tier is loaded from before it is written")
            if entry.parent is not None and key not in self._children.get(entry.parent, ()):
                raise InvariantError(f"{entry!r} of the {self.name} tier does not hang from its parent")
        for entry in self._leaving:
            if not entry.gone or not entry.busy:
                raise InvariantError(f"{entry!r} of the {self.name} tier holds its slot for nobody")
        for parent, children in self._children.items():
            if not children or any(self._entries[child].parent != parent for child in children):
                raise InvariantError(f"the {self.name} tier has lost children of a block")
        ordered = {entry for _, entry in self._order}
        if len(ordered) != len(self._order) or not all(entry.queued for entry in ordered):
            raise InvariantError(f"the order of the {self.name} tier is not what its entries say")
        if any(self._may_leave(entry) and entry not in ordered for entry in self._entries.values()):
            raise InvariantError(f"a block of the {self.name} tier could leave and is not in the order")
