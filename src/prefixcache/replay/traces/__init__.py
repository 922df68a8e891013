"""Traces of real traffic: one small reader per format, found by looking at the file.

| module | what a request holds | finest grain |
|---|---|---|
| mooncake | ids of 512-token blocks; the incremental multi-turn variant too | 512; any |
| bailian | ids of 16-token blocks | 16 |
| claude_code | ids of full 64-token blocks, local to a session | 64 |
| ragpulse | ids of documents, their lengths in files beside it | any |
| token_ids | the tokens | any |
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from prefixcache.replay.traces import bailian, claude_code, mooncake, ragpulse, token_ids
from prefixcache.replay.traces.base import Format, Trace, TraceRequest, in_replay_order
from prefixcache.replay.traces.lines import Lines, TraceError, is_tar, opened, tar_members

__all__ = ["FORMATS", "Trace", "TraceError", "TraceRequest", "read_trace"]

# In this order: a RAGPulse line has the keys of a Mooncake line, and Bailian adds keys to them.
FORMATS: tuple[Format, ...] = (
    ragpulse.FORMAT,
    bailian.FORMAT,
    mooncake.FORMAT,
    claude_code.FORMAT,
    token_ids.FORMAT,
)
_SUFFIXES = (".zst", ".gz", ".jsonl", ".json", ".tar", ".tgz")
_LOOK_AT_MOST = 100
_SHOWN_KEYS = 8


def read_trace(path: str | Path, *, block_size: int | None = None, skip_bad: bool = False) -> Trace:
    """Read a trace in any known format: JSON lines, or a tar of sessions; plain, gzip or zstd.

    Args:
        path: the file; a pipe will do.
        block_size: tokens per id, where the trace has another size than its format usually has.
        skip_bad: count malformed lines (`Trace.skipped`) instead of stopping at the first one.

    Returns the requests in replay order; memory is that of their pieces, never that of their tokens
    (except in a trace of tokens). Raises `TraceError` naming file, line and what was expected.
    """
    file = Path(path)
    if file.is_dir():
        raise TraceError(f"{file}: is a folder; expected a trace file, or a tar of session files")
    with opened(file) as (stream, head):
        if not head.strip():
            raise TraceError(f"{file}: is empty. Expected a trace {_known(FORMATS)}")
        if is_tar(head):
            trace = _read_tar(stream, file, block_size, skip_bad)
        else:
            trace = _read_lines(stream, file, block_size, skip_bad)
    if not trace.requests:
        raise TraceError(f"{file}: has no usable request; {trace.skipped} malformed lines were skipped")
    return trace


def _read_lines(stream: BinaryIO, file: Path, block_size: int | None, skip_bad: bool) -> Trace:
    lines = Lines(stream, file, skip_bad=skip_bad)
    kind = _format_of(lines, FORMATS)
    _check_block_size(file, kind, block_size)
    requests, size = kind.read(lines, block_size)
    return _trace(file, kind, requests, size, lines.skipped)


def _read_tar(stream: BinaryIO, file: Path, block_size: int | None, skip_bad: bool) -> Trace:
    kind = claude_code.FORMAT
    _check_block_size(file, kind, block_size)
    reader = claude_code.SessionReader()
    skipped = 0
    for name, member in tar_members(stream):
        lines = Lines(member, file, member=name, skip_bad=skip_bad)
        if name.endswith((".json", ".jsonl")) and lines.first() is not None:
            _format_of(lines, (kind,))
            reader.read(lines)
            skipped += lines.skipped
    requests, size = reader.result()
    return _trace(file, kind, requests, size, skipped)


def _check_block_size(file: Path, kind: Format, block_size: int | None) -> None:
    if block_size is not None and kind.block_size is None:
        raise TraceError(f"{file}: a {kind.name} trace says itself how long its parts are: no block size fits")


def _trace(file: Path, kind: Format, requests: list[TraceRequest], size: int, skipped: int) -> Trace:
    title = file.name
    while title.endswith(_SUFFIXES):
        title = title.rpartition(".")[0]
    return Trace(
        name=title or file.name,
        path=str(file),
        format=kind.name,
        block_size=size,
        holds_tokens=kind.holds_tokens,
        requests=in_replay_order(requests),
        skipped=skipped,
    )


def _format_of(lines: Lines, among: tuple[Format, ...]) -> Format:
    """The reader, by the first line; when bad lines are skipped, by the first line that is known."""
    wrong = "has no line"
    for _ in range(_LOOK_AT_MOST if lines.skip_bad else 1):
        found = lines.first()
        if found is None:
            break
        number, line = found
        if line.strip() in (b"{", b"["):  # a document written over many lines
            lines.whole()
            number, line = lines.first() or found
        try:
            first = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            wrong = f"line {number}: not valid JSON ({error})"
        else:
            known = [kind for kind in among if isinstance(first, dict) and kind.recognises(first)]
            if known:
                return known[0]
            wrong = f"line {number}: {_unknown(first)}"
        lines.drop_first()
    raise TraceError(f"{lines.where}, {wrong}. Expected a trace {_known(among)}")


def _unknown(first: Any) -> str:
    if not isinstance(first, dict):
        return f"{'a list' if isinstance(first, list) else type(first).__name__} where an object should be"
    if ragpulse.is_component(first):
        return "the lengths of a RAGPulse component; name the file with '0_trace', it finds this one"
    keys = ", ".join(list(first)[:_SHOWN_KEYS]) or "no keys"
    return f"an object of no known format (with {keys})"


def _known(among: tuple[Format, ...]) -> str:
    listed = "".join(f"\n  {kind.name:12} an object with {kind.keys}" for kind in among)
    text = "\nText is not read: tokenize it, and write its token ids." if token_ids.FORMAT in among else ""
    return f"in one of these formats, one object a line:{listed}{text}"
