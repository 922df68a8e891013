"""Run the command in this process, as the shell would."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import pytest

from prefixcache.cli import main


@dataclass(frozen=True)
class Outcome:
    status: int
    out: str
    err: str


class Command:
    """`command("compare", "--limit", 3)`: its exit status and what it printed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def __call__(self, *arguments: object) -> Outcome:
        self._monkeypatch.setattr(sys, "argv", ["prefixcache", *map(str, arguments)])
        self._capsys.readouterr()
        try:
            main()
            status = 0
        except SystemExit as stopped:
            status = int(stopped.code or 0)
        printed = self._capsys.readouterr()
        return Outcome(status, printed.out, printed.err)
