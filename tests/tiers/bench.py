"""A small cache over a host tier, with a KV oracle for both."""

from __future__ import annotations

from typing import Any

from prefixcache.designs import BASELINES, DESIGNS
from prefixcache.scenario.oracle import KVOracle
from tests.contract.bench import Bench
from tests.model.setup import Clock, Setup

TIERED = sorted(name for name, design in (DESIGNS | BASELINES).items() if design.has_tiers)


def ways(copies: Any) -> list[tuple[str, str]]:
    return [(copy.source_tier, copy.target_tier) for copy in copies]


SPILL, LOAD, INSIDE = ("device", "host"), ("host", "device"), ("device", "device")


class TieredBench(Bench):
    """A cache of blocks of 4 tokens over a host tier."""

    def __init__(self, design: str, *, capacity: int = 6, host: int = 4, **options: Any) -> None:
        self.clock = Clock()
        self.setup = Setup(design, 4, capacity, options, host)
        self.cache = self.setup.cache(self.clock)
        self.oracle, self.capacity = KVOracle(4), capacity

    def lower(self, *prompts: Any) -> None:
        """Run these, and let all that lies on the device go down to the host."""
        for prompt in prompts:
            self.run(prompt)
        self.cache.evict(self.capacity)
        spills = self.cache.spill()
        self.oracle.copy(spills.copies)
        spills.copied()
        self.cache.check()

    def host(self) -> tuple[int, int, int, int]:
        books = self.cache.books(tier="host")
        return books.free, books.idle, books.pinned, books.quarantined

    def where(self, tokens: Any) -> tuple[int, int]:
        """How many of exactly these tokens are found on the device, and how many below."""
        hit = self.cache.probe([*tokens, 999])
        assert hit.cached == sum(hit.tiers.values())
        return hit.tiers["device"], hit.tiers["host"]

    def events(self) -> list[Any]:
        return list(self.cache.take_events()[2])
