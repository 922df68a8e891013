"""One cache under test with everything that watches it: what must hold after every operation."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Any

from prefixcache import Stored
from prefixcache.blocks.tier import Entry, State
from tests.model.prompts import Prompt, Unit

if TYPE_CHECKING:
    from tests.model.known import Sequence
    from tests.model.world import World

FRESH = 4_000_000_000  # a token that no prompt of these tests holds: it ends every match
_PROBED = 12  # remembered prompts that are probed after each operation


class Checks:
    def __init__(self, world: World) -> None:
        self.world = world
        self._round = 0
        self._kept: dict[Entry, tuple[int | None, ...]] = {}  # what entries of the tier below held when they came

    # What is expected

    def longest(self, prompt: Prompt) -> int:
        """The hit of a prompt by what the events said, and by nothing else."""
        world, most = self.world, max(0, len(prompt.units) - 1)
        stored = [
            (_common(units, prompt.units), tier)
            for (scope, generation, units), tier in world.mirror.reachable(world.transit())
            if scope == prompt.scope_key and generation == world.generation
        ]
        best = max((self._within(most, *found) for found in stored), default=0)
        if world.setup.drops and best:  # the last unit is left to a draft model, whatever the shorter hit lies in
            best = max(self._within(min(best, common) - 1, common, tier) for common, tier in stored)
        return best

    def _within(self, limit: int, common: int, tier: str) -> int:
        """What is reusable of the first `limit` tokens where so many are stored. Below the device blocks are whole."""
        shared = min(limit, common)
        inside = self.world.setup.partial and tier == "device"
        return shared if inside else _full(shared, self.world.setup.block_size)

    def naive(self, prompt: Prompt) -> int:
        """The hit of a prompt if nothing had ever been evicted: all that was ever computed, by tokens."""
        world, units = self.world, prompt.units
        ends = range(len(units) - 1, 0, -1)
        return next((e for e in ends if (world.generation, prompt.scope_key, units[:e]) in world.stored_ever), 0)

    def hit(self, prompt: Prompt) -> Any:
        """A probe, with all that a probe must say."""
        world = self.world
        hit = world.cache.probe(**prompt.arguments())
        naive, size = self.naive(prompt), world.setup.block_size
        assert 0 <= hit.cached <= naive, f"probe says {hit.cached}, only {naive} were ever computed"
        told = self.longest(prompt)
        # Under colliding keys a search may step over a block of this step: right content, shown too early.
        early = world.setup.collides and world.setup.delayed
        hidden = world.setup.hides and (hit.cached < told or early)
        if not (hit.cached == told or self._no_room(hit, told) or hidden):
            raise AssertionError(f"{prompt}: {hit}, by the events {told}")
        if world.lossless and world.setup.exact:
            assert hit.cached == _full(naive, size), f"{prompt}: {hit}, nothing was evicted and naive says {naive}"
        if world.reference is not None and prompt.tokens:
            matched = world.reference.match(prompt.scope_key, prompt.units)
            assert hit.cached == len(matched) * size
            assert hit.need == world.reference.need(prompt.scope_key, prompt.units), f"{prompt}: {hit}"
        return hit

    def _no_room(self, hit: Any, told: int) -> bool:
        """Whether a hit ends at the block boundary because the copy of the rest would find no block."""
        books, size = self.world.cache.books(), self.world.setup.block_size
        return self.world.setup.partial and hit.cached == told - told % size and hit.need >= books.free + books.idle

    # What must hold

    def after(self) -> None:
        world = self.world
        if not world.watched:
            world.events_seen += world.cache.take_events()[2]
            return
        world.cache.check()
        epoch, sequence, events = world.cache.take_events()
        world.mirror.apply(epoch, sequence, events)
        if any(isinstance(event, Stored) for event in events):
            world.written.clear()
        if world.mirror.removed or (world.setup.host and world.cache.stats().evicted_blocks):
            world.lossless = False
        self._books()
        self._tables()
        self._memory()
        self._published()
        self._meters()
        self._reference()
        self._reachable()

    def _books(self) -> None:
        world = self.world
        books = world.cache.books()
        numbers = _numbers(books)
        assert min(numbers) >= 0, books
        assert sum(numbers) == world.setup.capacity, f"{books} do not add up to {world.setup.capacity}"
        if world.setup.host:
            below = _numbers(world.cache.books(tier="host"))
            assert min(below) >= 0 and sum(below) == world.setup.host, f"{below} do not add up to {world.setup.host}"
        if world.live or world.pins or world.spills or any(unsettled.copies for unsettled in world.unsettled.values()):
            return
        assert books.pinned == 0, f"{books}: nobody is left to pin"
        assert world.unsettled or books.quarantined == 0, f"{books}: everything is settled"

    def _tables(self) -> None:
        """A block that a request has yet to write stands in its table alone, and nobody copies from it."""
        world, size = self.world, self.world.setup.block_size
        owners: Counter[int] = Counter()
        for sequence in world.live.values():
            table = sequence.request.block_table.tolist()
            assert len(set(table)) == len(table), f"a block stands twice in {table}"
            assert all(0 <= block < world.setup.capacity for block in table), table
            owners.update(table)
        for unsettled in world.unsettled.values():
            owners.update(unsettled.late.block_table[unsettled.start // size :])
        for sequence in world.live.values():
            table = sequence.request.block_table.tolist()
            for block in table[sequence.computed // size :]:
                assert owners[block] == 1, f"block {block} of {table} is still to be written, and shared"

    def _memory(self) -> None:
        """Every live request finds the KV of its own prefix in its slots."""
        for sequence in self.world.live.values():
            request = sequence.request
            assert request.computed_tokens == sequence.computed
            assert tuple(request.tokens) == sequence.prompt.tokens
            if not request.copies:
                self.world.oracle.verify(request, sequence.computed)
            for copy in request.copies:
                if copy.target_tier == "device":
                    self.world.oracle.verify_source(request, copy, sequence.computed)
        self._below()

    def _below(self) -> None:
        """What lies in the tier below is what the device block held that it came from."""
        tiers = self.world.cache._core.tiers
        for entry in tiers.tier if tiers is not None else ():
            where = (entry.slot, "host") if entry.state is State.READY else (entry.source, "device")
            held = tuple(self.world.oracle._slots(0, *where))
            assert self._kept.setdefault(entry, held) == held, f"{entry} should hold {self._kept[entry]}, holds {held}"

    def _published(self) -> None:
        """What a request computed is findable as long as it holds it; never more than it computed."""
        world = self.world
        size, findable = world.setup.block_size, world.mirror.prefixes()
        for sequence in world.live.values():
            if not sequence.store or sequence.generation != world.generation or world.setup.hides:
                continue
            if any(copy.source_tier != "device" for copy in sequence.request.copies):
                continue  # what it is about to load is its own, and is not held by it before it is there
            for end in range(size, _visible(world, sequence) + 1, size):
                prefix = (sequence.prompt.scope_key, sequence.generation, sequence.prompt.units[:end])
                assert prefix in findable, f"{prefix} is computed and held, and not findable"
        for scope, generation, units in findable:
            assert (generation, scope, units) in world.stored_ever, f"{units} is findable, never computed"
            assert generation == world.generation, f"{units} of generation {generation} is still findable"

    def _meters(self) -> None:
        stats = self.world.cache.stats()
        assert 0 <= stats.hits <= stats.queries, stats
        assert 0 <= stats.cached_tokens <= stats.prompt_tokens, stats

    def _reference(self) -> None:
        world, model = self.world, self.world.reference
        if model is None:
            return
        assert _numbers(world.cache.books()) == model.books(), f"{world.cache.books()}, reference {model.books()}"
        assert world.mirror.prefixes() == model.prefixes()
        assert Counter(world.mirror.removed) == Counter(model.removed), "other victims than the reference"
        model.removed.clear()
        for handle, sequence in world.live.items():
            assert len(sequence.request.block_table) == len(model.holders[handle].table)

    def _reachable(self) -> None:
        """Probes reach what the mirror holds (each leaf), and nothing else (remembered prompts)."""
        world = self.world
        by_key = {}
        for prompt in world.history:
            by_key[prompt.scope_key, prompt.units] = prompt
        for scope, _, units in [] if world.setup.hides else world.mirror.leaves(world.transit()):
            owner = next(p for (s, u), p in by_key.items() if s == scope and u[: len(units)] == units)
            prompt = owner.cut(len(units)).then(FRESH)
            hit, expected = world.cache.probe(**prompt.arguments()), self.longest(prompt)
            reached = hit.cached == expected or self._no_room(hit, expected)
            assert reached, f"{units} was stored and not removed, a probe reaches {hit.cached}"
        self._round += 1
        start = self._round * _PROBED % max(1, len(by_key))
        for prompt in islice(by_key.values(), start, start + _PROBED):
            self.hit(prompt.then(FRESH))

    # Traces

    def snapshot(self) -> dict[str, Any]:
        world = self.world
        epoch, sequence, events = world.cache.take_events()
        assert not events, f"{events} came between two operations"
        return {
            "books": world.cache.books(),
            "stats": world.cache.stats(),
            "next event": (epoch, sequence),
            "tables": {handle: tuple(s.request.block_table.tolist()) for handle, s in world.live.items()},
            "lengths": {h: (s.request.length, s.request.computed_tokens) for h, s in world.live.items()},
            "copies": {handle: s.request.copies for handle, s in world.live.items()},
            "states": {handle: s.request.state for handle, s in world.live.items()},
            "below": world.cache.books(tier="host") if world.setup.host else None,
            "transit": world.transit(),
        }

    def same(self, before: dict[str, Any], what: str) -> None:
        after = self.snapshot()
        changed = {name: (before[name], after[name]) for name in before if before[name] != after[name]}
        assert not changed, f"{what} left a trace: {changed}"


def _numbers(books: Any) -> tuple[int, int, int, int]:
    return books.free, books.idle, books.pinned, books.quarantined


def _visible(world: World, sequence: Sequence) -> int:
    """Computed positions that must be findable."""
    withheld = not world.setup.options.get("store_last", True)
    return sequence.computed - withheld


def _full(length: int, size: int) -> int:
    return max(0, length - length % size)


def _common(left: tuple[Unit, ...], right: tuple[Unit, ...]) -> int:
    size = min(len(left), len(right))
    return next((place for place in range(size) if left[place] != right[place]), size)
