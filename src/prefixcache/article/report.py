"""How findings are shown: on a terminal, as a page, as an object for programs."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.table import Table

from prefixcache.article.claim import CLAIMS, Claim, Finding, Measured
from prefixcache.article.story import told

PAGE_WIDTH = 120
_PAGE_HEAD = """# Reproducing the article

The article compares how SGLang, vLLM and TensorRT-LLM find cached prefixes. Its claims are numbered here, each with a
test that runs on your machine and a verdict. Made by

```
prefixcache article --markdown docs/reproducing-the-article.md
```

on {machine}.

*Figures in italics* are times and sizes on that machine (CPU time of one thread, medians) and will differ on yours; all
others are the same everywhere, and tests hold them. One claim alone: `prefixcache article C12`; as JSON:
`prefixcache article --json FILE`. No claim here needs a model: for time to first token there is `prefixcache ttft`.
"""
_READ = "The verdict rests on reading the original's source; what is run here illustrates it."


def shown(value: Any) -> str:
    """A figure for people."""
    match value:
        case bool():
            return "yes" if value else "no"
        case Measured():
            digits = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3
            return f"{value:,.{digits}f}"
        case int():
            return f"{value:,}"
        case list() | tuple():
            return ", ".join(map(shown, value)) or "none"
    return str(value)


def as_table(finding: Finding) -> Table:
    """The table of a finding for a terminal."""
    head, *rows = finding.table
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    columns = zip(*([shown(cell) for cell in row] for row in rows), strict=True)
    for heading, cells in zip(head, columns, strict=True):
        numeric = all(re.fullmatch(r"-?[\d.,]+%?", cell) for cell in cells)
        table.add_column(shown(heading), justify="right" if numeric else "left", no_wrap=True)
    for row in rows:
        table.add_row(*map(shown, row))
    return table


def verdict(finding: Finding) -> str:
    """The verdict and why."""
    return f"{finding.verdict}: {finding.because}." + (f" {_READ}" if finding.source_read else "")


def document(findings: Mapping[str, Finding]) -> dict[str, Any]:
    """For programs: claim numbers to what was found."""
    return {number: _entry(CLAIMS[number], finding) for number, finding in findings.items()}


def _entry(claim: Claim, finding: Finding) -> dict[str, Any]:
    head, *rows = finding.table or ((),)
    return {
        "section": claim.section,
        "claim": claim.text,
        "verdict": finding.verdict,
        "because": finding.because,
        "source_read": finding.source_read,
        "figures": dict(finding.figures),
        "table": {"columns": [shown(name) for name in head], "rows": rows},
    }


def page(findings: Mapping[str, Finding]) -> str:
    """All findings as one Markdown page."""
    lines = [*_PAGE_HEAD.format(machine=machine()).splitlines(), "", "| claim | says | verdict |", "|---|---|---|"]
    for number, finding in findings.items():
        text = CLAIMS[number].text
        lines.append(f"| [{number}](#{number.lower()}) | {text} ({CLAIMS[number].section}) | {finding.verdict} |")
    for number, finding in findings.items():
        lines += ["", *section(number, finding)]
    return "\n".join(lines)


def section(number: str, finding: Finding) -> list[str]:
    """One finding as lines of the page."""
    lines = [f"## {number}", "", f"> {CLAIMS[number].text}", "", f"**{finding.verdict}**: {finding.because}."]
    lines += ["", f"`prefixcache article {number}`"]
    if finding.source_read:
        lines += ["", _READ]
    if finding.figures:
        lines += ["", "| figure | |", "|---|---|", *map(_row, finding.figures)]
    if finding.table:
        head, *rows = finding.table
        lines += ["", _row(head), "|---" * len(head) + "|", *map(_row, rows)]
    if number == "C34":
        lines += ["", "```", *told(PAGE_WIDTH), "```"]
    return lines


def _row(cells: tuple[Any, ...]) -> str:
    return "| " + " | ".join(f"*{shown(cell)}*" if isinstance(cell, Measured) else shown(cell) for cell in cells) + " |"


def machine() -> str:
    """What ran this, in a line."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    cpu = models[0] if models else platform.processor() or platform.machine()
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return f"{cpu}, {os.cpu_count()} cores, {platform.system()}, {python}"
