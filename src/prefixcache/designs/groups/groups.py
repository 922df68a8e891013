"""Several attention kinds over one tree: the hit that is safe for all, and each kind's own blocks.

The design finds prefixes as ever (`lookup`), and knows nothing of kinds. Its blocks are those of full attention; the
other groups hang their own from them (`values`). Where no group has full attention the tree's blocks stand for no
memory: there are as many as are needed, and what nobody needs any more is forgotten.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import lcm

from prefixcache.blocks.pool import MAX_BLOCKS
from prefixcache.designs.base import Design, Holding, Match, Partial, Prompt
from prefixcache.designs.groups.events import GroupEvents, GroupSink, place_key
from prefixcache.designs.groups.kinds import Full, Kind, Recurrent, Window
from prefixcache.designs.groups.lookup import Lookup
from prefixcache.designs.groups.recurrent import RecurrentSide
from prefixcache.designs.groups.side import NOTHING, Back, Kept, Side, SideTable, Stored, Wanted
from prefixcache.designs.groups.values import Values
from prefixcache.designs.groups.window import WindowSide
from prefixcache.errors import NoSpace, OptionError
from prefixcache.keys.tokens import TOKEN_BYTES

_SPARE = 1024  # blocks of a tree without memory that are remembered although nothing hangs near them


@dataclass(slots=True)
class SideRoom:
    """What the requests of one batch have claimed so far of one group.

    Attributes:
        available: its free and idle blocks at the beginning.
        drawn: of these, what the admitted requests need.
        claimed: idle values among them.
    """

    available: int
    drawn: int = 0
    claimed: set[int] = field(default_factory=set)

    @property
    def left(self) -> int:
        return self.available - self.drawn


@dataclass(frozen=True, slots=True)
class SideNeed:
    """What one admission needs of one group: blocks drawn from free + idle, and the idle values among them."""

    need: int
    idle: tuple[int, ...]


class Groups:
    """All groups of one cache. Every method is called under its lock.

    Args:
        design: the tree.
        kinds: the groups, in the user's order.
        capacities: blocks of each.
        events: where changes are reported, None when nobody listens.
    """

    def __init__(
        self, design: Design, kinds: Sequence[Kind], capacities: Sequence[int], events: GroupSink | None
    ) -> None:
        self.design = design
        self.kinds = tuple(kinds)
        self.capacities = tuple(capacities)
        self.tree_group = next((i for i, kind in enumerate(kinds) if isinstance(kind, Full)), NOTHING)
        self.lead = max(self.tree_group, 0)
        self._events = events
        self.sides = [self._side(group, kind) for group, kind in enumerate(kinds) if not isinstance(kind, Full)]
        self._by_group = {side.group: side for side in self.sides}
        self._states = [side for side in self.sides if isinstance(side, RecurrentSide)]
        windows = [side for side in self.sides if isinstance(side, WindowSide) and side.kind.size > 1]
        self._at_the_end = [side.values for side in (*windows, *self._states)]  # what a hit reads where it ends
        for window in windows:
            window.values.lost = self._anchors_lost
        for state in self._states:
            state.values.lost = design.left_bare
        self._lookup = Lookup(design, self.sides)
        design.watch_leaves(self._ends_a_hit)
        design.pool.freed = self._freed
        design.pool.replaced = self._replaced

    def _side(self, group: int, kind: Kind) -> Side:
        size, events = self.design.block_size, self._events

        def removed(keys: Sequence[bytes]) -> None:
            assert events is not None
            events.removed(keys, group)

        per_block = 1
        if isinstance(kind, Window):
            per_block = max(1, size // (kind.block_size or size))
        values = Values(self.capacities[group], per_block, removed if events is not None else None)
        if isinstance(kind, Window):
            return WindowSide(group, values, size, kind)
        assert isinstance(kind, Recurrent)
        if self.design.withheld:
            raise OptionError(
                f"groups[{group}] is {kind}: with lookahead_by='key' {self.design.name} stores a block a step after "
                "its state has moved on; expected lookahead_by='drop'"
            )
        unit = lcm(size, *(other.block_size or size for other in self.kinds if isinstance(other, Window)))
        options = self.design.options
        behind = options.backoff or int(options.lookahead > 0 and options.lookahead_by == "drop")
        return RecurrentSide(group, values, size, kind, unit, behind, size if options.partial == "off" else 1)

    def _freed(self, blocks: Sequence[int]) -> None:
        """These blocks of the tree are in it no more."""
        for side in self.sides:
            side.values.left(blocks)

    def _replaced(self, heirs: Sequence[tuple[int, int]]) -> None:
        """Of these blocks of the tree others are found from now on: what hangs from them hangs from those."""
        for side in self.sides:
            side.values.move(heirs)

    def _anchors_lost(self, blocks: Sequence[int]) -> None:
        """No hit can end at these blocks of the tree any more: a state kept there would never be used."""
        for side in self._states:
            side.values.drop_idle(blocks)
        self.design.left_bare(blocks)

    def _ends_a_hit(self, block: int) -> bool:
        """Whether every group has what a hit reads of this block of the tree that ends with it, or inside it."""
        for values in self._at_the_end:
            if values.at(block, values.per_block - 1) == NOTHING:
                parts = range(values.per_block - 1) if self.design.options.partial != "off" else ()
                if all(values.at(block, offset) == NOTHING for offset in parts):
                    return False
        return True

    # -- lookup -----------------------------------------------------------------------------------

    def match(self, prompt: Prompt, limit: int, whole: bool = False) -> Match:
        """The longest cached prefix of the first `limit` tokens that is safe for every group: see `Lookup`."""
        return self._lookup.match(prompt, limit, whole)

    def why_cut(self, match: Match) -> str:
        """A sentence on what cut a hit."""
        kind = self.kinds[match.cut_group]
        lacks = "has no state there" if isinstance(kind, Recurrent) else "lacks a block that would be read there"
        return f"{match.cut} tokens more are cached, but group {match.cut_group} ({kind}) {lacks}"

    # -- admission ----------------------------------------------------------------------------------

    def room(self) -> list[SideRoom]:
        """The room in each group for a batch that begins now."""
        return [SideRoom(side.values.available) for side in self.sides]

    def needs(
        self, match: Match, partial: Partial | None, cover: int, rooms: Sequence[SideRoom], step: int | None = None
    ) -> list[SideNeed]:
        """What each group would have to give a request with this hit that is to reach `cover` tokens.

        At once, or in steps of which the first reaches `step` tokens: windows get blocks back between them.
        """
        source, inside = (partial.source, partial.tokens) if partial is not None else (NOTHING, 0)
        blocks = match.blocks[:]
        needs = []
        for side, room in zip(self.sides, rooms, strict=True):
            reads = side.values.idle_among(side.reads(blocks, source, inside))
            idle = tuple(value for value in reads if value not in room.claimed) if room.claimed else tuple(reads)
            new = side.new(len(blocks), cover) if step is None else side.new_in_steps(len(blocks), cover, step)
            needs.append(SideNeed(new + len(idle), idle))
        return needs

    def fits(self, needs: Sequence[SideNeed], rooms: Sequence[SideRoom]) -> bool:
        """Whether every group can give that."""
        return all(need.need <= room.left for need, room in zip(needs, rooms, strict=True))

    def require(self, needs: Sequence[SideNeed], rooms: Sequence[SideRoom]) -> None:
        """Raises `NoSpace` naming the first group that cannot."""
        for side, need, room in zip(self.sides, needs, rooms, strict=True):
            if need.need > room.left:
                raise self.refusal(side, need.need, room.left, "the request")

    def refusal(self, side: Side, need: int, available: int, what: str) -> NoSpace:
        """What to raise when this group has not enough."""
        capacity = self.capacities[side.group]
        return NoSpace(need, available, f"{what}, in group {side.group} ({self.kinds[side.group]}),", capacity)

    def claim(self, holding: Holding, match: Match, partial: Partial | None) -> None:
        """Pin what the hit reads in every group. The holding's tables begin here."""
        inside = partial.tokens if partial is not None else 0
        blocks = match.blocks[:]
        holding.sides = [SideTable(prompt_length=holding.prompt_length) for _ in self.sides]
        for side, table in zip(self.sides, holding.sides, strict=True):
            if isinstance(side, RecurrentSide):
                table.branch = match.branch
            side.claim(table, blocks, inside)
            if partial is not None:
                side.claim_source(table, partial.source, inside)

    def open(self, holding: Holding, whole: int) -> Iterator[tuple[int, Wanted]]:
        """Allocate as far as the tree's table reaches; (group, copy) for all that is to be copied first."""
        cover = len(holding.table) * self.design.block_size
        for side, table in zip(self.sides, holding.sides, strict=True):
            for wanted in side.open(table, whole, cover):
                yield side.group, wanted

    # -- while a request runs -------------------------------------------------------------------------

    def require_more(self, holding: Holding, cover: int) -> None:
        """Raises `NoSpace` unless every group can reach `cover` tokens."""
        for side, table in zip(self.sides, holding.sides, strict=True):
            more = side.more(table, cover)
            if more > side.values.available:
                raise self.refusal(side, more, side.values.available, "the request")

    def extend(self, holding: Holding, cover: int) -> None:
        """Allocate up to `cover` tokens."""
        for side, table in zip(self.sides, holding.sides, strict=True):
            side.extend(table, cover)

    def store(self, holding: Holding, length: int, computed: int, ended: bool) -> None:
        """Hang from the tree what the groups have of the first `length` tokens of this request, as far as it has them.

        An unfilled end that the tree has from somebody else may lack what the groups have of it.
        """
        held = min(length, holding.held * self.design.block_size)
        end = self.design.unfilled_end(holding.prompt, length) if ended and held < length else NOTHING
        if end == NOTHING:
            length = held
        if length <= 0:
            return
        homes = self._homes(holding, length)
        if end != NOTHING:
            homes[-1] = end
        stored = Stored(length, computed, homes, ended, told=self._events is not None)
        for side, table in zip(self.sides, holding.sides, strict=True):
            kept = side.store(table, stored)
            if kept and stored.told:
                self._announce(holding.prompt, side, kept)

    def forget_twins(self, holding: Holding) -> None:
        """Offer the tree no more what it had from somebody else: a fork has yet to copy its own of that."""
        for table in holding.sides:
            table.twice = []

    def homes(self, holding: Holding) -> Sequence[int]:
        """By index: the block of the tree from which hangs what the groups have of that block of the request.

        That which is found, or behind a hole its own. O(blocks of the request).
        """
        found = self._homes(holding, holding.held * self.design.block_size)
        return [own if home == NOTHING else home for home, own in zip(found, holding.table, strict=False)]

    def _homes(self, holding: Holding, length: int) -> array[int]:
        """By index: the block of the tree under which a lookup finds these tokens, or will, -1 for none.

        Where tables keep duplicates, a request's own block need not be the one that is found.
        """
        design, table = self.design, holding.table
        whole, blocks = length // design.block_size, -(-length // design.block_size)
        if design.options.duplicates == "keep":
            homes = array("i", design.stored_blocks(holding.prompt, length))
            homes.extend([NOTHING] * (whole - len(homes)))
            homes.extend(table[index] if design.owns(holding, index) else NOTHING for index in range(whole, blocks))
        else:
            homes = table[: min(holding.held, blocks)]
            homes.extend([NOTHING] * (blocks - len(homes)))
        return homes

    def move_on(self, holding: Holding, computed: int) -> Iterator[tuple[int, Wanted]]:
        """So many tokens are computed: let go of what is out of reach; (group, copy) needed to go on."""
        for side, table in zip(self.sides, holding.sides, strict=True):
            for wanted in side.move_on(table, computed):
                yield side.group, wanted

    def release(
        self, holding: Holding, written: int, targets: set[tuple[int, int]] | None
    ) -> list[tuple[Side, list[int]]]:
        """The request ends: let everything go. In flight (`targets` of copies given) some is quarantined: returned.

        `written`: tokens whose KV no step writes any more.
        """
        quarantined = []
        for side, table in zip(self.sides, holding.sides, strict=True):
            own = None if targets is None else {block for group, block in targets if group == side.group}
            held = side.release(table, written, own)
            if held:
                side.values.pool.quarantine(held)
                quarantined.append((side, held))
        holding.sides = ()
        return quarantined

    def forget_unused(self) -> None:
        """Where the tree has no memory of its own: keep it in proportion to what hangs from it."""
        if self.tree_group == NOTHING:
            most = 4 * sum(self.capacities) + _SPARE
            self.design.evict(self.design.idle - most)

    def require_fork(self, holding: Holding, cover: int) -> None:
        """Raises `NoSpace` unless every group can give a fork its blocks, up to `cover` tokens."""
        for side, table in zip(self.sides, holding.sides, strict=True):
            needs = side.fork_needs(table, cover) + side.more(table, cover)
            if needs > side.values.available:
                raise self.refusal(side, needs, side.values.available, "the fork")

    def fork(self, holding: Holding, child: Holding, computed: int) -> Iterator[tuple[int, Wanted]]:
        """Give the child the same tables; (group, copy) that it has to make."""
        child.sides = [SideTable() for _ in self.sides]
        cover = len(child.table) * self.design.block_size
        for side, table, own in zip(self.sides, holding.sides, child.sides, strict=True):
            for wanted in side.fork(table, own, computed, cover):
                yield side.group, wanted
            side.extend(own, cover)

    def why_not_back(self, holding: Holding, back: Back) -> str:
        """Why a request cannot go back so far, "" when it can. Raises `NoSpace` when a copy has no room."""
        needed = [side.can_go_back(table, back) for side, table in zip(self.sides, holding.sides, strict=True)]
        for side, needs in zip(self.sides, needed, strict=True):
            if needs < 0:  # before any want of room: waiting for that would not help
                return f"group {side.group} ({self.kinds[side.group]}) has no longer what position {back.after} reads"
        for side, needs in zip(self.sides, needed, strict=True):
            if needs > side.values.available:
                raise self.refusal(side, needs, side.values.available, "the private copy of the block that is cut")
        return ""

    def go_back(self, holding: Holding, back: Back) -> list[tuple[int, Wanted]]:
        """Do it; (group, copy) that the request has to make. Called before the tree's blocks are let go of."""
        wanted: list[tuple[int, Wanted]] = []
        for side, table in zip(self.sides, holding.sides, strict=True):
            wanted += [(side.group, copy) for copy in side.go_back(table, back)]
        return wanted

    def tables(self, holding: Holding) -> list[tuple[int, Sequence[int]]]:
        """(group, table) of every group beside the tree; empty once released."""
        return [(side.group, table.blocks) for side, table in zip(self.sides, holding.sides, strict=False)]

    def private(self, holding: Holding) -> Iterator[tuple[int, int]]:
        """(group, block) of all that the request owns alone."""
        for side, table in zip(self.sides, holding.sides, strict=False):
            for block in table.private():
                yield side.group, block

    def checkpoints(self, holding: Holding, begin: int, end: int) -> tuple[int, ...]:
        """The lengths within (begin, end] at which a step should end, so that a state can be kept."""
        found: set[int] = set()
        for side, table in zip(self.sides, holding.sides, strict=False):
            if isinstance(side, RecurrentSide):
                found.update(side.checkpoints(table, begin, end))
        return tuple(sorted(found))

    # -- events -------------------------------------------------------------------------------------

    def _announce(self, prompt: Prompt, side: Side, kept: Sequence[Kept]) -> None:
        """One event for each run of neighbours. A value has the key of the block of the tree that it hangs from."""
        assert self._events is not None
        size = self.design.block_size
        run: list[Kept] = []
        keys: list[bytes] = []
        for item in (*kept, None):
            if run and (item is None or item.start != run[-1].end):
                first, end = run[0], run[-1].end
                before = first.home_end if first.start % size else first.start
                parent = self._key(prompt, side, first.start, before) if first.start else None
                tokens = bytes(prompt.tokens[first.start * TOKEN_BYTES : end * TOKEN_BYTES])
                self._events.stored(keys, parent, tokens, prompt.scope, side.group)
                run, keys = [], []
            if item is not None:
                key = self._key(prompt, side, item.end, item.home_end)
                side.values.name(item.value, key)
                run.append(item)
                keys.append(key)

    def _key(self, prompt: Prompt, side: Side, end: int, home_end: int) -> bytes:
        """The key of the group's block that ends at token `end` inside the tree's block that ends at `home_end`.

        Where several hang from one, their place follows the key.
        """
        size = self.design.block_size
        start = (home_end - 1) // size * size
        longest = min(start + size, len(prompt.tokens) // TOKEN_BYTES)
        key = self.design.keys_at(prompt, start)[longest - home_end]
        fine = side.values.per_block
        return key + place_key(fine, (end - 1 - start) // (size // fine))

    # -- the whole ----------------------------------------------------------------------------------

    def side(self, group: int) -> Side | None:
        """The side of a group, None for the one whose blocks are the tree's."""
        return self._by_group.get(group)

    def retire(self) -> None:
        """The weights changed: nothing can be found any more."""
        for side in self.sides:
            side.values.retire()

    def clear(self) -> None:
        """Drop everything, before the tree does."""
        for side in self.sides:
            side.values.clear()
        if isinstance(self._events, GroupEvents):
            self._events.clear()

    def check(self, private: Iterable[tuple[int, int]]) -> None:
        """Assert every invariant. `private`: (group, block) of all that requests own alone, once each."""
        tree = set(self.design.blocks())
        owned = list(private)
        for side in self.sides:
            side.values.check(tree, [block for group, block in owned if group == side.group])


def tree_capacity(kinds: Sequence[Kind], capacities: Sequence[int]) -> int:
    """Blocks of the tree: those of full attention, or as many as there can be."""
    for kind, capacity in zip(kinds, capacities, strict=True):
        if isinstance(kind, Full):
            return capacity
    return MAX_BLOCKS
