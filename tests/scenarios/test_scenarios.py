"""Every scenario file is played, and every case of the collections is accounted for in cases.yaml."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.shared import files

from prefixcache.cache.presets import PRESETS
from prefixcache.designs import DESIGNS
from prefixcache.scenario import report
from prefixcache.scenario.load import load
from prefixcache.scenario.play import play

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

# The numbers of the two collections; they are not consecutive.
CASES = re.findall(
    r"[BT]\d+",
    """
    B01 B02 B05 B07 B09 B10 B11 B12 B13 B14 B16 B18 B19 B23 B24 B25 B27 B28 B29 B31 B32 B33 B35 B38 B39 B40 B42 B43
    B44 B45 B47 B48 B50 B51 B53 B55 B57 B59 B60 B62 B64 B65 B66 B68 B69 B71
    T01 T02 T03 T04 T05 T06 T07 T08 T09 T10 T11 T13 T14 T16 T17 T20 T21 T22 T23 T24 T25 T26 T27 T28 T29 T30 T31 T32
    T33 T34 T35 T37
    """,
)

REASONS_TO_WAIT = {
    "priorities", "batches", "windows", "disk tier", "tiers that keep what is loaded", "transfers between machines",
    "wire events", "router", "engine", "server", "draft models", "partial reuse",
    "kept duplicates", "statistics per request",
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    case: str
    part: Any = None
    file: str | None = None
    tested_in: str | None = None
    waits_for: str | None = None


ROWS = [Row(**row) for row in yaml.safe_load((HERE / "cases.yaml").read_text())]
FILES = sorted(path.relative_to(HERE).as_posix() for path in HERE.rglob("*.yaml") if path.name != "cases.yaml")
WAITING = {row.file for row in ROWS if row.file and row.waits_for}


def _plays() -> list[tuple[str, str]]:
    """(file, design or preset) of everything that can be played with what is registered."""
    found = []
    for name in FILES:
        if name in WAITING:
            continue
        scenario = load(HERE / name)
        if "preset" in scenario.cache:
            found += [(name, scenario.cache["preset"])] if scenario.cache["preset"] in PRESETS else []
        else:
            designs = scenario.designs or (scenario.cache["design"],)
            found += [(name, design) for design in designs if design in DESIGNS]
    return found


@pytest.mark.parametrize(("name", "design"), _plays())
def test_the_answers_are_right(name: str, design: str) -> None:
    scenario = load(HERE / name)
    if scenario.designs:
        scenario = replace(scenario, designs=(design,))
    for played in play(scenario):
        assert not played.differs, "\n" + "\n".join(report.lines(played))


@pytest.mark.parametrize("name", sorted(WAITING))
def test_a_file_that_waits_is_a_scenario(name: str) -> None:
    assert load(HERE / name).steps


def test_every_case_is_played_or_says_what_it_waits_for() -> None:
    assert sorted({row.case for row in ROWS}) == sorted(CASES)
    for row in ROWS:
        assert row.file or row.tested_in or row.waits_for, f"{row} says nothing"
        assert row.waits_for is None or row.waits_for in REASONS_TO_WAIT, row
        assert row.tested_in is None or (ROOT / row.tested_in).is_file(), row


def test_every_file_of_a_collection_is_a_row_of_the_table() -> None:
    # The files of steps/ show what the format can say; they belong to no collection.
    assert {row.file for row in ROWS if row.file} == {name for name in FILES if not name.startswith("steps/")}


@pytest.mark.parametrize("collection", files("scenarios/from-bug-reports.md"), ids=lambda path: path.name)
def test_the_table_knows_every_bug_report(collection: Path) -> None:
    found = re.findall(r"^### (B\d+)", collection.read_text(), re.MULTILINE)
    assert found == [case for case in CASES if case.startswith("B")]


@pytest.mark.parametrize("collection", files("scenarios/tensorrt-llm.md"), ids=lambda path: path.name)
def test_the_table_knows_every_case_of_tensorrt_llm(collection: Path) -> None:
    found = [f"T{int(number):02}" for number in re.findall(r"^(\d+)\. ", collection.read_text(), re.MULTILINE)]
    assert found == [case for case in CASES if case.startswith("T")]
