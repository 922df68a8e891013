"""The device and the tier below it: what leaves the device is kept there, and loaded when a prompt comes back.

A block is found in one tier only. The design knows of the device alone; this stands between it and the journal:

    design evicts ──▶ evicting ──▶ a slot; the spill waits ──▶ whoever is given the device block makes the copy
    design has it no more ──▶ removed      kept below: nothing is said before the copy is made, then Moved
                                           else: Removed, with all below that could be reached through it only
    design has it again ──▶ stored         it was below: Moved, and its slot is free; else Stored

    device   [matched ........ )                          pinned by the request
    host                       [loaded ........ )         pinned in the tier until copied(), then the device's again
    new                                         [ ... )   computed
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from prefixcache.blocks.tier import Entry, State, Tier
from prefixcache.cache.books import Books, Copy
from prefixcache.designs import Design, Match, Prompt
from prefixcache.errors import InvariantError, OptionError
from prefixcache.keys.tokens import TOKEN_BYTES

if TYPE_CHECKING:
    from prefixcache.cache.core import Core
    from prefixcache.cache.journal import Journal
    from prefixcache.keys.scope import Scope

DEVICE = "device"
HOST = "host"


def read_tiers(tiers: Mapping[str, int] | None, journal: Journal | None) -> Tiers | None:
    """The tier below the device that a user asks for; raises `OptionError`."""
    if tiers is None:
        return None
    if not isinstance(tiers, Mapping):
        raise OptionError(f"tiers is {tiers!r}: expected the blocks of each tier, such as {{'host': 1024}}")
    for name in tiers:
        if name != HOST:
            raise OptionError(f"tiers names {name!r}: expected 'host'")
    return Tiers(Tier(HOST, tiers[HOST]), journal) if tiers else None


class Tiers:
    """See the module. Every method is called under the cache's lock.

    Args:
        tier: what lies below.
        journal: where changes are reported, None when nobody listens.

    Attributes:
        design: what the device has; it reports its changes here.
        spilled, loaded: copies made into the tier and out of it.
    """

    design: Design

    def __init__(self, tier: Tier, journal: Journal | None) -> None:
        self.tier, self._journal = tier, journal
        self._waiting: dict[int, Entry] = {}  # by device block: spills that nobody makes yet
        self.spilled = self.loaded = 0

    def stand_below(self, design: Design) -> None:
        """Keep what this design evicts from now on. Raises `OptionError` where that cannot be."""
        if not design.has_tiers:
            raise OptionError(f"{design.name} has no tiers below the device: expected another design")
        if not design.trusted_keys:
            raise OptionError(
                f"tiers with hash={design.options.hash!r}: below the device a block is known by its key alone, "
                "expected a hash that resists collisions, such as 'sha256'"
            )
        self.design = design
        design.demote_to(self)

    # -- what the design says -------------------------------------------------------------------------

    def evicting(self, keys: Sequence[bytes], before: bytes | None, blocks: Sequence[int]) -> None:
        """These blocks, neighbours in a prompt behind the block `before`, are about to be evicted: make room below.

        The tail first, so that among them it is the first to leave the tier.
        """
        for index in range(len(keys) - 1, -1, -1):
            entry, victim = self.tier.begin(keys[index], keys[index - 1] if index else before, blocks[index])
            if victim is not None:
                self._left((victim,))
            if entry is not None:
                self._waiting[entry.source] = entry

    def removed(self, keys: Sequence[bytes], group: int | None = None) -> None:
        """The device has these no more."""
        gone: list[bytes] = []
        for key in keys:
            entry = self.tier.get(key)
            if entry is not None:
                entry.reported = True
                continue
            gone.append(key)
            gone += [lower.key for lower in self._off(self.tier.drop_behind(key)) if lower.reported]
        if self._journal is not None:
            self._journal.removed(gone)

    def stored(
        self, keys: Sequence[bytes], parent: bytes | None, tokens: bytes, scope: Scope, group: int | None = None
    ) -> None:
        """The device has these now. What a reader of the events takes for stored is not said to be stored again."""
        below = [self.tier.get(key) for key in keys]
        if not any(below):
            if self._journal is not None:
                self._journal.stored(keys, parent, tokens, scope)
            return
        step = self.design.block_size * TOKEN_BYTES
        for index, (key, entry) in enumerate(zip(keys, below, strict=True)):
            if entry is None:
                if self._journal is not None:
                    self._journal.stored((key,), parent, tokens[index * step : (index + 1) * step], scope)
            else:
                if self._journal is not None and entry.state is State.READY:
                    self._journal.moved((key,), DEVICE)
                self._off((entry,))
                self.tier.drop(entry)
            parent = key

    def _left(self, entries: Iterable[Entry]) -> None:
        """These left the tier, and lie in no other."""
        keys = [entry.key for entry in self._off(entries) if entry.reported]  # else the design is about to say it
        if self._journal is not None:
            self._journal.removed(keys)

    def _off(self, entries: Iterable[Entry]) -> list[Entry]:
        """The same entries; spills of theirs that nobody has begun are called off."""
        listed = list(entries)
        for entry in listed:
            if entry.state is State.WAITING:
                del self._waiting[entry.source]
        return listed

    # -- spills -----------------------------------------------------------------------------------------

    def take_spills(self, blocks: Sequence[int]) -> list[tuple[Copy, Any]]:
        """The copies that whoever is given these device blocks has to make before anything is written to them."""
        return [self._begun(self._waiting.pop(block)) for block in blocks if block in self._waiting]

    def take_all_spills(self) -> list[tuple[Copy, Any]]:
        """All that wait, whose device blocks are empty."""
        return self.take_spills(list(self._waiting))

    def _begun(self, entry: Entry) -> tuple[Copy, Any]:
        self.tier.start(entry)
        return Copy(entry.source, entry.slot, self.design.block_size, 0, DEVICE, self.tier.name), entry

    def over(self, entry: Entry, done: bool) -> None:
        """A copy into the tier, of an entry that is being filled, or out of it, is over; `done`: it was made."""
        if entry.state is not State.FILLING:
            self.loaded += done
            self.tier.unpin(entry)
        elif not done:
            self._left(self.tier.undo(entry))
        else:
            self.spilled += 1
            self.tier.finish(entry)
            if not entry.gone and self._journal is not None:
                self._journal.moved((entry.key,), self.tier.name)

    # -- loads ------------------------------------------------------------------------------------------

    def continue_match(self, prompt: Prompt, limit: int, match: Match) -> None:
        """Add what lies below behind the blocks of a match: at least a block, so more than any hit inside one.

        O(blocks added + 1) digests and lookups.
        """
        size = self.design.block_size
        most = limit // size - len(match.blocks)
        if most <= 0 or not len(self.tier):
            return
        loads: list[Entry] = []
        for key in self.design.keys_behind(prompt, match):
            entry = self.tier.find(key)
            if entry is None:
                break
            loads.append(entry)
            if len(loads) == most:
                break
        if loads:
            match.loads, match.loaded, match.partial, match.dropped = loads, len(loads) * size, None, 0

    def in_transit(self, prompt: Prompt, at: int) -> bool:
        """Whether the full block at token `at`, where the hit of a prompt ends, has left the device a moment ago."""
        keys = self.design.keys_at(prompt, at - at % self.design.block_size)
        entries = [entry for key in keys if (entry := self.tier.get(key)) is not None]
        return any(entry.state is not State.READY for entry in entries)

    def claim(self, match: Match) -> None:
        """A request is admitted with this hit: what it is going to load stays where it is."""
        for entry in match.loads:
            self.tier.pin(entry)

    def loads(self, match: Match, targets: Sequence[int]) -> list[tuple[Copy, Any]]:
        """The copies of a claimed hit onto these device blocks."""
        size, name = self.design.block_size, self.tier.name
        return [
            (Copy(entry.slot, target, size, 0, name, DEVICE), entry)
            for entry, target in zip(match.loads, targets, strict=True)
        ]

    # -- the whole --------------------------------------------------------------------------------------

    def retire(self) -> None:
        """The weights changed: nothing that lies below can be reached any more. The device has said so of its own."""
        self._left(self.tier.clear())

    def clear(self) -> None:
        """Forget everything, without a word."""
        self.tier.clear()
        self._waiting.clear()

    def books(self) -> Books:
        """Where the slots are. A slot is quarantined while it is written, and pinned while it is read."""
        tier = self.tier
        free, pinned, filling = tier.free, tier.pinned, tier.filling
        return Books(free, tier.capacity - free - pinned - filling, pinned, filling)

    def check(self, free: set[int]) -> None:
        """Assert that what lies below can be reached, and lies there alone; `free`: the empty device blocks."""
        self.tier.check()
        waiting = {entry.source: entry for entry in self.tier if entry.state is State.WAITING}
        if waiting != self._waiting or not waiting.keys() <= free:
            raise InvariantError("a spill waits for a device block that is not empty")
        found = self._reached_on_device()
        for entry in self.tier:
            if entry.state is State.READY and entry.key in found and self.design.options.visibility == "computed":
                raise InvariantError(f"{entry!r} lies in the {self.tier.name} tier and on the device")
            if not entry.reported:
                raise InvariantError(f"{entry!r} lies in the {self.tier.name} tier and nobody was told")
            parent = entry.parent
            if parent is not None and parent not in found and self.tier.get(parent) is None:
                raise InvariantError(f"{entry!r} lies in the {self.tier.name} tier, its parent nowhere")

    def _reached_on_device(self) -> set[bytes]:
        """The keys of all blocks on the device but those that an evicted one, whose place is kept, cuts off."""
        reached: list[bool] = []
        found: set[bytes] = set()
        for node in self.design.outline():
            reached.append(bool(node.blocks) and (node.parent < 0 or reached[node.parent]))
            if reached[-1]:
                found.update(node.keys)
        return found


class Spills:
    """Copies of what was evicted and of whose blocks nobody has been given any, made ahead of need.

    Its device blocks are quarantined until `copied()` or `abort()`. Made by `PrefixCache.spill`; it may be handed to
    `CopyWorkers` as a request may.
    """

    def __init__(self, core: Core, tiers: Tiers) -> None:
        self._core, self._tiers = core, tiers
        self.pending = tiers.take_all_spills()
        core.pool.withdraw(self.blocks)
        core.pool.quarantine(self.blocks)
        core.spills.add(self)

    @property
    def blocks(self) -> list[int]:
        """The device blocks that it holds back."""
        return [copy.source for copy, _ in self.pending]

    @property
    def copies(self) -> tuple[Copy, ...]:
        """What is to be copied, out of the device; empty when it is over."""
        with self._core.lock:
            return tuple(copy for copy, _ in self.pending)

    def copied(self) -> None:
        """All of `copies` are made: the tier has them, the device blocks are empty. Idempotent."""
        with self._core.lock:
            self._over(done=True)

    def abort(self) -> None:
        """They were not made, or not all of them: nothing is kept, the device blocks are empty. Idempotent."""
        with self._core.lock:
            self._over(done=False)

    def _over(self, done: bool) -> None:
        for _, entry in self.pending:
            self._tiers.over(entry, done)
        self._core.pool.settle(self.blocks)
        self.pending = []
        self._core.spills.discard(self)
