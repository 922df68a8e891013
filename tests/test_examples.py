"""What the pages and examples show is what happens: each program prints what stands behind its prints."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def promised(program: str) -> list[str]:
    """The comments behind the lines that print, in order: one comment per printed line."""
    return re.findall(r"^ *print\(.*\)  # (.+)$", program, flags=re.MULTILINE)


def run_command(*arguments: str) -> list[str]:
    """The lines that Python prints; an assertion when it fails."""
    command = [sys.executable, "-W", "error", *arguments]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout.splitlines()


def printed(program: str) -> list[str]:
    return run_command("-c", program)


def fenced(page: Path, language: str) -> list[str]:
    """The fenced blocks of a page that are in this language."""
    text = page.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


EXAMPLES = {path.name: path.read_text(encoding="utf-8") for path in sorted((ROOT / "examples").glob("*.py"))}
ON_PAGES = {
    f"{page.name}-{number}": program
    for page in sorted(
        (*ROOT.glob("*.md"), *(ROOT / "docs" / f"{name}.md" for name in ("attention-groups", "threads", "tiers")))
    )
    for number, program in enumerate(fenced(page, "python"), 1)
}
PROGRAMS = EXAMPLES | ON_PAGES


@pytest.mark.parametrize("name", PROGRAMS)
def test_it_prints_what_it_promises(name: str) -> None:
    expected = promised(PROGRAMS[name])
    assert expected, f"{name} promises nothing"
    assert printed(PROGRAMS[name]) == expected


def test_the_scheduler_answers_as_if_it_had_no_cache() -> None:
    example = runpy.run_path(str(ROOT / "examples" / "scheduler.py"))
    prompts = [[*range(100, 126), *range(start, start + 6)] for start in range(0, 48, 6)]
    expected = []
    for prompt in prompts:
        tokens = list(prompt)
        for _ in range(example["ANSWER"]):
            state = 0
            for token in tokens:
                state = (state * 31 + token) % 1009
            tokens.append(state % 50)
        expected.append(tokens)
    assert sorted(example["serve"](prompts)) == sorted(expected)
    assert example["cache"].stats().hits > 100
    example["cache"].check()


def test_the_readme_has_an_example() -> None:
    assert "README.md-1" in PROGRAMS
    assert "quickstart.py" in PROGRAMS


def columns(line: str) -> list[str]:
    """The cells of a table row without its last two, which are times; any other line as it is."""
    cells = re.split(r"  +", line.strip())
    return cells[:-2] if len(cells) > 3 else [line]


def test_the_readme_shows_the_table_that_the_demo_prints() -> None:
    (shown,) = [block for block in fenced(ROOT / "README.md", "") if block.startswith("built-in")]
    lines = run_command("-m", "prefixcache", "compare")
    same = [columns(line) for line in lines] == [columns(line) for line in shown.splitlines()]
    assert same, "README.md shows another table than `prefixcache compare` prints now:\n" + "\n".join(lines)


def test_the_scenario_on_the_page_of_scenarios_plays(tmp_path: Path) -> None:
    (scenario,) = fenced(ROOT / "docs/scenarios.md", "yaml")
    file = tmp_path / "scenario.yaml"
    file.write_text(scenario, encoding="utf-8")
    assert run_command("-m", "prefixcache", "scenario", str(file))

    file.write_text(scenario.replace("cached: 8", "cached: 4"), encoding="utf-8")
    with pytest.raises(AssertionError, match="cached: expected 4, got 8"):
        run_command("-m", "prefixcache", "scenario", str(file))


def test_a_broken_promise_is_found() -> None:
    program = "print(1)  # 2\n"
    assert printed(program) != promised(program)
