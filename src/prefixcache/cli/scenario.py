"""`prefixcache scenario`: play scenario files and say where the answers differ."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from prefixcache.scenario import report
from prefixcache.scenario.load import load
from prefixcache.scenario.play import play
from prefixcache.scenario.steps import ScenarioError

AS_EXPECTED, DIFFERS, NO_SCENARIO = 0, 1, 2

_EXAMPLES = """
**Examples**

`prefixcache scenario report.yaml` plays one file and names each difference with its step.

`prefixcache scenario tests/scenarios/*.yaml` plays many.

`prefixcache scenario --json report.yaml` prints one object per step with all that it returned.

**A scenario**

```yaml
name: a fully cached prompt still computes one token
cache: {design: radix, block_size: 1, capacity: 64}
steps:
  - run: {tokens: ["1..8"]}
  - open: {as: A, tokens: ["1..8"]}
    expect: {cached: 7}
```

**Exit status**: 0 all as expected, 1 something differed, 2 a file is not a scenario.
"""


def scenario(
    files: Annotated[list[Path], typer.Argument(metavar="FILE", help="Scenario files (YAML).")],
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object per step; differences also go to stderr.")
    ] = False,
) -> None:
    """Play scenario files: a cache, a list of steps, the right answers.

    The KV oracle and the cache's own checks run after every step.
    """
    status = AS_EXPECTED
    for file in files:
        try:
            plays = play(load(file))
        except ScenarioError as error:
            typer.echo(f"error: {error}", err=True)
            status = NO_SCENARIO
            continue
        for played in plays:
            for line in report.objects(played) if as_json else report.lines(played):
                typer.echo(line)
            if as_json:
                for line in report.differences(played):
                    typer.echo(line, err=True)
            if played.differs:
                status = max(status, DIFFERS)
    raise typer.Exit(status)


scenario.__doc__ = f"{scenario.__doc__}\n{_EXAMPLES}"
