"""The command `prefixcache`: one module per sub-command, registered here and nowhere else."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from prefixcache import __version__
from prefixcache.cli.article import article
from prefixcache.cli.compare import compare
from prefixcache.cli.scenario import scenario
from prefixcache.cli.ttft import ttft
from prefixcache.errors import PrefixCacheError

USAGE_ERROR = 2
INTERRUPTED = 130

app = typer.Typer(
    name="prefixcache",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="Prefix caching for LLM inference: compare the designs of the field on your own traffic.",
)
app.command()(compare)
app.command()(scenario)
app.command()(ttft)
app.command()(article)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"prefixcache {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and leave."),
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line. A user's mistake ends with one sentence on stderr and status 2, never a traceback."""
    try:
        app()
    except PrefixCacheError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(USAGE_ERROR)
    except OSError as error:  # files are named where they are read and written, so it is the output
        typer.echo(f"error: standard output cannot be written: {error.strerror or error}", err=True)
        _leave_output()
        sys.exit(USAGE_ERROR)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _leave_output() -> None:
    """Let what is still buffered go to nowhere, or the interpreter would fail to write it once more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
