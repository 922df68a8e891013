"""Every contract test runs once per registered design; `bench` is a small cache with a KV oracle."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.contract.bench import Bench
from tests.registration import AT_ANY_BLOCK_SIZE


@pytest.fixture(params=sorted(AT_ANY_BLOCK_SIZE))
def design(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def make(design: str) -> Callable[..., Bench]:
    """A maker of benches: keywords of `PrefixCache`; 16 blocks of 4 tokens unless said otherwise."""

    def maker(**keywords: object) -> Bench:
        return Bench(design, **keywords)

    return maker


@pytest.fixture
def bench(make: Callable[..., Bench]) -> Bench:
    return make()
