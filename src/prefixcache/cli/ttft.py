"""`prefixcache ttft`: time to first token of a real model, cold, warm, and the floor."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from prefixcache.cli.files import STANDARD_STREAM, check_writable, write
from prefixcache.replay import setups

if TYPE_CHECKING:
    from prefixcache.engine.ttft import Measurement

_PIPE_WIDTH = 160


def ttft(
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            show_default=False,
            help="smollm2 (real weights, extra `demo`), random-llama, random-qwen3, random-gemma3 or random-lfm2. "
            "[default: smollm2 where it is installed, else random-llama]",
        ),
    ] = None,
    prefix: Annotated[
        int | None,
        typer.Option(
            metavar="TOKENS",
            min=1,
            show_default=False,
            help="Length of the shared prefix. [default: the article's three cases]",
        ),
    ] = None,
    suffix: Annotated[int, typer.Option(metavar="TOKENS", min=1, help="Tokens of each prompt behind the prefix.")] = 32,
    design: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            show_default=False,
            help="A design or a preset; NAME@TOKENS sets its block size. Repeat. [default: all designs]",
        ),
    ] = None,
    block_size: Annotated[
        int | None,
        typer.Option(
            metavar="TOKENS", min=1, show_default=False, help="Tokens per block. [default: as usual per design]"
        ),
    ] = None,
    runs: Annotated[int, typer.Option(metavar="N", min=1, max=999, help="Warm runs; a third as many cold ones.")] = 3,
    threads: Annotated[
        int | None, typer.Option(metavar="N", min=1, show_default=False, help="Threads of torch. [default: its own]")
    ] = None,
    seed: Annotated[
        int, typer.Option(metavar="N", min=0, max=2**63 - 1, help="Seed of the prompts and of random weights.")
    ] = 0,
    json_file: Annotated[
        str | None,
        typer.Option(
            "--json", metavar="FILE", show_default=False, help="Write JSON too; - prints it instead of the table."
        ),
    ] = None,
) -> None:
    """Measure the time to first token of a real model: cold, with its prefix cached, and the floor.

    The floor is transformers alone on a KV cache that holds the prefix already. Needs `prefixcache[engine]`.
    """
    pairs = _setups(design or [], block_size)
    check_writable("--json", json_file)
    from prefixcache import engine  # only here: the rest of the command works without torch
    from prefixcache.engine import ttft as bench

    name = engine.default_model() if model is None else model
    threads = engine.use_threads(threads)
    loaded, _ = engine.load(name, seed)
    given = bench.Case("given", prefix, suffix, block_size) if prefix is not None else None
    cases = [given] if given is not None else [replace(case, suffix=suffix) for case in bench.CASES]
    measured = []
    for measurement in bench.measure(loaded, pairs, cases, runs=runs, seed=seed):
        measured.append(measurement)
        if sys.stderr.isatty():
            typer.echo(f"{measurement.case.name}: {measurement.design} measured", err=True)
    document = {"model": name, "runs": runs, "threads": threads, "seed": seed, "rows": [_row(m) for m in measured]}
    if json_file != STANDARD_STREAM:
        _show(name, measured)
    if json_file is not None:
        write("--json", json_file, json.dumps(document, indent=2))


def _setups(designs: list[str], block_size: int | None) -> list[tuple[str, int]]:
    """Each design once, at its first usual block size: a model takes its time."""
    planned = setups.plan(designs, [] if block_size is None else [block_size], [None])
    if designs:
        return [(setup.design, setup.block_size) for setup in planned]
    return list({setup.design: setup.block_size for setup in reversed(planned)}.items())[::-1]


def _row(measurement: Measurement) -> dict[str, Any]:
    """A measurement as an object for programs: what was counted, medians, and every run."""
    return asdict(measurement) | {
        "case": measurement.case.name,
        "prefix_tokens": measurement.case.prefix,
        "suffix_tokens": measurement.case.suffix,
        "cold_median_seconds": measurement.cold,
        "warm_median_seconds": measurement.warm,
        "floor_median_seconds": measurement.floor,
        "warm_over_floor": measurement.over_floor,
        "cold_over_warm": measurement.cold / measurement.warm,
    }


def _show(model: str, measured: list[Measurement]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    if not console.is_terminal:
        console = Console(highlight=False, soft_wrap=True, width=_PIPE_WIDTH)
    console.print(f"{model}: median milliseconds to the first token", style="bold", markup=False)
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    for heading in ("case", "design"):
        table.add_column(heading, no_wrap=True)
    for heading in ("block", "prefix", "computed", "cold", "warm", "floor", "cold/warm", "warm/floor", "same tokens"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in measured:
        table.add_row(
            row.case.name,
            row.design,
            str(row.block_size),
            f"{row.case.prefix:,}",
            f"{row.warm_tokens:,} of {row.cold_tokens:,}",
            *(f"{1000 * seconds:,.0f}" for seconds in (row.cold, row.warm, row.floor)),
            f"{row.cold / row.warm:.1f}",
            f"{row.over_floor:.2f}",
            "yes" if row.identical else "NO",
        )
    console.print(table)
    console.print("floor: transformers alone, the prefix in its own cache already", markup=False)
