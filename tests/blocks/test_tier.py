"""The tier alone: against a plain list that is scanned, what each call refuses, and what `check` sees."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest

from prefixcache.blocks import MAX_BLOCKS
from prefixcache.blocks.tier import Entry, State, Tier
from prefixcache.errors import InvariantError, OptionError

_STEPS = 4000
_NAMES = 14  # keys that may be in the tier at one time or another


@dataclass(eq=False)
class _Block:
    """What the model knows of an entry; the model is a list of these, oldest first."""

    key: bytes
    parent: bytes | None
    entry: Entry
    state: str = "waiting"
    readers: int = 0
    gone: bool = False

    @property
    def busy(self) -> bool:
        return self.state == "filling" or self.readers > 0


@dataclass
class _Model:
    """A tier as a list: everything is found by looking at all of it."""

    capacity: int
    blocks: list[_Block] = field(default_factory=list)  # with a slot, those that are gone and busy among them

    def there(self) -> list[_Block]:
        return [block for block in self.blocks if not block.gone]

    def next_to_leave(self) -> _Block | None:
        parents = {block.parent for block in self.there()}
        return next((block for block in self.there() if not block.busy and block.key not in parents), None)

    def forget(self, block: _Block) -> None:
        block.gone = True
        self.tidy()

    def tidy(self) -> None:
        self.blocks = [block for block in self.blocks if not block.gone or block.busy]

    def all_behind(self, key: bytes) -> set[bytes]:
        keys = {key}
        for _ in self.blocks:
            keys |= {block.key for block in self.there() if block.parent in keys}
        return keys - {key}

    def forget_all(self, keys: set[bytes]) -> None:
        for block in self.there():
            block.gone = block.key in keys
        self.tidy()


class _Play:
    """One tier and its model, and random calls of both."""

    def __init__(self, capacity: int, seed: str) -> None:
        self.random = random.Random(seed)
        self.tier, self.model = Tier("host", capacity), _Model(capacity)
        self.parents = [None, *(f"{self.random.randrange(n)}".encode() for n in range(1, _NAMES))]
        self.loads: list[_Block] = []
        self.done: Counter[str] = Counter()

    def some(self, *states: str, gone: bool = False) -> _Block | None:
        fitting = [b for b in self.model.blocks if b.state in states and (gone or not b.gone)]
        return self.random.choice(fitting) if fitting else None

    def step(self) -> None:
        moves = (self.begin, self.begin, self.start, self.finish, self.undo, self.pin, self.unpin)
        rare = (self.drop, self.drop_with_all_behind, self.drop_behind, self.clear)
        self.random.choice(moves if self.random.randrange(8) else rare)()
        self.compare()

    def begin(self) -> None:
        number = self.random.randrange(_NAMES)
        key, parent = str(number).encode(), self.parents[number]
        if any(block.key == key for block in self.model.there()):
            return
        room = len(self.model.blocks) < self.model.capacity
        leaving = None if room else self.model.next_to_leave()
        entry, victim = self.tier.begin(key, parent, number)
        assert (victim is None) == (leaving is None)
        if leaving is not None:
            assert victim is leaving.entry and victim.gone
            self.model.forget(leaving)
        assert (entry is None) == (not room and leaving is None)
        if entry is not None:
            assert (entry.key, entry.parent, entry.source, entry.state) == (key, parent, number, State.WAITING)
            self.model.blocks.append(_Block(key, parent, entry))
        self.done["full" if entry is None else "pushed out" if victim else "begun"] += 1

    def start(self) -> None:
        if (block := self.some("waiting")) is not None:
            self.tier.start(block.entry)
            block.state = "filling"

    def finish(self) -> None:
        if (block := self.some("filling", gone=True)) is not None:
            self.done["finished when gone"] += block.gone
            block.state = "ready"
            self.model.tidy()
            self.tier.finish(block.entry)

    def undo(self) -> None:
        if (block := self.some("filling", gone=True)) is None:
            return
        behind = set() if block.gone else {block.key, *self.model.all_behind(block.key)}
        block.state = "ready"
        self.model.forget_all(behind)
        dropped = self.tier.undo(block.entry)
        assert {entry.key for entry in dropped} == behind and len(dropped) == len(behind)
        assert not dropped or dropped[0] is block.entry
        self.done["cascades"] += len(dropped) > 1

    def pin(self) -> None:
        if (block := self.some("ready")) is not None:
            self.tier.pin(block.entry)
            block.readers += 1
            self.loads.append(block)

    def unpin(self) -> None:
        if self.loads:
            block = self.loads.pop(self.random.randrange(len(self.loads)))
            self.done["let go when gone"] += block.gone
            block.readers -= 1
            self.model.blocks.remove(block)  # it was used now
            self.model.blocks.append(block)
            self.model.tidy()
            self.tier.unpin(block.entry)

    def drop(self) -> None:
        if (block := self.some("waiting", "filling", "ready")) is not None:
            self.model.forget(block)
            self.tier.drop(block.entry)
            self.tier.drop(block.entry)  # once is enough

    def drop_with_all_behind(self) -> None:
        if (block := self.some("waiting", "filling", "ready")) is not None:
            keys = {block.key, *self.model.all_behind(block.key)}
            self.model.forget_all(keys)
            dropped = self.tier.drop_with_all_behind(block.entry)
            assert dropped[0] is block.entry and {entry.key for entry in dropped} == keys
            assert len(dropped) == len(keys)

    def drop_behind(self) -> None:
        key = str(self.random.randrange(_NAMES)).encode()  # wherever that lies
        keys = self.model.all_behind(key)
        self.model.forget_all(keys)
        assert {entry.key for entry in self.tier.drop_behind(key)} == keys

    def clear(self) -> None:
        if not self.random.randrange(6):
            keys = {block.key for block in self.model.there()}
            self.model.forget_all(keys)
            assert {entry.key for entry in self.tier.clear()} == keys

    def compare(self) -> None:
        tier, model = self.tier, self.model
        tier.check()
        there = model.there()
        assert len(tier) == len(there) and set(tier) == {block.entry for block in there}
        for number in range(_NAMES):
            key = str(number).encode()
            block = next((block for block in there if block.key == key), None)
            assert tier.get(key) is (block.entry if block is not None else None)
            assert tier.find(key) is (block.entry if block is not None and block.state == "ready" else None)
        for block in model.blocks:
            entry = block.entry
            seen = entry.state.value, entry.readers, entry.gone, entry.busy
            assert seen == (block.state, block.readers, block.gone, block.busy)
        slots = [block.entry.slot for block in model.blocks]
        assert len(set(slots)) == len(slots) and all(0 <= slot < model.capacity for slot in slots)
        assert tier.free == model.capacity - len(model.blocks)
        assert tier.filling == sum(block.state == "filling" for block in model.blocks)
        assert tier.pinned == sum(block.readers > 0 for block in model.blocks)


@pytest.mark.parametrize("capacity", [1, 2, 3, 5, 8, 20])
def test_random_calls_agree_with_a_list_that_is_scanned(capacity: int, seed: int) -> None:
    play = _Play(capacity, f"{seed} {capacity}")
    for _ in range(_STEPS):
        play.step()
    wanted = {"begun", "finished when gone", "let go when gone"} | ({"pushed out"} if capacity < _NAMES else set())
    wanted |= ({"cascades"} if capacity > 1 else set()) | ({"full"} if capacity <= 5 else set())
    assert wanted <= (+play.done).keys(), play.done


def test_many_more_entries_than_leave_cost_no_more_than_the_list(seed: int) -> None:
    """The order is a heap with outdated items in it: it is cleaned up, and nobody is lost in that."""
    draw, tier = random.Random(seed), Tier("host", 100)
    kept = [_filled(tier, str(n)) for n in range(100)]
    for _ in range(3000):
        entry = draw.choice(kept)
        tier.pin(entry)
        tier.unpin(entry)
        kept.remove(entry)  # it is the most recent one now
        kept.append(entry)
    assert len(tier._order) <= 3 * len(tier) + 100
    tier.check()
    for n in range(100):
        assert tier.begin(f"new {n}".encode(), None, 0)[1] is kept[n]


# -- one sentence each ------------------------------------------------------------------------------------


def _filled(tier: Tier, key: str, parent: str | None = None) -> Entry:
    entry, _ = tier.begin(key.encode(), parent.encode() if parent is not None else None, 0)
    assert entry is not None
    tier.start(entry)
    tier.finish(entry)
    return entry


@pytest.mark.parametrize("bad", [0, -1, True, 1.5, "8", None, MAX_BLOCKS + 1])
def test_bad_capacity(bad: Any) -> None:
    with pytest.raises(OptionError, match="'host'"):
        Tier("host", bad)


def test_slots_that_were_never_used_cost_nothing() -> None:
    tier = Tier("host", MAX_BLOCKS)
    assert tier.free == MAX_BLOCKS
    assert _filled(tier, "a").slot == 0
    assert tier.free == MAX_BLOCKS - 1


def test_a_block_is_found_from_the_end_of_its_copy_on() -> None:
    tier = Tier("host", 2)
    entry, _ = tier.begin(b"a", None, 7)
    assert entry is not None and tier.find(b"a") is None and tier.get(b"a") is entry
    tier.start(entry)
    assert tier.find(b"a") is None and tier.filling == 1
    tier.finish(entry)
    assert tier.find(b"a") is entry and tier.filling == 0


def test_a_parent_stays_as_long_as_a_child_hangs_from_it() -> None:
    tier = Tier("host", 3)
    parent, child, other = _filled(tier, "a"), _filled(tier, "ab", "a"), _filled(tier, "c")
    assert [tier.begin(key, None, 0)[1] for key in (b"d", b"e", b"f")] == [child, parent, other]


def test_what_is_read_or_written_does_not_leave() -> None:
    tier = Tier("host", 2)
    read = _filled(tier, "a")
    written, _ = tier.begin(b"b", None, 0)
    assert written is not None
    tier.pin(read)
    tier.start(written)
    assert tier.begin(b"c", None, 0) == (None, None)
    tier.unpin(read)
    assert tier.begin(b"c", None, 0)[1] is read


def test_a_slot_is_free_when_its_last_reader_has_gone() -> None:
    tier = Tier("host", 1)
    entry = _filled(tier, "a")
    tier.pin(entry)
    tier.pin(entry)
    tier.drop(entry)
    assert (len(tier), tier.free, tier.pinned) == (0, 0, 1)
    assert tier.begin(b"b", None, 0) == (None, None)
    tier.unpin(entry)
    assert tier.free == 0
    tier.unpin(entry)
    assert (tier.free, tier.pinned) == (1, 0)
    with pytest.raises(InvariantError, match="unpinned more often than pinned"):
        tier.unpin(entry)


def test_the_same_key_may_come_again_while_its_old_slot_is_read() -> None:
    tier = Tier("host", 2)
    old = _filled(tier, "a")
    tier.pin(old)
    tier.drop(old)
    new = _filled(tier, "a")
    assert new.slot != old.slot and tier.find(b"a") is new
    tier.unpin(old)
    tier.check()
    assert tier.find(b"a") is new and tier.free == 1


# -- what `check` is there to see -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (lambda tier: tier._free.append(0), "owned twice"),
        (lambda tier: tier._entries.pop(b"ab"), "slots of the host tier are lost"),
        (lambda tier: setattr(tier.get(b"a"), "readers", -1), "not what its key stands for"),
        (lambda tier: setattr(tier.get(b"a"), "gone", True), "not what its key stands for"),
        (lambda tier: tier.pin(tier.get(b"c")), "loaded from before it is written"),
        (lambda tier: tier._children.clear(), "does not hang from its parent"),
        (lambda tier: tier._children.update({b"x": {b"c": None}}), "has lost children"),
        (lambda tier: tier._order.clear(), "could leave and is not in the order"),
    ],
)
def test_check_finds_each_fault(fault: Any, says: str) -> None:
    tier = Tier("host", 4)
    _filled(tier, "a")
    _filled(tier, "ab", "a")
    tier.begin(b"c", None, 3)
    tier.check()
    fault(tier)
    with pytest.raises(InvariantError, match=says):
        tier.check()


def test_check_finds_a_slot_that_is_held_for_nobody() -> None:
    tier = Tier("host", 1)
    entry = _filled(tier, "a")
    tier.pin(entry)
    tier.drop(entry)
    entry.readers = 0
    with pytest.raises(InvariantError, match="holds its slot for nobody"):
        tier.check()
