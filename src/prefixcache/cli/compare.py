"""`prefixcache compare`: what each design would have reused of a trace, what it loses and why."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from prefixcache.cli.files import STANDARD_STREAM, check_writable, write
from prefixcache.errors import OptionError
from prefixcache.replay import setups, workloads
from prefixcache.replay.report import as_document, as_table, sentences, title
from prefixcache.replay.results import Comparison
from prefixcache.replay.simulate import compare as replay
from prefixcache.replay.traces import Trace, read_trace

DEFAULT_CAPACITY = "200k"
_TABLE_WIDTH = 160

_EXAMPLES = """
**Examples**

```
prefixcache compare                       (built-in traffic)
prefixcache compare TRACE.jsonl.zst --capacity 4M
prefixcache compare TRACE.jsonl --capacity 1M --capacity unbounded
prefixcache compare TRACE.jsonl --capacity 200k --host 2M
prefixcache compare TRACE.jsonl --design radix --design hash_chain@64
prefixcache compare TRACE.jsonl --capacity 40GiB \\
                                --kv-bytes-per-token 131072
prefixcache compare A.jsonl B.tar.zst --reference --json -
```
"""


def compare(
    traces: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="TRACE",
            show_default=False,
            help="Traces, plain, gzip or zstd; the format (Mooncake, Bailian, Claude Code, RAGPulse, token ids) is "
            "found by looking; - reads standard input. Without any, built-in traffic is replayed.",
        ),
    ] = None,
    design: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            show_default=False,
            help="A design or a preset; NAME@TOKENS sets its block size. Repeat. [default: all designs]",
        ),
    ] = None,
    block_size: Annotated[
        list[int] | None,
        typer.Option(
            metavar="TOKENS", min=1, show_default=False, help="Tokens per block. Repeat. [default: as usual per design]"
        ),
    ] = None,
    capacity: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SIZE",
            show_default=False,
            help="Tokens (400k, 4M), memory (40GiB) or `unbounded`. Repeat. "
            f"[default: {DEFAULT_CAPACITY}, what 24 GiB hold of a model with 128 KiB of KV a token]",
        ),
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            show_default=False,
            help="Room of a host tier below the capacity: what is evicted is kept there, and loaded from there.",
        ),
    ] = None,
    kv_bytes_per_token: Annotated[
        int | None,
        typer.Option(metavar="BYTES", min=1, show_default=False, help="KV of one token, to turn memory into tokens."),
    ] = None,
    warm_up: Annotated[
        float,
        typer.Option(metavar="SHARE", help="Share of the requests that fills the caches and is not counted, 0 to 1."),
    ] = 0.0,
    count_output: Annotated[
        bool, typer.Option("--count-output", help="Let generated tokens go through the caches too.")
    ] = False,
    limit: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, show_default=False, help="Replay only the first N requests."),
    ] = None,
    reference: Annotated[
        bool,
        typer.Option(
            "--reference", help="Add rows that are no design: the ceiling, and a plain LRU over the trace's ids."
        ),
    ] = False,
    json_file: Annotated[
        str | None,
        typer.Option(
            "--json", metavar="FILE", show_default=False, help="Write JSON too; - prints it instead of the table."
        ),
    ] = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Count malformed lines and go on, instead of stopping at the first.")
    ] = False,
    trace_block_size: Annotated[
        int | None,
        typer.Option(
            metavar="TOKENS", min=1, show_default=False, help="Tokens per id of the trace, where it is unusual."
        ),
    ] = None,
    traffic: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            show_default=False,
            help=f"Kind of the built-in traffic: mixed, chat, agent or rag. [default: {workloads.MIXED}]",
        ),
    ] = None,
    requests: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            show_default=False,
            help=f"Requests of the built-in traffic. [default: {workloads.DEFAULT_REQUESTS}]",
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            show_default=False,
            help=f"Seed of the built-in traffic. [default: {workloads.DEFAULT_SEED}]",
        ),
    ] = None,
) -> None:
    """Replay traffic through every design; show what each one reuses, what it loses and why."""
    room = [setups.read_capacity(text, kv_bytes_per_token) for text in capacity or [DEFAULT_CAPACITY]]
    below = setups.read_host(host, kv_bytes_per_token)
    planned = setups.plan(design or [], block_size or [], room, below)
    check_writable("--json", json_file)
    if traces:
        _refuse({"--traffic": traffic, "--requests": requests, "--seed": seed}, "shape built-in traffic, not a trace")
        replayed = _read(traces, trace_block_size, skip_bad)
    else:
        _refuse({"--trace-block-size": trace_block_size}, "is about a trace; none is given")
        replayed = iter([_built_in(traffic, requests, seed)])
    compared: list[Comparison] = []
    try:
        for trace in replayed:  # one after the other, so that one trace is in memory at a time
            if limit is not None:
                trace = replace(trace, requests=trace.requests[:limit])
            with _progress(trace) as advance:
                compared.append(
                    replay(trace, planned, warm_up=warm_up, outputs=count_output, reference=reference, progress=advance)
                )
            if json_file != STANDARD_STREAM:
                _show(compared[-1], first=len(compared) == 1)
    finally:  # a bad trace behind good ones takes nothing of these along
        if json_file is not None and compared:
            write("--json", json_file, json.dumps(as_document(compared), indent=2))


compare.__doc__ = f"{compare.__doc__}\n{_EXAMPLES}"


def _refuse(options: dict[str, object], why: str) -> None:
    """An option that would be without effect is a misunderstanding: better said than passed over."""
    given = [name for name, value in options.items() if value is not None]
    if given:
        raise OptionError(f"{', '.join(given)}: {why}")


def _read(paths: list[Path], block_size: int | None, skip_bad: bool) -> Iterator[Trace]:
    for path in paths:
        file = Path("/dev/stdin") if str(path) == STANDARD_STREAM else path
        yield read_trace(file, block_size=block_size, skip_bad=skip_bad)


def _built_in(traffic: str | None, requests: int | None, seed: int | None) -> Trace:
    return workloads.built_in(
        workloads.MIXED if traffic is None else traffic,
        requests=workloads.DEFAULT_REQUESTS if requests is None else requests,
        seed=workloads.DEFAULT_SEED if seed is None else seed,
    )


@contextmanager
def _progress(trace: Trace) -> Iterator[Callable[[], None]]:
    """A bar on standard error while it is a terminal; nothing at all otherwise."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:.0f}%"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(trace.name, total=len(trace.requests))
        yield lambda: progress.advance(task)


def _show(comparison: Comparison, *, first: bool) -> None:
    console = Console(highlight=False, soft_wrap=True)
    console.width = max(console.width, _TABLE_WIDTH)  # a row that wraps can be read, one that is cut cannot
    if not first:
        console.print()
    console.print(title(comparison), style="bold", markup=False)
    console.print(as_table(comparison))
    for sentence in sentences(comparison):
        console.print(sentence, markup=False)
    if comparison.trace.path is None:
        console.print("Next: prefixcache compare YOUR_TRACE.jsonl", markup=False)
