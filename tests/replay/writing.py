"""Small traces for tests: lines in every compression, and random requests made of pieces."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import zstandard

from prefixcache.keys import Scope
from prefixcache.replay.traces import Trace, TraceRequest
from prefixcache.replay.traces.base import NOTHING, in_replay_order

COMPRESSIONS: dict[str, Callable[[bytes], bytes]] = {
    "": lambda data: data,
    ".gz": gzip.compress,
    ".zst": zstandard.ZstdCompressor().compress,
    ".gz.zst": lambda data: zstandard.ZstdCompressor().compress(gzip.compress(data)),
    ".two-frames.zst": lambda data: b"".join(
        zstandard.ZstdCompressor().compress(part) for part in (data[:40], data[40:])
    ),
    ".two-members.gz": lambda data: gzip.compress(data[:40]) + gzip.compress(data[40:]),
}


def as_lines(rows: Iterable[Any]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def write(path: Path, rows: Iterable[Any], compression: str = "") -> Path:
    """Rows as JSON lines in a file; a row that is a str is written as it stands."""
    data = b"".join((row if isinstance(row, str) else json.dumps(row)).encode() + b"\n" for row in rows)
    path.write_bytes(COMPRESSIONS[compression](data))
    return path


def write_tar(path: Path, members: dict[str, bytes], compression: str = "") -> Path:
    """A tar of these files."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    path.write_bytes(COMPRESSIONS[compression](buffer.getvalue()))
    return path


def request(
    position: int,
    pieces: list[int],
    lengths: list[int] | None,
    *,
    length: int | None = None,
    output: list[int] | None = None,
    output_length: int = 0,
    scope: Scope = Scope(),  # noqa: B008 - frozen
) -> TraceRequest:
    return TraceRequest(
        timestamp=float(position),
        session="",
        position=position,
        pieces=np.array(pieces, dtype=np.uint32),
        lengths=None if lengths is None else np.array(lengths, dtype=np.uint32),
        length=length if length is not None else sum(lengths or [1] * len(pieces)),
        output=np.array(output, dtype=np.uint32) if output else NOTHING,
        output_length=output_length,
        scope=scope,
    )


def trace(requests: Iterable[TraceRequest], *, block_size: int = 1, holds_tokens: bool = False) -> Trace:
    return Trace("made", None, "made", block_size, holds_tokens, in_replay_order(requests))


def random_trace(seed: int, *, requests: int = 60, scopes: int = 1, cut: bool = True) -> Trace:
    """Requests that share beginnings in every way: whole, branching, cut inside a piece, repeated."""
    random = np.random.default_rng(seed)
    names = [Scope(adapter=f"a{i}" if i else None) for i in range(scopes)]
    lengths = {piece: int(random.integers(1, 40)) for piece in range(12)}
    made: list[TraceRequest] = []
    private = 1000
    for position in range(requests):
        if made and random.random() < 0.5:
            before = made[random.integers(len(made))]
            keep = int(random.integers(1, before.pieces.size + 1))
            pieces, sizes = before.pieces[:keep].tolist(), before.lengths[:keep].tolist()  # type: ignore[index]
            if random.random() < 0.3 and before.output.size:
                pieces, sizes = before.pieces.tolist(), before.lengths.tolist()  # type: ignore[union-attr]
                pieces.append(int(before.output[0]))
                sizes.append(before.output_length)
        else:
            pieces, sizes = [], []
        for piece in random.integers(0, 12, size=int(random.integers(0 if pieces else 1, 5))).tolist():
            pieces.append(piece)
            sizes.append(lengths[piece])
        if cut and random.random() < 0.4:
            sizes[-1] = int(random.integers(1, sizes[-1] + 1))
        private += 1
        made.append(
            request(
                position,
                pieces,
                sizes,
                output=[private],
                output_length=int(random.integers(1, 12)),
                scope=names[random.integers(scopes)],
            )
        )
    return trace(made)
