"""docs/performance.md shows what the raw results say; `python bench/page.py` makes it so."""

from __future__ import annotations

import json
import re

from bench import page

TEXT = page.PAGE.read_text(encoding="utf-8")


def test_every_table_is_the_one_that_the_results_make() -> None:
    assert page.filled(TEXT) == TEXT, "run: python bench/page.py"


def test_a_changed_figure_is_found() -> None:
    figure = next(re.finditer(r"\| (\d+\.\d) \|", TEXT))
    assert page.filled(TEXT.replace(figure[0], "| 999 |")) != TEXT.replace(figure[0], "| 999 |")


def test_every_table_has_its_place_on_the_page() -> None:
    assert sorted(page.names(TEXT)) == sorted(page.TABLES)


def test_the_rivals_that_ran_are_named_with_their_versions() -> None:
    result = json.loads((page.RESULTS / "rivals.json").read_text(encoding="utf-8"))
    assert {"command", "machine", "versions", "rows", "quoted"} <= result.keys()
    sides = {row["side"].split()[0] for row in result["rows"]}
    assert {"sglang", "vllm", "dynamo"} & sides <= result["versions"].keys()
    assert not {entry["who"] for entry in result["quoted"]} & {row["side"] for row in result["rows"]}
    assert all(row["samples"] > 0 for row in result["rows"])
