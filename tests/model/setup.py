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

    def cache(self, clock: Clock) -> PrefixCache:
        return PrefixCache(self.design, block_size=self.block_size, capacity=self.capacity, clock=clock, **self.options)

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
    def delayed(self) -> bool:
        """Whether what is computed becomes findable only at the end of the step."""
        return self.options.get("visibility", "computed") == "step"

    @property
    def hides(self) -> bool:
        """Whether a computed block may stay unfindable for a while."""
        return self.delayed or self.collides

    @property
    def collides(self) -> bool:
        """Whether block keys collide on purpose: what collides is not published."""
        return callable(self.options.get("hash"))

    @property
    def exact(self) -> bool:
        """Whether every full block that was computed is findable until the first eviction."""
        held_back = not self.options.get("store_last", True) or self.options.get("lookahead", 0)
        return not (self.partial or self.delayed or self.collides or held_back)

    @property
    def plain(self) -> bool:
        """Whether the block reference predicts this setup: full blocks, one copy, LRU by blocks."""
        return self.exact and not (self.options.keys() - {"partial", "hash", "child_hash"})
