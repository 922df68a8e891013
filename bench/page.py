"""Writes the tables of docs/performance.md from the raw results in bench/results.

    python bench/page.py

A table stands between `<!-- NAME -->` and `<!-- end -->`, where NAME is one of `TABLES`; all other text is written by
hand and left alone. A test holds that the page shows what the results say.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"
PAGE = ROOT / "docs" / "performance.md"

_NO_RESULTS = "*No results are kept here: run the command.*"
_BLOCK = re.compile(r"(<!-- (?P<name>[\w: ]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def main() -> None:
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


def filled(page: str) -> str:
    """The page with all its tables made anew."""

    def table(found: re.Match[str]) -> str:
        try:
            lines = TABLES[found["name"]]()
        except FileNotFoundError:
            lines = [_NO_RESULTS]
        return found[1] + "\n" + "\n".join(lines) + "\n\n" + found[3]

    return _BLOCK.sub(table, page)


def names(page: str) -> list[str]:
    """The tables that stand on the page."""
    return [found["name"] for found in _BLOCK.finditer(page)]


def read(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """A Markdown table; all but the first column stand on the right."""
    head = list(head)
    ruler = "|---|" + "---:|" * (len(head) - 1)
    return [f"| {' | '.join(head)} |", ruler, *(f"| {' | '.join(row)} |" for row in rows)]


def figure(value: float | None) -> str:
    """Three significant digits."""
    if value is None:
        return ""
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:,.{digits}f}"


def machine(entry: dict[str, Any]) -> str:
    return f"{entry['cpu']}, {entry['cores']} cores, load {entry['load'][0]:.0f}"


# -- the main job ---------------------------------------------------------------------------------


def compare_runs() -> list[str]:
    result = read("compare_mooncake")
    rows = []
    for run in result["runs"]:
        designs = ", ".join(f"{row['design']} at {row['block_size']}" for row in run["rows"])
        goal = f"{run['goal']['cpu_seconds']:.0f} s, {run['goal']['memory_bytes'] / 2**20:,.0f} MiB"
        rows.append((designs, f"{run['cpu_seconds']:.1f} s", f"{run['peak_memory_bytes'] / 2**20:,.0f} MiB", goal))
    head = ("designs, one run", "CPU", "peak memory", "goal")
    limits = result["physical_limits"]
    passes = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in limits["cpu_seconds"].items())
    note = f"Once over the same {limits['bytes'] / 1e6:,.0f} MB of tokens: {passes}. {machine(result['machine'])}."
    return [*table(head, rows), "", note]


def compare_rows() -> list[str]:
    rows = [
        (
            f"{row['design']} at {row['block_size']}",
            f"{row['hit_tokens'] / row['prompt_tokens']:.2%}",
            f"{row['ideal_tokens'] / row['prompt_tokens']:.2%}",
            figure(row["us_p50"]),
            figure(row["us_p99"]),
        )
        for row in read("compare_mooncake")["runs"][-1]["rows"]
    ]
    return table(("design", "reused", "ceiling", "us a request, median", "p99"), rows)


# -- beside rivals --------------------------------------------------------------------------------


def _with_p99(row: dict[str, Any], part: float = 1) -> str:
    """A median with the 99th percentile in brackets, where there is one."""
    return figure(row["median"] / part) + (f" ({figure(row['p99'] / part)})" if row["p99"] is not None else "")


def _rival_rows(*parts: str) -> list[str]:
    rows = read("rivals")["rows"]
    whats = list(dict.fromkeys(row["what"] for row in rows if row["what"].startswith(parts)))
    by_side: dict[str, dict[str, str]] = {}
    for row in rows:
        by_side.setdefault(row["side"], {})[row["what"]] = _with_p99(row)
    shown_sides = {side: cells for side, cells in by_side.items() if any(what in cells for what in whats)}
    return table(
        ("", *whats), ((side, *(cells.get(what, "") for what in whats)) for side, cells in shown_sides.items())
    )


def rivals_find() -> list[str]:
    return _rival_rows("find", "store")


def rivals_mixed() -> list[str]:
    rows: dict[str, list[str]] = {}
    for row in read("rivals")["rows"]:
        if "mixed requests" in row["what"]:
            shown = {"requests/s": f"{row['median']:,.0f}", "%": f"{row['median']:.1f}", "us": _with_p99(row)}
            rows.setdefault(row["side"], []).append(shown[row["unit"]])
    head = ("", "requests in a second of CPU", "us a request", "% of the tokens reused")
    return table(head, ((side, *cells) for side, cells in rows.items()))


def rivals_keys() -> list[str]:
    return _rival_rows("keys", "once over")


def rivals_quoted() -> list[str]:
    quoted = read("rivals")["quoted"]
    return table(
        ("quoted, not run here", "work", "figure"),
        ((entry["who"], entry["what"], f"{entry['figure']:,} {entry['unit']}") for entry in quoted),
    )


def rivals_run() -> list[str]:
    result = read("rivals")
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    left_out = "".join(f" Without {name}: {fault}." for name, fault in result["not_run"].items())
    return [f"`{result['command']}` on {machine(result['machine'])}; {versions}.{left_out}"]


# -- the designs ----------------------------------------------------------------------------------


def radix_rows() -> list[str]:
    rows = read("radix")["rows"]
    sides = list(dict.fromkeys(row["side"] for row in rows))
    cells: dict[str, dict[str, str]] = {}
    for row in rows:
        part = 1000 if row["unit"] == "us" and "garbage" in row["what"] else 1
        unit = "ms" if part == 1000 else row["unit"]
        value = f"{row['median']:.1%}" if not unit else _with_p99(row, part)
        cells.setdefault(f"{row['what']}{', ' + unit if unit else ''}", {})[row["side"]] = value
    return table(("", *sides), ((what, *(row.get(side, "") for side in sides)) for what, row in cells.items()))


def hash_chain_rows() -> list[str]:
    rows = ((row["what"], row["side"], f"{_with_p99(row)} {row['unit']}".strip()) for row in read("hash_chain")["rows"])
    return table(("work", "how", "median (p99)"), rows)


def children_rows() -> list[str]:
    return table(
        (
            "children of a node",
            "tokens in common",
            "best partial match, us",
            "by a scan, us",
            "added, us",
            "bytes a child",
        ),
        (
            (
                f"{row['children']:,}",
                str(row["shared"]),
                figure(row["best_us"]),
                figure(row["scan_us"]),
                figure(row["add_us"]),
                str(row["bytes_per_child"]),
            )
            for row in read("children")["rows"]
        ),
    )


def digest_chain_rows() -> list[str]:
    result = read("digest_chain")
    blocks = [name for name in result if name.startswith("block ")]
    what = list(result[blocks[0]]["exact"])
    return table(
        ("32,768 cached tokens, us", *blocks),
        ((name, *(figure(result[block]["exact"][name]) for block in blocks)) for name in what),
    )


def groups_rows() -> list[str]:
    result = read("groups")
    rows = [
        (f"{row['design']}, {row['groups']}", figure(row["us_p50"]), figure(row["us_p99"]), f"{row['ratio']:.2f}")
        for row in result["rows"]
    ]
    note = f"`{result['command']}` on {machine(result['machine'])}."
    return [*table(("groups", "us a request, median", "p99", "to none"), rows), "", note]


def tiers_rows() -> list[str]:
    result = read("tiers")
    rows = [
        (f"{row['design']}, {row['prefix']}", *map(figure, (row["us_p50"], row["us_p99"], row["us_per_block"])))
        for row in result["rows"]
    ]
    block, note = result["block"], f"`{result['command']}` on {machine(result['machine'])}."
    moved = f"A block of 2 MiB down and up again: {figure(block['us_p50'])} us ({figure(block['us_p99'])})."
    return [*table(("prefix", "us a request, median", "p99", "more, us a block"), rows), "", f"{moved} {note}"]


def threads_rows() -> list[str]:
    result = read("threads")
    speed, copy = result["speed"], result["copy"]
    held = [
        (f"{row['design']}, {row['threads']} thread{'s' if row['threads'] > 1 else ''}", *map(figure, _us(row)))
        for row in result["holds"]
    ]
    held.append((f"*one block of {copy['bytes'] / 2**20:.0f} MiB copied*", *map(figure, _us(copy))))
    sides = {
        "bare": "bare threads",
        "workers": "batches, copy workers",
        "themselves": "batches, threads that copy themselves",
    }
    gains = [
        (title, *(figure(speed[name][part]) for part in ("ms_one", "ms_two", "speed_up", "share")))
        for name, title in sides.items()
    ]
    lock = [
        (row["design"], figure(row["us_lock"]), figure(row["us_none"]), f"{row['ratio']:.3f}") for row in result["lock"]
    ]
    return [
        *table(("lock held by one `open`, us", "median", "p99"), held),
        "",
        *table((f"{speed['copies']:,} copies, ms", "one", "two", "speed-up", "of bare"), gains),
        "",
        *table(("a request on one thread, us of CPU", "with the lock", "without", "ratio"), lock),
        "",
        f"`{result['command']}` on {machine(result['machine'])}.",
    ]


def _us(row: dict[str, Any]) -> tuple[float, float]:
    return row["us_p50"], row["us_p99"]


# -- the engine -----------------------------------------------------------------------------------


def ttft_rows() -> list[str]:
    def milliseconds(seconds: list[float]) -> str:
        ordered = sorted(seconds)
        return f"{1000 * statistics.median(ordered):,.0f} ({1000 * ordered[int(len(ordered) * 0.99)]:,.0f})"

    rows = (
        (
            row["case"]["name"],
            f"{row['design']} at {row['block_size']}",
            f"{row['warm_tokens']:,} of {row['cold_tokens']:,}",
            milliseconds(row["cold_seconds"]),
            milliseconds(row["warm_seconds"]),
            milliseconds(row["floor_seconds"]),
            f"{row['gain']:.1f}",
            f"{row['over_floor']:.2f}",
        )
        for row in read("ttft")["rows"]
    )
    head = ("case", "design", "tokens computed", "cold, ms", "warm, ms", "floor, ms", "cold : warm", "warm : floor")
    return [*table(head, rows), "", engine_run("ttft")]


def engine_run(name: str) -> str:
    result = read(name)
    return f"`{result['command']}` on {machine(result['machine'])}."


def engine_identity() -> list[str]:
    head = ("family", "answers", "tokens", "near ties", "largest difference of a logit")
    counted = ("cancelled", "preempted", "evicted_blocks")
    rows = (
        (
            row["family"],
            *(f"{row[name]:,}" for name in ("answers", "tokens", "near_ties")),
            f"{row['largest_difference']:.1e}",
            *(f"{row[name]:,}" for name in counted),
        )
        for row in read("engine_identity")["rows"]
    )
    named = ("cancelled", "preemptions", "blocks evicted")
    return [*table((*head, *named), rows), "", engine_run("engine_identity")]


def engine_zero_hits() -> list[str]:
    sides = {"on": "engine, reuse on", "off": "engine, reuse off", "transformers": "transformers alone"}
    rows = (
        (
            f"{sides[row['side']]} : {sides[row['base']]}",
            f"{row['mean']:.4f}",
            f"{row['low']:.4f} to {row['high']:.4f}",
        )
        for row in read("engine_zero_hits")["rows"]
    )
    return [*table(("CPU time", "mean", "95 % interval"), rows), "", engine_run("engine_zero_hits")]


def engine_soak() -> list[str]:
    result = read("engine_soak")
    memory = [size / 2**20 for size in result["resident_bytes"]]
    counted = ("steps", "finished", "cancelled", "preempted", "evicted_blocks")
    rows = [(name.replace("_", " "), f"{result[name]:,}") for name in counted]
    rows.append(("blocks free at the end", f"{result['free']} of {result['capacity']}"))
    rows.append(("memory, half way and at the end", f"{memory[len(memory) // 2]:,.0f} MiB, {memory[-1]:,.0f} MiB"))
    rows.append(("growth from the middle to the last quarter", f"{result['growth']:+.2%}"))
    return [*table((f"{result['minutes']:.0f} minutes", ""), rows), "", engine_run("engine_soak")]


TABLES: dict[str, Callable[[], list[str]]] = {
    "compare runs": compare_runs,
    "compare rows": compare_rows,
    "rivals run": rivals_run,
    "rivals find": rivals_find,
    "rivals mixed": rivals_mixed,
    "rivals keys": rivals_keys,
    "rivals quoted": rivals_quoted,
    "radix": radix_rows,
    "hash_chain": hash_chain_rows,
    "children": children_rows,
    "digest_chain": digest_chain_rows,
    "groups": groups_rows,
    "tiers": tiers_rows,
    "threads": threads_rows,
    "ttft": ttft_rows,
    "engine identity": engine_identity,
    "engine zero hits": engine_zero_hits,
    "engine soak": engine_soak,
}


if __name__ == "__main__":
    main()
