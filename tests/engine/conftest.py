"""The tests of the engine are collected where its extra is installed (`make test-engine` sees to it)."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest

INSTALLED = all(importlib.util.find_spec(name) is not None for name in ("torch", "transformers"))
collect_ignore_glob = [] if INSTALLED else ["test_*.py"]


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    """Small models gain nothing from threads, and tests run side by side."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
