"""The bytes of a trace file, line by line, never all at once: plain, gzip, zstd, or one inside the other."""

from __future__ import annotations

import gzip
import io
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import BinaryIO, TypeVar, cast

import msgspec
import zstandard

from prefixcache.errors import PrefixCacheError

_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_TAR_AT, _TAR = 257, b"ustar"
_HEAD = 512
_BUFFER = 1 << 20
_CHUNK = 1 << 16
_DAMAGED = (EOFError, gzip.BadGzipFile, zlib.error, zstandard.ZstdError, tarfile.TarError)

T = TypeVar("T")


class TraceError(PrefixCacheError, ValueError):
    """A trace cannot be read. The message names the file, the line, what is wrong and what was expected."""


class _Rejoined(io.RawIOBase):
    """The beginning that was read to look at it, then the rest. Pipes cannot be rewound; this can."""

    def __init__(self, head: bytes, rest: BinaryIO) -> None:
        self._head = memoryview(head)
        self._rest = rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        if self._head:
            size = min(len(buffer), len(self._head))
            buffer[:size] = self._head[:size]
            self._head = self._head[size:]
            return size
        data = self._rest.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


class _ZstdFrames(io.RawIOBase):
    """Zstd data, any number of frames. The library's own reader takes data cut off in a frame for its end."""

    def __init__(self, compressed: BinaryIO) -> None:
        self._compressed = compressed
        self._frame = zstandard.ZstdDecompressor().decompressobj()
        self._inside = False  # a frame has begun and not ended
        self._next_frame = b""
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        while not self._ready:
            data = self._next_frame or self._compressed.read(_CHUNK)
            self._next_frame = b""
            if not data:
                if self._inside:
                    raise EOFError("it ends inside a frame")
                return 0
            self._ready = memoryview(self._frame.decompress(data))
            self._inside = not self._frame.eof
            if self._frame.eof:
                self._next_frame = self._frame.unused_data
                self._frame = zstandard.ZstdDecompressor().decompressobj()
        size = min(len(buffer), len(self._ready))
        buffer[:size] = self._ready[:size]
        self._ready = self._ready[size:]
        return size


@contextmanager
def opened(path: Path) -> Iterator[tuple[BinaryIO, bytes]]:
    """The uncompressed stream of a file and its first bytes; damage anywhere becomes a `TraceError`."""
    try:
        with path.open("rb") as file:
            yield _uncompressed(file)
    except _DAMAGED as error:
        raise TraceError(f"{path}: the compressed data is damaged or cut off ({error})") from None
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror or error}") from None


def _uncompressed(file: BinaryIO) -> tuple[BinaryIO, bytes]:
    stream: BinaryIO = file
    while True:
        head = stream.read(_HEAD)
        while len(head) < _HEAD and (more := stream.read(_HEAD - len(head))):
            head += more
        stream = cast(BinaryIO, io.BufferedReader(_Rejoined(head, stream), _BUFFER))
        if head.startswith(_GZIP):
            stream = cast(BinaryIO, gzip.GzipFile(fileobj=stream))
        elif head.startswith(_ZSTD):
            stream = cast(BinaryIO, io.BufferedReader(_ZstdFrames(stream), _BUFFER))
        else:
            return stream, head


def is_tar(head: bytes) -> bool:
    """Whether a file that begins so is a tar archive."""
    return head[_TAR_AT : _TAR_AT + len(_TAR)] == _TAR


def tar_members(stream: BinaryIO) -> Iterator[tuple[str, BinaryIO]]:
    """The files of a tar, in its order, read as a stream: (name, bytes)."""
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        for member in archive:
            file = archive.extractfile(member) if member.isfile() else None
            if file is not None:
                yield member.name, cast(BinaryIO, file)


class Lines:
    """Numbered lines of one file, decoded; what cannot be decoded is an error with its place, or is counted.

    Attributes:
        path: the file.
        where: what it is called in messages, the member of an archive with it.
        skip_bad: count malformed lines and go on.
        skipped: how many there were.
    """

    def __init__(self, stream: BinaryIO, path: Path, *, member: str = "", skip_bad: bool = False) -> None:
        self._lines: Iterator[tuple[int, bytes]] = (
            (number, line) for number, line in enumerate(stream, 1) if line.strip()
        )
        self.path = path
        self.where = f"{path}!{member}" if member else str(path)
        self.skip_bad = skip_bad
        self.skipped = 0
        self._expected = "JSON"

    def first(self) -> tuple[int, bytes] | None:
        """The next line, which stays to be read; None at the end."""
        found = next(self._lines, None)
        if found is not None:
            self._lines = chain([found], self._lines)
        return found

    def drop_first(self) -> None:
        """Pass over the next line as a malformed one."""
        next(self._lines, None)
        self.skipped += 1

    def whole(self) -> None:
        """Make all that is left one line: a JSON document written over many lines."""
        found = list(self._lines)
        if found:
            self._lines = iter([(found[0][0], b"".join(line for _, line in found))])

    def decode(self, line_type: type[T], expected: str) -> Iterator[tuple[int, T]]:
        """(line number, value) of every line; `expected` says in messages what a good line looks like."""
        self._expected = expected
        decoder = msgspec.json.Decoder(line_type)
        for number, line in self._lines:
            try:
                value = decoder.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                self.fault(number, _reason(error))
            else:
                yield number, value

    def fault(self, number: int, wrong: str) -> None:
        """Report or count a malformed line."""
        if not self.skip_bad:
            raise TraceError(f"{self.where}, line {number}: {wrong}. Expected {self._expected}")
        self.skipped += 1


def _reason(error: Exception) -> str:
    if isinstance(error, msgspec.ValidationError):
        said = str(error).replace("`", "'")
        return said[:1].lower() + said[1:]
    return f"not valid JSON ({error})"
