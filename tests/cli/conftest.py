from __future__ import annotations

import pytest

from tests.cli.running import Command


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs `prefixcache` with the given arguments."""
    return Command(monkeypatch, capsys)
