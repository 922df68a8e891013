"""What some tokens carry besides their id: the media they stand for, and extra ids.

A picture's placeholder tokens are equal for all pictures, so each covered token is known by
(digest, offset in the item) as well. The beginning of a prompt before its first picture stays shared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from prefixcache.errors import ScopeError
from prefixcache.keys.scope import encode_field

ID_BYTES = 8
EMBEDS_TAG = b"\0prompt embeds\0"  # begins the digest of positions given as embeddings
_LITTLE_U8 = np.dtype("<u8")


@dataclass(frozen=True, slots=True)
class Media:
    """A run of tokens that stands for (a part of) a picture, sound or other item.

    Attributes:
        digest: content digest of the item, bytes or text.
        start: position in the prompt of the first covered token.
        length: tokens covered, at least 1.
        offset: where in the item this run begins, for an item that comes in several runs.
    """

    digest: bytes | str
    start: int
    length: int
    offset: int = 0


# (first token, end token, digest, offset in the item at the first token), relative to where a cut begins
Run: TypeAlias = tuple[int, int, bytes, int]


@dataclass(frozen=True, slots=True)
class Extras:
    """Media runs and extra ids of a token range, in canonical form: hashable, comparable, sliceable.

    Attributes:
        runs: disjoint, sorted; touching runs that continue the same item are one.
        ids: little-endian uint64 per token of the range, b"" when unused.
    """

    runs: tuple[Run, ...] = ()
    ids: bytes = b""

    @property
    def first(self) -> int:
        """The first token that carries anything."""
        return self.runs[0][0] if self.runs and not self.ids else 0

    def cut(self, start: int, end: int) -> Extras | None:
        """What the tokens [start, end) carry, relative to start; None when that is nothing. O(runs)."""
        ids = self.ids[start * ID_BYTES : end * ID_BYTES]
        runs = tuple(
            (max(a, start) - start, min(b, end) - start, digest, offset + max(a, start) - a)
            for a, b, digest, offset in self.runs
            if a < end and b > start
        )
        return Extras(runs, ids) if runs or ids else None

    def encode(self) -> bytes:
        """Prefix-free bytes of this value, equal in every process."""
        parts = [len(self.runs).to_bytes(8, "little")]
        for a, b, digest, offset in self.runs:
            parts += [encode_field(a), encode_field(b), encode_field(digest), encode_field(offset)]
        parts.append(encode_field(self.ids))
        return b"".join(parts)


def common_extras(a: Extras | None, b: Extras | None, most: int) -> int:
    """How many leading tokens of the two ranges carry the same extras, at most `most`. O(runs)."""
    if a is b or a == b:
        return most
    a, b = a or Extras(), b or Extras()
    for mine, theirs in _paired(a.runs, b.runs):
        if mine == theirs:
            continue
        if mine is None or theirs is None or mine[0] != theirs[0]:
            most = min(most, min(run[0] for run in (mine, theirs) if run is not None))
        elif mine[2:] != theirs[2:]:
            most = min(most, mine[0])
        else:
            most = min(most, mine[1], theirs[1])
        break
    if a.ids != b.ids:
        mine_ids, their_ids = a.ids[: most * ID_BYTES], b.ids[: most * ID_BYTES]
        if mine_ids != their_ids:
            x = np.frombuffer(mine_ids, _LITTLE_U8)
            y = np.frombuffer(their_ids, _LITTLE_U8)
            n = min(x.size, y.size)
            differ = np.flatnonzero(x[:n] != y[:n])
            most = min(most, int(differ[0]) if differ.size else n)
    return most


def _paired(a: Sequence[Run], b: Sequence[Run]) -> Iterable[tuple[Run | None, Run | None]]:
    for i in range(max(len(a), len(b))):
        yield (a[i] if i < len(a) else None), (b[i] if i < len(b) else None)


def read_media(media: Iterable[Media | Mapping[str, Any]], length: int) -> tuple[Run, ...]:
    """The media runs of a prompt of `length` tokens, sorted, continued runs joined.

    Raises `ScopeError` when the metadata is malformed: a field missing or of another type, runs that overlap
    or leave the prompt.
    """
    try:
        items = list(media)
    except TypeError:
        raise ScopeError(f"media is {media!r}: expected a sequence of Media") from None
    runs = sorted((_read_run(item, i, length) for i, item in enumerate(items)), key=lambda run: run[:2])
    merged: list[Run] = []
    for run in runs:
        if merged:
            a, b, digest, offset = merged[-1]
            if run[0] < b:
                raise ScopeError(f"media runs overlap at token {run[0]}: each token belongs to one item")
            if run[0] == b and run[2] == digest and run[3] == offset + b - a:
                merged[-1] = (a, run[1], digest, offset)
                continue
        merged.append(run)
    return tuple(merged)


def prompt_embeds(digests: Sequence[bytes], block_size: int, is_embedding: Sequence[bool]) -> tuple[Media, ...]:
    """The media that stand for the positions of a prompt given as embeddings instead of token ids.

    Args:
        digests: one per block of `block_size` positions, of the block's rows of the embedding tensor.
        block_size: positions per digest.
        is_embedding: for each position of the prompt, whether it is an embedding. Prompts that differ in
            this mask alone share nothing from the first difference on.

    Raises `ScopeError` when there are too few digests for an embedding's block.
    """
    media = []
    start = 0
    for position, (chosen, follows) in enumerate(zip(is_embedding, [*is_embedding[1:], False], strict=True)):
        if not chosen:
            start = position + 1
            continue
        block, inside = divmod(position, block_size)
        if follows and inside + 1 < block_size:
            continue
        if block >= len(digests):
            raise ScopeError(f"is_embedding[{position}] is True: expected a digest for block {block}")
        media.append(Media(EMBEDS_TAG + digests[block], start, position + 1 - start, start - block * block_size))
        start = position + 1
    return tuple(media)


def pack_extra_ids(extra_ids: Sequence[int], length: int) -> bytes:
    """One unsigned 64-bit id per token, as bytes. Raises `ScopeError` naming the position of a bad one."""
    try:
        values = list(extra_ids)
    except TypeError:
        raise ScopeError(f"extra_ids is {extra_ids!r}: expected one integer per token") from None
    if len(values) != length:
        raise ScopeError(f"extra_ids has {len(values)} items for {length} tokens: expected one per token")
    for i, value in enumerate(values):
        if isinstance(value, bool) or not hasattr(value, "__index__") or not 0 <= int(value) < 2**64:
            raise ScopeError(f"extra_ids[{i}] is {value!r}: expected an integer from 0 to 2**64 - 1")
    return np.array(values, dtype=_LITTLE_U8).tobytes()


def _read_run(item: Media | Mapping[str, Any], index: int, length: int) -> Run:
    if isinstance(item, Mapping):
        known = {"digest", "start", "length", "offset"}
        if not known >= set(item) or not {"digest", "start", "length"} <= set(item):
            raise ScopeError(f"media[{index}] has the fields {sorted(item)}: expected digest, start, length, offset")
        item = Media(**item)
    if not isinstance(item, Media):
        raise ScopeError(f"media[{index}] is {item!r}: expected a Media")
    digest = item.digest.encode("utf-8", "surrogatepass") if isinstance(item.digest, str) else item.digest
    if not isinstance(digest, bytes) or not digest:
        raise ScopeError(f"media[{index}].digest is {item.digest!r}: expected the digest of its content")
    for field, least in (("start", 0), ("length", 1), ("offset", 0)):
        value = getattr(item, field)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ScopeError(f"media[{index}].{field} is {value!r}: expected an integer from {least} on")
    if item.start + item.length > length:
        raise ScopeError(
            f"media[{index}] covers tokens {item.start} to {item.start + item.length - 1} "
            f"of a prompt of {length} tokens"
        )
    return (item.start, item.start + item.length, digest, item.offset)
