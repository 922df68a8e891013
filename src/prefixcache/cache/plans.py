"""What admission works with: a checked call of `open`, what it would do, and what a batch has claimed so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from prefixcache.blocks.retention import Retention
from prefixcache.cache.prompts import Asked
from prefixcache.designs import Match, Partial
from prefixcache.designs.groups import SideNeed, SideRoom


@dataclass(slots=True)
class Ask:
    """One checked call of `open`: nothing in it refers to the caller's data.

    Attributes:
        reserve: tokens to find room for, None for all.
        must_fit: refuse unless the whole prompt would fit.
    """

    asked: Asked
    retention: Retention
    read: bool = True
    store: bool = True
    reserve: int | None = None
    must_fit: bool = False


@dataclass(slots=True, eq=False)
class Plan:
    """What an admission would do now.

    Attributes:
        match: the whole blocks found, on the device and below it.
        partial: the hit inside the next block that will be used, if any.
        take: the partial's source is taken over in place instead of copied.
        new: blocks to allocate.
        need: blocks drawn from free + idle: new ones, matched idle ones, an idle source, and one for each
            earlier request of the batch that now has to copy what it would have taken over.
        overruled: these earlier requests.
        dropped: matched tokens not used because a draft model looks one token ahead.
        reason: why not more.
        sides: what the attention groups beside the tree have to give.
    """

    match: Match
    partial: Partial | None
    take: bool
    new: int
    need: int
    overruled: Sequence[Plan] = ()
    dropped: int = 0
    reason: str = ""
    sides: Sequence[SideNeed] = ()

    @property
    def cached(self) -> int:
        """Tokens that need not be computed."""
        return self.match.tokens + self.match.loaded + (self.partial.tokens if self.partial is not None else 0)


@dataclass(slots=True)
class Room:
    """What the requests of one batch have claimed so far, out of the room there was when it began.

    Attributes:
        available: free and idle blocks at the beginning.
        drawn: of these, what the admitted requests need.
        claimed: idle blocks among them: matched whole, or sources of hits inside a block.
        takers: who is going to take over a source in place, by source; None when nobody may any more.
        sides: the same for the attention groups beside the tree.
    """

    available: int
    drawn: int = 0
    claimed: set[int] = field(default_factory=set)
    takers: dict[int, Plan | None] = field(default_factory=dict)
    sides: Sequence[SideRoom] = ()

    @property
    def left(self) -> int:
        """Blocks that another request can draw."""
        return self.available - self.drawn

    def admit(self, plan: Plan, idle_blocks: Sequence[int]) -> None:
        """Another request of the batch goes ahead.

        The roles: a source that somebody matches whole is copied by all others; else the last one that
        matches an unused leaf takes it over and the others copy; everything else is copied.
        """
        self.drawn += plan.need
        self.claimed.update(idle_blocks)
        for side, need in zip(self.sides, plan.sides, strict=True):
            side.drawn += need.need
            side.claimed.update(need.idle)
        for earlier in plan.overruled:
            assert earlier.partial is not None
            earlier.take = False
            earlier.new += 1
            self.takers[earlier.partial.source] = None
        if plan.partial is not None:
            if plan.partial.idle:
                self.claimed.add(plan.partial.source)
            if plan.take:
                self.takers[plan.partial.source] = plan
