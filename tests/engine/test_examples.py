"""The examples of the engine and its page print what they promise."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from tests.test_examples import ROOT, fenced, promised

EXAMPLES = sorted((ROOT / "examples/engine").glob("*.py"))
ON_THE_PAGE = fenced(ROOT / "docs/engine.md", "python")


@pytest.mark.parametrize("program", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_prints_what_it_promises(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expected = promised(program.read_text(encoding="utf-8"))
    assert expected
    runpy.run_path(str(program))
    assert capsys.readouterr().out.splitlines() == expected


@pytest.mark.parametrize("number", range(len(ON_THE_PAGE)))
def test_the_page_prints_what_it_promises(number: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = tmp_path / "program.py"
    program.write_text(ON_THE_PAGE[number], encoding="utf-8")
    runpy.run_path(str(program))
    assert capsys.readouterr().out.splitlines() == promised(ON_THE_PAGE[number])
