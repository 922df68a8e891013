"""One attention group beside the tree: what of it a request holds, and what a hit needs of it.

A request has one table per group. `Side` moves blocks between that table and the group's values:

    table   [-1 ... -1) [owned ......... owned) [private ......... private)
             out of      hang from the tree,     being computed, or computed twice;
             reach       pinned by the request   nobody else knows them
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from prefixcache.designs.groups.values import Present, Values

NOTHING = -1


class Source(NamedTuple):
    """A block of a group that is copied from before its reader writes: `Design.drop` lets it go.

    Attributes:
        side: the group.
        block: the block, pinned as a value, or claimed once more as a private block.
        private: which of the two.
    """

    side: Side
    block: int
    private: bool


class Wanted(NamedTuple):
    """A copy that a request has to make: the first `tokens` slots of the source into `target`."""

    source: Source
    target: int
    tokens: int


class Kept(NamedTuple):
    """A block of a group that became findable.

    Attributes:
        start, end: the tokens that it covers.
        home_end: the token at which the tree's block ends.
        value: its id.
    """

    start: int
    end: int
    home_end: int
    value: int


class Back(NamedTuple):
    """A request goes back.

    Attributes:
        length: tokens that it keeps.
        computed: tokens that were computed before.
        after: of these, tokens that still are afterwards.
        homes: the tree's blocks that what the request stored hangs from, by index; asked only where they are needed.
    """

    length: int
    computed: int
    after: int
    homes: Callable[[], Sequence[int]]


class Stored(NamedTuple):
    """What of a request is in the tree now.

    Attributes:
        length: tokens from the beginning; all of them are computed.
        computed: tokens computed, perhaps more.
        homes: the tree's block at each index of the request, -1 where the tree has none.
        ended: the request goes, so what it leaves need not fill a block.
        told: whether anybody wants to know what is stored.
    """

    length: int
    computed: int
    homes: Sequence[int]
    ended: bool
    told: bool


@dataclass(slots=True)
class SideTable:
    """What one request holds of one group.

    Attributes:
        blocks: ids in order, -1 where the request has none; of a recurrent group the one state it works on.
        owned: as many flags: whether the block hangs from the tree.
        first: entries before this one are out of reach for good (behind the sinks).
        settled: entries before this one have been offered to the tree, or never will be.
        twice: windows: entries before `settled` that the tree had from somebody else. As long as they are private they
            are offered again: what hangs there may be evicted before they are out of reach.
        sources: pinned at the claim, to be copied from: (entry, value, tokens).
        prompt_length, branch: recurrent: tokens of the prompt, and the length up to which others share it although
            no state was kept there (0: none).
    """

    blocks: array[int] = field(default_factory=lambda: array("i"))
    owned: bytearray = field(default_factory=bytearray)
    first: int = 0
    settled: int = 0
    twice: list[int] = field(default_factory=list)
    sources: list[tuple[int, int, int]] = field(default_factory=list)
    prompt_length: int = 0
    branch: int = 0

    def add(self, blocks: Sequence[int], owned: bool) -> None:
        """Entries behind the last one."""
        self.blocks.extend(blocks)
        self.owned.extend(bytes([owned]) * len(blocks))

    def private(self) -> Iterator[int]:
        """Blocks that the request owns alone."""
        return (block for block, owned in zip(self.blocks, self.owned, strict=True) if block != NOTHING and not owned)


class Side(ABC):
    """The work of one group. Called by `Groups`, under the cache's lock.

    Args:
        group: its index among the groups of the cache.
        values: what it has cached.
        tree_size: tokens per block of the tree.
    """

    reason: str  # what a hit that it cuts says

    def __init__(self, group: int, values: Values, tree_size: int) -> None:
        self.group = group
        self.values = values
        self.tree_size = tree_size

    # -- safety -------------------------------------------------------------------------------------

    @abstractmethod
    def safe(self, tree_blocks: Sequence[int]) -> Present:
        """For 0 .. len(tree_blocks) whole blocks: whether a hit that ends there has all that this group reads."""

    @abstractmethod
    def safe_at_the_end(self, tree_blocks: Sequence[int]) -> bool:
        """The last answer of `safe`, for a fraction of the time: most hits are cut by no group. O(blocks read)."""

    @abstractmethod
    def safe_inside(self, tree_blocks: Sequence[int], source: int, tokens: int) -> int:
        """How many of the first `tokens` tokens of `source`, the block behind `tree_blocks`, a hit may end behind.

        The most that is safe, 0 when nothing is.
        """

    @abstractmethod
    def may_end_behind(self, tree_blocks: Sequence[int]) -> Present:
        """For 0 .. len(tree_blocks) whole blocks: whether a hit could end inside some block behind them.

        By what these blocks have. Before such a block is looked for.
        """

    def safe_within(self, tree_blocks: Sequence[int], least: int) -> Present:
        """For the lengths from `least` tokens to the end of these blocks: whether a hit that ends there is safe.

        At the end of a block, or inside one, which is copied. O(tokens).
        """
        safe = np.zeros(len(tree_blocks) * self.tree_size + 1, dtype=np.bool_)
        safe[:: self.tree_size] = self.safe(tree_blocks)
        return safe[least:]

    # -- admission ----------------------------------------------------------------------------------

    @abstractmethod
    def reads(self, tree_blocks: Sequence[int], source: int, tokens: int) -> list[int]:
        """The values that a hit pins: of whole blocks, and (`tokens` > 0) of what it copies from."""

    @abstractmethod
    def new(self, whole: int, cover: int) -> int:
        """Private blocks that a request needs to go on from `whole` blocks of the tree to `cover` tokens."""

    def new_in_steps(self, whole: int, cover: int, step: int) -> int:
        """The most that it needs at a time, if it gets there in steps like the one to `step` tokens."""
        return self.new(whole, cover)

    @abstractmethod
    def claim(self, table: SideTable, tree_blocks: Sequence[int], inside: int) -> None:
        """Pin what a hit of these whole blocks, and `inside` tokens of the next one, reads of the whole ones."""

    @abstractmethod
    def claim_source(self, table: SideTable, source: int, tokens: int) -> None:
        """Pin what a hit inside this block copies from."""

    @abstractmethod
    def open(self, table: SideTable, whole: int, cover: int) -> list[Wanted]:
        """Allocate up to `cover` tokens, and say what is to be copied."""

    # -- while it runs ------------------------------------------------------------------------------

    @abstractmethod
    def more(self, table: SideTable, cover: int) -> int:
        """Blocks that a running request needs to reach `cover` tokens."""

    def extend(self, table: SideTable, cover: int) -> None:
        """Allocate them."""
        table.add(self.values.allocate(self.more(table, cover)), owned=False)

    @abstractmethod
    def store(self, table: SideTable, stored: Stored) -> list[Kept]:
        """Hang from the tree what this request has and the tree has not; what that is if it is to be told."""

    @abstractmethod
    def move_on(self, table: SideTable, length: int) -> list[Wanted]:
        """`length` tokens are computed: let go of what no later position reads; what must be copied to go on."""

    def release(self, table: SideTable, written: int, targets: set[int] | None) -> list[int]:
        """Let everything go, tail first; returned are private blocks that unfinished work may still write.

        `written`: tokens whose KV no step writes any more; `targets`: of copies that may be under way when the request
        is released in flight, else None.
        """
        blocks, owned = table.blocks, table.owned
        entries = [entry for entry in range(len(blocks) - 1, -1, -1) if blocks[entry] != NOTHING]
        self.values.unpin([blocks[entry] for entry in entries if owned[entry]])
        private = [(entry, blocks[entry]) for entry in entries if not owned[entry]]
        held: list[int] = []
        if targets is not None:
            begin = self.written_from(written)
            held = [block for entry, block in private if entry >= begin or block in targets]
            private = [(entry, block) for entry, block in private if entry < begin and block not in targets]
        self.values.pool.give([block for _, block in private])
        self.values.unpin(value for _, value, _ in table.sources)
        table.blocks, table.owned, table.sources = array("i"), bytearray(), []
        return held

    @abstractmethod
    def written_from(self, written: int) -> int:
        """The first entry that a step behind so many tokens writes."""

    @abstractmethod
    def fork_needs(self, table: SideTable, cover: int) -> int:
        """Blocks that another request needs to have the same, as far as `cover` tokens."""

    @abstractmethod
    def fork(self, table: SideTable, child: SideTable, computed: int, cover: int) -> list[Wanted]:
        """Give the child the same up to `cover`: share what hangs from the tree, copy what is computed of the rest."""

    @abstractmethod
    def can_go_back(self, table: SideTable, back: Back) -> int:
        """Blocks needed to go back, or -1 when what is read there has gone."""

    @abstractmethod
    def go_back(self, table: SideTable, back: Back) -> list[Wanted]:
        """Do it, before the tree's blocks are let go of."""

    def let_go(self, source: Source) -> None:
        """A copy out of this block is over."""
        if source.private:
            self.values.pool.give((source.block,))
        else:
            self.values.unpin((source.block,))

    def _share(self, block: int) -> Source:
        """Another claim on a private block, which somebody is to copy from."""
        self.values.pool.share(block)
        return Source(self, block, private=True)
