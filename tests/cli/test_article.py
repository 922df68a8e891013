"""`prefixcache article` as a user sees it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from prefixcache.article import CLAIMS, VERDICTS
from tests.article.test_story import DRAWN
from tests.cli.running import Command


def test_a_claim_is_shown_with_its_figures_and_its_verdict(command: Command) -> None:
    shown = command("article", "C13", "c5")
    assert (shown.status, shown.err) == (0, "")
    assert shown.out.startswith(f"C13 (3): {CLAIMS['C13'].text}\n")
    assert "2.7e-08" in shown.out
    assert "    wrong: the birthday bound" in shown.out
    assert f"\nC5 (1, 2): {CLAIMS['C5'].text}\n" in shown.out
    assert "    holds: two prompts" in shown.out


def test_figures_stand_before_the_table(command: Command) -> None:
    lines = command("article", "C12").out.splitlines()
    assert lines[1:4] == [
        "    0.8.5 evicts first: parent",
        "    then found by a linear search: 0",
        "    then found by bisection: 2",
    ]
    assert " ".join(lines[4].split()) == "blocks N most lookups ceil(log2(N + 1))"
    assert lines[5].split() == ["128", "8", "8"]


def test_json_is_an_object_keyed_by_claim_number(command: Command, tmp_path: Path) -> None:
    printed = json.loads(command("article", "C13", "C7", "C24", "--json", "-").out)
    assert list(printed) == ["C13", "C7", "C24"]
    for number, entry in printed.items():
        assert entry["claim"] == CLAIMS[number].text
        assert entry["verdict"] in VERDICTS
        assert {"section", "because", "source_read", "figures", "table"} < entry.keys()
    assert printed["C7"]["figures"] == {"tokens matched through 10 nodes": 1000, "dict lookups": 10}
    assert printed["C24"]["table"]["rows"][0][-1] == [0, 3]
    file = tmp_path / "found.json"
    shown = command("article", "C13", "C7", "C24", "--json", file)
    assert "wrong: the birthday bound" in shown.out
    assert json.loads(file.read_text()) == printed


def test_the_page_of_one_claim(command: Command) -> None:
    page = command("article", "C29", "--markdown", "-").out
    assert page.startswith("# Reproducing the article\n")
    assert "\n## C29\n" in page
    assert "| cached when it acts on that | 0 |" in page


def test_nine_steps_draws_the_trees_and_nothing_else(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    shown = command("article", "nine-steps")
    assert (shown.status, shown.err) == (0, "")
    assert shown.out == DRAWN.read_text(encoding="utf-8")


def test_nine_steps_fits_a_narrow_terminal(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    lines = command("article", "nine-steps").out.splitlines()
    assert max(map(len, lines)) <= 60


@pytest.mark.parametrize("given", ["C35", "C0", "13", "nine_steps", ""])
def test_an_unknown_claim_is_an_error_that_says_which_there_are(command: Command, given: str) -> None:
    shown = command("article", "C13", given)
    assert shown.status == 2
    assert shown.out == ""
    assert shown.err == f"error: claim is {given!r}: expected C1 to C34, or nine-steps\n"


@pytest.mark.parametrize("option", ["--json", "--markdown"])
def test_a_file_that_cannot_be_written_is_an_error_before_anything_runs(command: Command, option: str) -> None:
    shown = command("article", "C13", option, "no/such/folder/file")
    assert (shown.status, shown.out) == (2, "")
    assert shown.err == f"error: {option} no/such/folder/file: expected a file in a folder that exists, or -\n"


def test_help_shows_examples(command: Command) -> None:
    shown = command("article", "--help")
    assert shown.status == 0
    assert "prefixcache article C2 C12" in shown.out
    assert "nine-steps" in shown.out
