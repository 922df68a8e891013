"""One cache under test with everything that watches it: the operations.

Every operation goes through `do`, which logs it, performs it with the answers it must give, and
then has everything checked (`checks.py`). Requests and pins are named by handles, so that a log can
be played again on a fresh world, whole or without the calls that must leave no trace.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from prefixcache import NoSpace, RequestError
from prefixcache.blocks.tier import State
from prefixcache.scenario.oracle import KVOracle
from tests.model.checks import Checks
from tests.model.known import Operation, Sequence, Unsettled, told, writer_of
from tests.model.mirror import Mirror, Prefix
from tests.model.prompts import Prompt, Unit, scope_key
from tests.model.reference import BlockReference, Refused
from tests.model.setup import Clock, Setup


@dataclass
class World:
    setup: Setup
    watched: bool = True  # False: perform only, for a comparison of two runs
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        self.cache = self.setup.cache(self.clock)
        self.generation = 0
        self.live: dict[int, Sequence] = {}
        self.preempted: dict[int, Sequence] = {}
        self.unsettled: dict[int, Unsettled] = {}
        self.pins: dict[int, tuple[Prompt, Any]] = {}
        self.spills: dict[int, Any] = {}
        self.history: dict[Prompt, None] = {}
        self.subjects: list[Sequence] = []  # whose content the current operation may publish
        self.log: list[Operation] = []
        self.traceless: set[int] = set()  # places in the log that must not have changed anything
        self.handles = 0
        self.failed = False
        self.lossless = True  # until the first eviction, reset or weight update
        self.stored_ever: set[tuple[int, tuple[str, str, str], tuple[Unit, ...]]] = set()
        self.written: list[Prefix] = []  # what was computed since something was announced
        self.oracle = KVOracle(self.setup.block_size)
        self.mirror = Mirror(self.setup.block_size, self._resolve, self.setup.looks_ahead)
        self.events_seen: list[Any] = []
        self.reference = (
            BlockReference(
                self.setup.block_size, self.setup.capacity, self.generation, "must_fit" in self.setup.options
            )
            if self.watched and self.setup.plain
            else None
        )
        self.checks = Checks(self)
        self.checks.after()

    def do(self, name: str, **arguments: Any) -> Any:
        """Perform one operation, then check everything. A failure carries all that led to it."""
        self.log.append((name, arguments))
        self.subjects = []
        if (handle := arguments.get("handle")) in self.live:
            self.subjects = [self.live[handle]]
        try:
            result = getattr(self, f"_{name}")(**arguments)
            self.checks.after()
        except Exception as error:
            self.failed = True
            error.add_note(told(self.setup, self.log))
            raise
        return result

    def knows(self, name: str, handle: int | None) -> bool:
        """Whether the operation has what it is about: a log that was cut may have lost it."""
        others = {"resume": self.preempted, "settled": self.unsettled, "unpin": self.pins, "spilled": self.spills}
        return handle is None or name in ("open", "pin", "spill") or handle in others.get(name, self.live)

    def transit(self) -> set[bytes]:
        """Keys of blocks that have left the device and are not yet in the tier below: found in neither."""
        tiers = self.cache._core.tiers
        return {entry.key for entry in tiers.tier if entry.state is not State.READY} if tiers is not None else set()

    # Calls that may be refused

    def _claim(self, call: Callable[[], Any], model: Callable[[BlockReference], Any]) -> Any:
        """The result of the call, or None when it was refused; a refusal must leave no trace."""
        before = self.checks.snapshot()
        self.copies_first = False
        try:
            result = call()
        except NoSpace as refusal:
            self.traceless.add(len(self.log) - 1)
            self.checks.same(before, f"refused with {refusal}")
            assert refusal.need > refusal.available, f"{refusal}: there was room"
            if self.reference is not None:
                try:
                    model(self.reference)
                except Refused as expected:
                    assert (refusal.need, refusal.available) == (expected.need, expected.available)
                else:
                    raise AssertionError(f"{refusal}, but the reference found room") from refusal
            return None
        except RequestError as refusal:
            # With a tier below, blocks may bring copies along: not among those that are being made.
            assert self.setup.host and self.subjects[0].request.copies, refusal
            self.traceless.add(len(self.log) - 1)
            self.checks.same(before, f"refused with {refusal}")
            self.copies_first = True
            return None
        if self.reference is not None:
            self.expected = model(self.reference)  # Refused here: the cache admitted what cannot fit
        return result

    def _open(
        self,
        handle: int,
        prompt: Prompt,
        reserve: int | None = None,
        read: bool = True,
        store: bool = True,
        **retention: Any,
    ) -> Any:
        hit = self.checks.hit(prompt) if self.watched else None
        # Room for less than the whole prompt may leave room for a copy that the probe had to do without.
        told = self.checks.longest(prompt) if self.watched and read and reserve is not None else 0
        books = self.cache.books()
        request = self._claim(
            lambda: self.cache.open(**prompt.arguments(), reserve=reserve, read=read, store=store, **retention),
            lambda model: model.open(handle, prompt.scope_key, prompt.units, read=read, store=store, reserve=reserve),
        )
        if hit is not None and read and reserve is None:
            refused = hit.need > books.free + books.idle
            assert refused == (request is None), f"probe said need {hit.need}, {books}, refused: {request is None}"
        if request is None:
            return None
        sequence = Sequence(request, prompt, self.generation, store, read, computed=request.cached)
        self.live[handle] = sequence
        self.history[prompt] = None
        if hit is None:
            return request
        self._admitted(sequence, hit.cached if read else 0, told)
        if self.setup.host and read and reserve is not None and request.cached < hit.cached:
            after = self.cache.books()  # what lies below and is not asked for is loaded as far as there is room
            assert after.free + after.idle == 0 or request.cached >= reserve, f"{hit}, cached {request.cached}, {after}"
        if read and reserve is None:
            after = self.cache.books()
            drawn = books.free + books.idle - after.free - after.idle
            assert drawn == hit.need, f"admission drew {drawn} blocks, probe said {hit.need}"
        return request

    def _admitted(self, sequence: Sequence, promised: int, told: int) -> None:
        request, length = sequence.request, len(sequence.prompt.tokens)
        allowed = {promised}
        if self.setup.host:  # the room that a request asks for may be less than what could be loaded
            allowed |= set(range(promised + 1))
        if self.setup.partial:
            allowed |= {promised - promised % self.setup.block_size, *range(promised, told + 1)}
        assert request.cached in allowed, f"cached {request.cached}, a probe just said {promised}"
        if self.reference is not None:
            assert request.cached == self.expected
        assert request.length == request.prompt_length == length
        assert request.computed_tokens == request.cached

    def _open_batch(self, handles: tuple[int, ...], prompts: tuple[Prompt, ...]) -> None:
        """Several admissions as one claim: each as if the refused ones had not been there."""
        told = [self.checks.longest(prompt) for prompt in prompts] if self.watched else []
        results = self.cache.open_batch([prompt.arguments() for prompt in prompts])
        for handle, prompt, result in zip(handles, prompts, results, strict=True):
            if isinstance(result, NoSpace):
                assert result.need > result.available, f"{result}: there was room"
                continue
            self.live[handle] = Sequence(result, prompt, self.generation, True, True, result.cached)
            self.history[prompt] = None
        cached = [None if isinstance(result, NoSpace) else result.cached for result in results]
        for hit, most in zip(cached, told, strict=False):
            assert hit is None or hit <= most, f"cached {hit}, by the events {most}"
        if self.reference is not None:
            batch = [(h, p.scope_key, p.units) for h, p in zip(handles, prompts, strict=True)]
            expected = self.reference.open_batch(batch)
            assert cached == expected, f"cached {cached}, the reference {expected}"

    def _append(self, handle: int, tokens: tuple[int, ...]) -> bool:
        sequence = self.live[handle]
        longer = sequence.prompt.then(*tokens)
        done = self._claim(
            lambda: [sequence.request.append(tokens[0] if len(tokens) == 1 else list(tokens))],
            lambda model: model.append(handle, list(longer.units[-len(tokens) :])),
        )
        if done is None and self.copies_first:
            return False
        if done is None:
            sequence.owed = tokens  # for resume: the one thing that a refusal leaves
            self.traceless.discard(len(self.log) - 1)
            return False
        sequence.prompt, sequence.owed = longer, ()
        self.history[longer] = None
        return True

    def _reserve(self, handle: int, length: int) -> bool:
        sequence = self.live[handle]
        done = self._claim(lambda: [sequence.request.reserve(length)], lambda model: model.reserve(handle, length))
        return done is not None

    def _rewind(self, handle: int, length: int) -> bool:
        sequence = self.live[handle]
        done = self._claim(lambda: [sequence.request.rewind(length)], lambda model: model.rewind(handle, length))
        if done is None:
            return False
        if length == len(sequence.prompt.tokens):
            return True
        sequence.owed = ()
        sequence.prompt = sequence.prompt.cut(length)
        # A draft model's KV of the last kept token was made for the token behind it, which is forgotten.
        sequence.computed = min(sequence.computed, length - self.setup.looks_ahead)
        return True

    def _fork(self, handle: int, child: int) -> bool:
        sequence = self.live[handle]
        request = self._claim(lambda: sequence.request.fork(), lambda model: model.fork(handle, child))
        if request is None:
            return False
        self.live[child] = replace(sequence, request=request, owed=())
        return True

    # Computing

    def _copied(self, handle: int) -> None:
        request = self.live[handle].request
        self.oracle.copy(request.copies)
        request.copied()
        assert request.copies == ()
        if self.reference is not None:
            self.reference.copied(handle)

    def _computed(self, handle: int, length: int) -> bool:
        """KV of positions up to `length` is written and announced.

        Refused while copies into its own table wait, or out of a block that it has yet to write; it may
        be refused while any copy out of its table waits.
        """
        sequence = self.live[handle]
        table = sequence.request.block_table.tolist()
        copies = [copy for other in self.live.values() for copy in other.request.copies]
        copies += [copy for ended in self.unsettled.values() for copy in ended.copies]
        waiting = {copy.source for copy in copies if copy.source_tier == copy.target_tier}
        before = self.checks.snapshot()
        try:
            sequence.request.computed(length)
        except RequestError as error:
            assert sequence.request.copies or waiting.intersection(table), error
            self.checks.same(before, f"computed refused with {error}")
            self.traceless.add(len(self.log) - 1)
            return False
        unwritten = table[sequence.computed // self.setup.block_size :]
        spoilt = sequence.request.copies or waiting.intersection(unwritten)
        assert not spoilt, "computed went through while a copy waits that its writing would spoil"
        self._written(sequence, table, length)
        sequence.computed = length
        if sequence.store and sequence.generation == self.generation:
            self._may_publish(sequence)
            scope, units = sequence.prompt.scope_key, sequence.prompt.units
            self.stored_ever.update((self.generation, scope, units[:end]) for end in range(1, length + 1))
        if self.reference is not None:
            self.reference.computed(handle, length)
        return True

    def _may_publish(self, sequence: Sequence) -> None:
        units = sequence.prompt.units[: sequence.computed]
        self.written.append((sequence.prompt.scope_key, sequence.generation, units))

    def _written(self, sequence: Sequence, table: list[int], length: int) -> None:
        """The KV that was announced went to the table as it was before; moved blocks hold the same."""
        self.oracle.write(replace(writer_of(sequence.request), block_table=tuple(table)), sequence.computed, length)

    # The release path

    def _end(self, handle: int, how: str, in_flight: bool = False, twice: bool = False) -> None:
        sequence = self.live.pop(handle)
        request = sequence.request
        late = writer_of(request)
        copies = request.copies
        if sequence.store and sequence.generation == self.generation:
            self._may_publish(sequence)  # what was withheld until now
        stop = min(request.length, len(late.block_table) * self.setup.block_size)
        for _ in range(1 + twice):  # the release path is idempotent
            getattr(request, how)(in_flight=in_flight)
        if in_flight:
            self.unsettled[handle] = Unsettled(sequence, late, copies, sequence.computed, stop)
        if how == "preempt":
            self.preempted[handle] = sequence
        if self.reference is not None:
            self.reference.close(handle, in_flight=in_flight)

    def _settled(self, handle: int) -> None:
        """The last step of an ended request ends, having copied and written where it was told to."""
        unsettled = self.unsettled.pop(handle)
        self.oracle.copy(copy for copy in unsettled.copies if copy.target_tier == "device")
        self.oracle.write(unsettled.late, unsettled.start, unsettled.stop)
        unsettled.sequence.request.settled()
        if self.reference is not None:
            self.reference.settled(handle)

    def _resume(self, handle: int, child: int, append: tuple[int, ...] = ()) -> bool:
        old = self.preempted[handle]
        prompt = old.prompt.then(*(append or old.owed))
        hit = self.checks.hit(prompt) if self.watched else None
        request = self._claim(
            lambda: old.request.resume(append=list(append)) if append else old.request.resume(),
            lambda model: model.open(
                child, prompt.scope_key, prompt.units, read=old.read, store=old.store, reserve=None
            ),
        )
        if request is None:
            return False
        del self.preempted[handle]
        sequence = Sequence(request, prompt, self.generation, old.store, old.read, request.cached)
        if hit is not None:
            assert request.length == len(prompt.tokens)
            assert request.cached <= (hit.cached if old.read else 0)
        self.live[child] = sequence
        self.history[prompt] = None
        return True

    # What the owner of the cache does

    def _probe(self, prompt: Prompt) -> None:
        before = self.checks.snapshot()
        if self.watched:
            self.checks.hit(prompt)
        else:
            self.cache.probe(**prompt.arguments())
        self.checks.same(before, "a probe")
        self.traceless.add(len(self.log) - 1)

    def _pin(self, handle: int, prompt: Prompt) -> None:
        arguments = prompt.arguments()
        pin = self.cache.pin(arguments["tokens"], arguments["scope"])  # by tokens alone: no media
        prompt = replace(prompt, pictures=())
        self.pins[handle] = (prompt, pin)
        if self.reference is not None:
            expected = self.reference.pin(handle, prompt.scope_key, prompt.units)
            assert len(pin.blocks) == expected, f"pinned {pin.blocks}, the reference {expected} blocks"

    def _unpin(self, handle: int, twice: bool = False) -> None:
        _, pin = self.pins.pop(handle)
        for _ in range(1 + twice):
            pin.release()
        if self.reference is not None:
            self.reference.close(handle)

    def _spill(self, handle: int) -> None:
        self.spills[handle] = self.cache.spill()

    def _spilled(self, handle: int, done: bool, twice: bool = False) -> None:
        spills = self.spills.pop(handle)
        if done:
            self.oracle.copy(spills.copies)
        for _ in range(1 + twice):
            spills.copied() if done else spills.abort()
        assert spills.copies == ()

    def _evict(self, count: int) -> None:
        before = self.cache.books()
        done = self.cache.evict(count)
        after = self.cache.books()
        assert done == after.free - before.free == before.idle - after.idle, f"{done}: {before} {after}"
        if self.setup.options.get("evict_unit", "tail") == "tail":
            assert done == min(count, before.idle), f"evicted {done} of {count}, idle were {before.idle}"
        if self.reference is not None:
            assert done == self.reference.evict(count)

    def _reset(self) -> None:
        before = self.checks.snapshot()
        done = self.cache.reset()
        if self.reference is not None:
            assert done == self.reference.reset()
        if done:
            assert self.cache.books().free == self.setup.capacity
            self.lossless = False
        else:
            self.checks.same(before, "a reset that did not happen")

    def _new_generation(self) -> None:
        self.generation = self.cache.new_generation()
        self.lossless = False
        if self.reference is not None:
            assert self.generation == self.reference.new_generation()

    def _end_step(self) -> None:
        self.subjects = list(self.live.values())
        self.cache.end_step()

    def _advance(self, seconds: int) -> None:
        self.clock.now += seconds

    # The end

    def finish(self) -> None:
        """End everything, evict everything: all blocks are free again."""
        for handle in list(self.live):
            self.do("end", handle=handle, how="abort")
        for handle in list(self.unsettled):
            self.do("settled", handle=handle)
        for handle in list(self.pins):
            self.do("unpin", handle=handle)
        for handle in list(self.spills):
            self.do("spilled", handle=handle, done=bool(handle % 2))
        while self.cache.books().idle:
            self.do("evict", count=1)
        assert self.cache.books().free == self.setup.capacity
        if self.setup.host:
            below = self.cache.books(tier="host")
            assert (below.pinned, below.quarantined) == (0, 0), below
            self.do("reset")
            assert self.cache.books(tier="host").free == self.setup.host
        assert not self.mirror.entries

    def _resolve(self, scope: Any, before: tuple[Unit, ...], tokens: tuple[int, ...]) -> tuple[Unit, ...]:
        """The units behind an event: of a request of this operation, within what it has computed.

        Where a step announces at its end what was computed in it, it may be of any request.
        """
        end = len(before) + len(tokens)
        owner = (scope_key(scope), scope.generation)
        written = [(s.prompt.scope_key, s.generation, s.prompt.units[: s.computed]) for s in self.subjects if s.store]
        for key, generation, units in self.written if self.setup.delayed else written:
            found = units[len(before) : end]
            fits = units[: len(before)] == before and tuple(unit[0] for unit in found) == tokens
            known = (*owner, units[:end]) in self.mirror.prefixes() and not self.setup.looks_ahead
            if (key, generation) == owner and fits and not known:
                return found
        raise AssertionError(f"{tokens} behind {len(before)} units stored, computed by no request of this call")
