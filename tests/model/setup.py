"""One configuration of a cache under a randomised test, and what follows from it for the checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from prefixcache import PrefixCache
from tests.registration import DESIGNS


class Clock:
    """A clock that only the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass(frozen=True)
class Setup:
    design: str
    block_size: int
    capacity: int
    options: Mapping[str, object] = field(default_factory=dict)
    host: int = 0  # blocks of the tier below

    def cache(self, clock: Clock) -> PrefixCache:
        tiers = {"host": self.host} if self.host else None
        return PrefixCache(
            self.design,
            block_size=self.block_size,
            capacity=self.capacity,
            clock=clock,
            tiers=tiers,
            **self.options,  # type: ignore[arg-type]
        )

    @property
    def partial(self) -> bool:
        """Whether a hit may end inside a block."""
        chosen = self.options.get("partial", DESIGNS[self.design].partial)
        return self.block_size > 1 and chosen in ("copy", "take", True)

    @property
    def stores_tails(self) -> bool:
        """Whether the partial block at the end of a request stays findable."""
        return self.partial and DESIGNS[self.design].tails

    @property
    def retains(self) -> bool:
        """Whether priorities and times to live matter."""
        return self.options.get("eviction", DESIGNS[self.design].eviction) == "priority"

    @property
    def drops(self) -> bool:
        """Whether the last matched unit is left to a draft model."""
        return bool(self.options.get("lookahead")) and not self.looks_ahead

    @property
    def looks_ahead(self) -> bool:
        """Whether the token behind a block is part of the block's identity."""
        by = self.options.get("lookahead_by", DESIGNS[self.design].lookahead_by)
        return bool(self.options.get("lookahead")) and by == "key"

    @property
    def delayed(self) -> bool:
        """Whether what is computed becomes findable only at the end of the step."""
        return self.options.get("visibility", "computed") == "step"

    @property
    def collides(self) -> bool:
        """Whether block keys collide on purpose: what collides is not published."""
        return callable(self.options.get("hash"))

    @property
    def gives_up(self) -> bool:
        """Whether hits inside a block end where there are too many children to choose from."""
        return self.partial and self.options.get("child_limit") is not None

    @property
    def hides(self) -> bool:
        """Whether a computed block may be out of a probe's reach: it finds that or less."""
        return self.delayed or self.collides or self.looks_ahead or self.gives_up

    @property
    def exact(self) -> bool:
        """Whether every full block that was computed is found until the first eviction."""
        return not (self.partial or self.hides or self.drops) and bool(self.options.get("store_last", True))

    @property
    def plain(self) -> bool:
        """Whether the block reference predicts this setup: full blocks, one copy, LRU by blocks."""
        return self.exact and not self.retains and not self.host and not (self.options.keys() - NEUTRAL)


# Options that change how things are found, not what is found or leaves.
NEUTRAL = {"partial", "hash", "search", "child_hash", "child_limit", "lookahead_by", "must_fit"}
