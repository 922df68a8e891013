"""Every example is told by every design that can have a tier; `bench` is a small cache over one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.tiers.bench import TIERED, TieredBench


@pytest.fixture(params=TIERED)
def make(request: pytest.FixtureRequest) -> Callable[..., TieredBench]:
    return lambda **keywords: TieredBench(request.param, **keywords)


@pytest.fixture
def bench(make: Callable[..., TieredBench]) -> TieredBench:
    return make()
