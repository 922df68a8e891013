"""A cache with attention groups, the memory of its layers as stubs, and what each layer would read.

Safety is recomputed from first principles and from nothing else: before a request computes position p, every layer
looks at the slots that position p reads, and each must hold what was computed from exactly this prefix. Expected hits
are computed from the events alone: what a consumer of them believes to be cached.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from prefixcache import Full, PrefixCache, Recurrent, Request, Scope, Stored, Window
from prefixcache.designs.hash_chain import HashChainDesign
from prefixcache.events import Cleared, Removed
from tests.groups.oracle import Oracle

Prefix = tuple[Any, ...]
Slot = tuple[int, int, int]  # group, block, offset in it


class InFlight(NamedTuple):
    """A request released while a step of it is under way: what the step has yet to write, and to copy from."""

    request: Request
    writes: list[Slot]
    sources: dict[Slot, Prefix | None]


@dataclass
class World:
    """One cache, its live requests, and one stub memory per group.

    A slot of full or window memory holds the prefix that ends at its position; a state block the prefix it was
    made of. Copies are made as late as the contract allows.
    """

    cache: PrefixCache
    rng: random.Random
    live: list[Request] = field(default_factory=list)
    resting: list[Request] = field(default_factory=list)
    in_flight: list[InFlight] = field(default_factory=list)
    memory: dict[Slot, Prefix] = field(default_factory=dict)
    mirror: dict[int, dict[bytes, Prefix]] = field(default_factory=dict)
    hits: int = 0
    cuts: int = 0
    inside: int = 0
    unfound: int = 0

    def __post_init__(self) -> None:
        self.mirror = {group: {} for group in range(len(self.cache.groups))}
        self.names: dict[bytes, Prefix] = {}

    # -- the layers ---------------------------------------------------------------------------------

    def block_size(self, group: int) -> int:
        kind = self.cache.groups[group]
        return (kind.block_size if isinstance(kind, Window) else None) or self.cache.block_size

    def slot(self, request: Request, group: int, position: int) -> Slot:
        size = self.block_size(group)
        block = int(request.tables[group][position // size])
        assert block >= 0, f"group {group}: position {position} is written or read, and has no block"
        return group, block, position % size

    def copy(self, request: Request) -> None:
        for copy in request.copies:
            slots = 1 if isinstance(self.cache.groups[copy.group], Recurrent) else copy.tokens
            for offset in range(slots):
                target = (copy.group, copy.target, offset)
                self.memory.pop(target, None)
                if (copy.group, copy.source, offset) in self.memory:
                    self.memory[target] = self.memory[copy.group, copy.source, offset]
        request.copied()

    def read(self, request: Request, position: int) -> None:
        """Position `position` is about to be computed: each layer reads what it needs."""
        tokens = request.tokens.tolist()
        for group, kind in enumerate(self.cache.groups):
            if isinstance(kind, Recurrent):
                state = (group, int(request.tables[group][0]), 0)
                assert not position or self.memory.get(state) == (request.scope, *tokens[:position]), "another state"
                continue
            first = max(0, position + 1 - kind.size) if isinstance(kind, Window) else 0
            sinks = min(kind.sinks, position) if isinstance(kind, Window) else 0
            for at in (*range(min(sinks, first)), *range(first, position)):
                found = self.memory.get(self.slot(request, group, at))
                assert found == (request.scope, *tokens[: at + 1]), f"group {group} reads {found} at {at}"

    def write(self, request: Request, begin: int, end: int) -> None:
        tokens = request.tokens.tolist()
        for group, kind in enumerate(self.cache.groups):
            if isinstance(kind, Recurrent):
                self.memory[group, int(request.tables[group][0]), 0] = (request.scope, *tokens[:end])
                continue
            for at in range(begin, end):
                self.memory[self.slot(request, group, at)] = (request.scope, *tokens[: at + 1])

    def compute(self, request: Request, end: int) -> None:
        """One step: late copies, the layers read and write, and the cache is told.

        A request that others have yet to copy from waits until they have.
        """
        self.let_others_copy(request)
        if request.copies:
            self.copy(request)
        begin = request.computed_tokens
        if begin < end:
            self.read(request, begin)
            self.write(request, begin, end)
        request.computed(end)

    def let_others_copy(self, request: Request) -> None:
        """Before a step of this request writes, its blocks are copied by all who have yet to copy out of them."""
        own = {(group, int(block)) for group, table in enumerate(request.tables) for block in table}
        for other in self.live:
            if other is not request and any((copy.group, copy.source) in own for copy in other.copies):
                self.copy(other)
        for late in [late for late in self.in_flight if any(slot[:2] in own for slot in late.sources)]:
            self.settle(late)

    def release_in_flight(self, request: Request, how: Callable[..., None]) -> None:
        """Release it while a step is under way that computes all its known tokens."""
        self.let_others_copy(request)
        writes: list[Slot] = []
        for group, kind in enumerate(self.cache.groups):
            table = request.tables[group]
            if isinstance(kind, Recurrent):
                writes.append((group, int(table[0]), 0))
            else:
                stop = min(request.length, len(table) * self.block_size(group))
                writes += [self.slot(request, group, at) for at in range(request.computed_tokens, stop)]
        sources: dict[Slot, Prefix | None] = {}
        for copy in request.copies:
            for offset in range(copy.tokens):
                writes.append((copy.group, copy.target, offset))
                sources[copy.group, copy.source, offset] = self.memory.get((copy.group, copy.source, offset))
        how(in_flight=True)
        self.in_flight.append(InFlight(request, writes, sources))

    def settle(self, late: InFlight | None = None) -> None:
        """The step of a released request ends: until now it read what it copies, now it has written."""
        late = late or self.in_flight[-1]
        self.in_flight.remove(late)
        request, writes, sources = late
        for slot, held in sources.items():
            assert self.memory.get(slot) == held, f"{slot} was overwritten under a copy in flight"
        for slot in writes:
            self.memory[slot] = ("late",)
        # A request that was resumed and released once more has several steps under way: `settled` is said of all.
        if all(other.request is not request for other in self.in_flight):
            request.settled()

    # -- what a consumer of events believes -------------------------------------------------------------

    def take_events(self) -> None:
        for event in self.cache.take_events()[2]:
            if isinstance(event, Cleared):
                self.mirror = {group: {} for group in self.mirror}
            elif isinstance(event, Stored):
                self._stored(event)
            elif isinstance(event, Removed):
                for key in event.keys:
                    del self.mirror[event.group][key]

    def compare_what_hangs(self) -> None:
        """The mirror of each group beside the tree: all that it has, as far as the tree's block can be found."""
        groups = self.cache._core.groups
        if groups is None:
            return
        findable = self._findable()
        for side in groups.sides:
            fine = side.values.per_block > 1
            keys = list(side.values.keys())
            has = {key for key in keys if findable is None or (key[:-1] if fine else key) in findable}
            self.unfound += len(keys) > len(has)
            told = self.mirror[side.group].keys()
            assert told == has, f"group {side.group}: {len(told - has)} keys told too many, {len(has - told)} too few"

    def _findable(self) -> set[bytes] | None:
        """The keys of the tree's blocks that a prompt can reach; None where it makes none, and can reach all."""
        groups, design = self.cache.groups, self.cache._core.design
        if Full() in groups:
            return set(self.mirror[groups.index(Full())])
        if design.events is None:
            return None
        reached: list[bool] = []
        keys: set[bytes] = set()
        for node in self.cache.outline():
            reached.append(bool(node.blocks) and (node.parent < 0 or reached[node.parent]))
            if reached[-1]:
                keys.update(node.keys)
        return keys - design._unseen.keys if isinstance(design, HashChainDesign) and design._unseen else keys

    def _stored(self, event: Stored) -> None:
        size = self.cache.block_size if isinstance(self.cache.groups[event.group], Recurrent) else None
        size = size or self.block_size(event.group)
        assert size * (len(event.keys) - 1) < len(event.tokens) <= size * len(event.keys)
        before = self._named(event.parent, size) if event.parent is not None else (event.scope,)
        for index, key in enumerate(event.keys):
            piece = event.tokens[index * size : (index + 1) * size]
            prefix = (*before, *piece) if before is not None else None
            assert key not in self.mirror[event.group], "stored twice"
            if prefix is not None:
                assert self.names.setdefault(key, prefix) == prefix, "one key, two prefixes"
            self.mirror[event.group][key] = prefix or ()
            before = prefix

    def _named(self, key: bytes, size: int) -> Prefix | None:
        """The prefix that a key names; of a finer block its place in the tree's block whose key it begins with."""
        home = self.names.get(key[:-1])
        if key in self.names or home is None:
            return self.names.get(key)
        start = (len(home) - 2) // self.cache.block_size * self.cache.block_size
        return home[: 1 + start + (key[-1] + 1) * size]

    def compare(self, tokens: list[int], scope: Scope | None, cached: int) -> None:
        """A probe against the events: the longest hit that is safe for every layer.

        A hit inside a block is copied: where no room is left for that, the end of a block before it.
        """
        options = self.cache.options
        if options.lookahead or options.backoff:
            return  # what a draft model takes off a hit is not known to events
        if Full() not in self.cache.groups:
            return  # a tree without memory is not announced
        prompt = (replace(scope or Scope(), generation=self.cache.generation), *tokens)
        oracle = Oracle(self.cache, self.mirror, prompt, self._holes())
        whole, longest = oracle.longest(whole=True), oracle.longest()
        if self.cache.design_name == "naive":
            assert cached >= whole, (cached, whole)
        elif options.child_limit is not None:
            assert whole <= cached <= longest, (whole, cached, longest)
        elif self._has_room(len(tokens)):
            assert cached == longest, (cached, longest)
            self.inside += longest > whole
        else:
            assert cached in (whole, longest), (whole, cached, longest)

    def _holes(self) -> frozenset[Prefix]:
        """The prefixes whose last block is gone while something behind it is still cached."""
        if self.cache.options.evict_from == "leaves":
            return frozenset()
        return frozenset(self.names[key] for node in self.cache.outline() if not node.blocks for key in node.keys)

    def _has_room(self, tokens: int) -> bool:
        """Whether every group could give a prompt all its blocks, and as many to copy out of as one hit may need."""
        tokens += 2 * self.cache.block_size
        books = map(self.cache.books, self.mirror)
        return all(now.free + now.idle > tokens // self.block_size(group) + 1 for group, now in enumerate(books))

    # -- after every operation ------------------------------------------------------------------------

    def check(self) -> None:
        self.cache.check()
        for group in range(len(self.cache.groups)):
            books = self.cache.books(group)
            assert min(books.free, books.idle, books.pinned, books.quarantined) >= 0
        self.take_events()
        self.compare_what_hangs()
        stats = self.cache.stats()
        assert 0 <= stats.hits <= stats.queries and stats.cached_tokens <= stats.prompt_tokens

    def finish(self) -> None:
        """Close all, evict all: every group's memory is empty again."""
        for request in self.live:
            request.close()
        while self.in_flight:
            self.settle()
        for group in range(len(self.cache.groups)):
            self.cache.evict(2**31 - 1, group=group)
            books = self.cache.books(group)
            assert books.free == sum((books.free, books.idle, books.pinned, books.quarantined)), (group, books)
        self.check()
        assert not any(self.mirror.values())
