"""What all tests share: the seed and its printing, the shared folder, the hypothesis profiles.

Environment variables:
    PREFIXCACHE_TEST_SEED: the seed of every test that takes the fixture `seed`.
    PREFIXCACHE_TEST_PROFILE: `default` (fast, the same examples in every run) or `thorough`
        (many more examples, new ones in every run; a failure prints how to repeat it).
"""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings

from tests.shared import SHARED_DIR

pytest.register_assert_rewrite("tests.model", "tests.contract")  # values in the messages of helpers too

_DEFAULT_SEED = 20260731

# Deadlines measure the machine, not the code. The example database would be a hidden input: a run
# on one machine would test other things than the same run on another.
settings.register_profile(
    "default",
    max_examples=50,
    stateful_step_count=40,
    derandomize=True,
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
settings.register_profile(
    "thorough",
    settings.get_profile("default"),
    max_examples=1500,
    stateful_step_count=80,
    derandomize=False,
)
# To show that a fault is found, the first failing example is enough: no shrinking, no explanation.
settings.register_profile("find", settings.get_profile("default"), max_examples=400, phases=[Phase.generate])
settings.load_profile(os.environ.get("PREFIXCACHE_TEST_PROFILE", "default"))


@pytest.fixture
def seed() -> int:
    """The seed of a randomised test; printed when the test fails."""
    return int(os.environ.get("PREFIXCACHE_TEST_SEED", _DEFAULT_SEED))


@pytest.fixture
def shared_dir() -> Path:
    """The folder `shared` beside the repository; tests that ask for it are not collected without it."""
    return SHARED_DIR


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if SHARED_DIR.is_dir():
        return
    without = [item for item in items if "shared_dir" in getattr(item, "fixturenames", ())]
    if without:
        config.hook.pytest_deselected(items=without)
        items[:] = [item for item in items if item not in without]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    value = getattr(item, "funcargs", {}).get("seed")
    if report.failed and value is not None:
        report.sections.append(("seed", f"repeat with PREFIXCACHE_TEST_SEED={value}"))
    return report
