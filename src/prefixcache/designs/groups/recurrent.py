"""A group of recurrent layers: a hit ends exactly where a state was kept, for a state cannot be shortened.

    tokens      0 ........ 64 ........ 128 ..... 150      a request works on one private state, in place
    states                  s1          s2        live    at 64 and 128 it is handed to the tree, and copied on

A state is kept where one is worth its memory: at every `interval`, at the last full block of the prompt (the
prompt will come again with another end), where an earlier hit was cut for want of a state (prompts part there), and
at the end of the request. Only where a step ends can it be kept: the steps of a prompt should end at `checkpoints`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import lcm

import numpy as np

from prefixcache.designs.groups.kinds import Recurrent
from prefixcache.designs.groups.side import NOTHING, Back, Kept, Side, SideTable, Source, Stored, Wanted
from prefixcache.designs.groups.values import Present, Values


class RecurrentSide(Side):
    """See the module. The table of a request has one entry: the state it works on.

    Args:
        unit: hits end at multiples of it, if they do not end inside a block.
        behind: tokens that a draft model leaves at the end of a match: the hit ends that much earlier.
        grain: what the tree has of a prompt that comes again ends at a multiple of it: of `tree_size` by default.
    """

    reason = "no checkpoint"

    def __init__(
        self,
        group: int,
        values: Values,
        tree_size: int,
        kind: Recurrent,
        unit: int | None = None,
        behind: int = 0,
        grain: int | None = None,
    ) -> None:
        super().__init__(group, values, tree_size)
        self.kind = kind
        self._unit = unit or tree_size
        self._behind = behind
        self._grain = grain or tree_size
        self._interval = lcm(kind.interval, self._unit) if kind.interval else 0

    # -- safety -------------------------------------------------------------------------------------

    def safe(self, tree_blocks: Sequence[int]) -> Present:
        there = self.values.present(tree_blocks)
        return np.concatenate((np.ones(1, dtype=np.bool_), there))

    def safe_at_the_end(self, tree_blocks: Sequence[int]) -> bool:
        return not tree_blocks or self.values.at(tree_blocks[-1]) != NOTHING

    def safe_inside(self, tree_blocks: Sequence[int], source: int, tokens: int) -> int:
        state = self.values.at(source)
        made_of = self.values.covers(state, self.tree_size) if state != NOTHING else 0
        return made_of if made_of <= tokens else 0

    def may_end_behind(self, tree_blocks: Sequence[int]) -> Present:
        return np.full(len(tree_blocks) + 1, self.values.any_short)

    # -- admission ----------------------------------------------------------------------------------

    def reads(self, tree_blocks: Sequence[int], source: int, tokens: int) -> list[int]:
        if tokens:
            return [self.values.at(source)]
        return [self.values.at(tree_blocks[-1])] if len(tree_blocks) else []

    def new(self, whole: int, cover: int) -> int:
        return 1

    def claim(self, table: SideTable, tree_blocks: Sequence[int], inside: int) -> None:
        if len(tree_blocks) and not inside:
            self.claim_source(table, tree_blocks[-1], 0)

    def claim_source(self, table: SideTable, source: int, tokens: int) -> None:
        state = self.values.at(source)
        self.values.pin((state,))
        table.sources.append((0, state, 1))

    def open(self, table: SideTable, whole: int, cover: int) -> list[Wanted]:
        table.add(self.values.allocate(1), owned=False)
        wanted = [Wanted(Source(self, state, private=False), table.blocks[0], 1) for _, state, _ in table.sources]
        table.sources = []
        return wanted

    # -- while it runs ------------------------------------------------------------------------------

    def more(self, table: SideTable, cover: int) -> int:
        return 0

    def checkpoints(self, table: SideTable, begin: int, end: int) -> list[int]:
        """The lengths within (begin, end] at which a state is worth keeping, ascending."""
        last = (table.prompt_length - 1) // self._unit * self._unit
        known = table.prompt_length // self._grain * self._grain  # when the prompt comes again
        earlier = min((known - self._behind) // self._unit * self._unit, last)
        found = {length for length in (last, earlier, table.branch) if begin < length <= end}
        if self._interval:
            first = (begin // self._interval + 1) * self._interval
            found.update(range(first, end + 1, self._interval))
        return sorted(found)

    def store(self, table: SideTable, stored: Stored) -> list[Kept]:
        length, state = stored.length, table.blocks[0]
        rest = length % self.tree_size
        if not length or length != stored.computed or table.owned[0] or self.values.pool.shared(state):
            return []
        if length % self._unit and self._unit > self.tree_size:
            return []  # a window of coarser blocks ends no hit here
        if not stored.ended:
            worth = self.checkpoints(table, length - 1, length)
            if rest or not worth or not self.values.available:  # one more block is needed to go on with
                return []
        place = stored.homes[(length - 1) // self.tree_size]
        if not self.values.attach([place], [state]):
            self.values.made_again([place])
            return []
        if rest:
            self.values.shorten(state, rest)
        table.owned[0] = True
        return [Kept(length - (rest or self.tree_size), length, length, state)]

    def move_on(self, table: SideTable, length: int) -> list[Wanted]:
        if not table.owned[0]:
            return []
        kept = table.blocks[0]
        table.blocks[0], table.owned[0] = self.values.allocate(1)[0], False
        return [Wanted(Source(self, kept, private=False), table.blocks[0], 1)]

    def written_from(self, written: int) -> int:
        return 0

    def fork_needs(self, table: SideTable, cover: int) -> int:
        return 1

    def fork(self, table: SideTable, child: SideTable, computed: int, cover: int) -> list[Wanted]:
        child.add(self.values.allocate(1), owned=False)
        child.branch, child.prompt_length = table.branch, table.prompt_length
        return [Wanted(self._share(table.blocks[0]), child.blocks[0], 1)] if computed else []

    # -- going back ---------------------------------------------------------------------------------

    def _kept_at(self, back: Back) -> int:
        """The state kept after the tokens that stay, or -1."""
        index = (back.after - 1) // self.tree_size
        homes = back.homes() if back.after % self.tree_size == 0 else ()
        return self.values.at(homes[index]) if index < len(homes) else NOTHING

    def can_go_back(self, table: SideTable, back: Back) -> int:
        if back.after == back.computed or not back.after:
            return 0
        state = self._kept_at(back)
        if state == NOTHING:
            return -1
        # The state that it pins cannot make room.
        return 1 + self.values.is_idle(state) if self.values.pool.shared(table.blocks[0]) else 0

    def go_back(self, table: SideTable, back: Back) -> list[Wanted]:
        if back.after == back.computed or not back.after:
            return []
        state = self._kept_at(back)
        self.values.pin((state,))
        if self.values.pool.shared(table.blocks[0]):  # a fork has yet to copy out of it
            self.values.pool.give((table.blocks[0],))
            table.blocks[0] = self.values.allocate(1)[0]
        return [Wanted(Source(self, state, private=False), table.blocks[0], 1)]
