"""`prefixcache article`: the article's claims, each with a test, its figures and a verdict."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from prefixcache.cli.files import STANDARD_STREAM, check_writable, write
from prefixcache.errors import OptionError

if TYPE_CHECKING:
    from prefixcache.article import Finding

NINE_STEPS = "nine-steps"
_PIPE_WIDTH = 160

_EXAMPLES = """
**Examples**

```
prefixcache article                       (all 34 claims)
prefixcache article C2 C12                (these two)
prefixcache article nine-steps            (figure 1, drawn)
prefixcache article --json -              (for programs)
```
"""


def article(
    claims: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="CLAIM",
            show_default=False,
            help=f"C1 to C34, or `{NINE_STEPS}`: the tree after each step of figure 1, for all four designs. "
            "[default: all claims]",
        ),
    ] = None,
    json_file: Annotated[
        str | None,
        typer.Option(
            "--json",
            metavar="FILE",
            show_default=False,
            help="Write an object keyed by claim number too; - prints it instead of the text.",
        ),
    ] = None,
    markdown_file: Annotated[
        str | None,
        typer.Option("--markdown", metavar="FILE", show_default=False, help="Write the findings as a page too."),
    ] = None,
) -> None:
    """Put the article's claims about prefix caching to the test and say which of them hold.

    No claim needs a model; for time to first token on one there is `prefixcache ttft`.
    """
    numbers, story = _read(claims or [])
    check_writable("--json", json_file)
    check_writable("--markdown", markdown_file)
    from prefixcache.article import report  # only here: the other commands need not wait for it

    printed = STANDARD_STREAM not in (json_file, markdown_file)
    findings = _find(numbers, printed)
    if story and printed:
        _draw()
    if json_file is not None:
        write("--json", json_file, json.dumps(report.document(findings), indent=2))
    if markdown_file is not None:
        write("--markdown", markdown_file, report.page(findings))


article.__doc__ = f"{article.__doc__}\n{_EXAMPLES}"


def _read(claims: Sequence[str]) -> tuple[list[str], bool]:
    """The claims to run, and whether the story of figure 1 is to be drawn."""
    from prefixcache.article import NUMBERS

    if not claims:
        return list(NUMBERS), False
    numbers = []
    for given in claims:
        if given.upper() in NUMBERS:
            numbers.append(given.upper())
        elif given != NINE_STEPS:
            raise OptionError(f"claim is {given!r}: expected {NUMBERS[0]} to {NUMBERS[-1]}, or {NINE_STEPS}")
    return list(dict.fromkeys(numbers)), NINE_STEPS in claims


def _find(numbers: Sequence[str], printed: bool) -> dict[str, Finding]:
    """Run the claims, each printed when it is done; a line on standard error says which one is running."""
    from prefixcache.article import CLAIMS

    findings = {}
    errors = Console(stderr=True)
    for number in numbers:
        if errors.is_terminal:
            with errors.status(f"{number}: {CLAIMS[number].text}"):
                findings[number] = CLAIMS[number].test()
        else:
            findings[number] = CLAIMS[number].test()
        if printed:
            _show(number, findings[number], first=len(findings) == 1)
    return findings


def _console() -> Console:
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_PIPE_WIDTH)


def _show(number: str, finding: Finding, *, first: bool) -> None:
    from prefixcache.article import CLAIMS, report

    console = _console()
    if not first:
        console.print()
    claim = CLAIMS[number]
    console.print(f"{number} ({claim.section}): {claim.text}", style="bold", markup=False)
    for name, value in finding.figures:
        console.print(_indented(f"{name}: {report.shown(value)}"))
    if finding.table:
        console.print(_indented(report.as_table(finding)))
    console.print(_indented(report.verdict(finding)))


def _indented(what: str | Table) -> Padding:
    return Padding(Text(what) if isinstance(what, str) else what, (0, 0, 0, 4), expand=False)


def _draw() -> None:
    from prefixcache.article import told

    console = Console()
    width = console.width if console.is_terminal else shutil.get_terminal_size((120, 24)).columns
    for line in told(width):
        typer.echo(line)
