"""The layout of vLLM's v1 engine: SHA-256 over canonical CBOR, byte for byte its `sha256_cbor`.

    key[i] = SHA-256(CBOR([key[i-1], [tokens of block i], extra keys or null]))
    key[-1] = SHA-256(CBOR(seed)),   seed = PYTHONHASHSEED if it is set, else "vllm-none-hash"

Extra keys, each tagged, in this order; the last three are ours and appear only when they are used:

    ("lora", name, path)        every block; the adapter is written NAME=PATH, as on vLLM's command line
    ("mm", digest, offset)      every item that overlaps the block; offset of its beginning from the block's
    ("cache_salt", salt)        block 0
    ("prompt_embeds", digest, from, to, offset)   positions given as embeddings, see `prompt_embeds`
    ("model", m), ("generation", g)   block 0;   ("extra_ids", bytes)   every block

vLLM's prompt_embeds key has no positions, so that prompts which differ only in what is an embedding share
blocks; ours has them. Its mm key does not say where an item ends: a cache confirms that itself.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from itertools import pairwise
from typing import TypeAlias

import numpy as np

from prefixcache.keys.chain import ChainHash
from prefixcache.keys.extras import EMBEDS_TAG, Extras
from prefixcache.keys.scope import Scope
from prefixcache.keys.tokens import TOKEN_BYTES, Buffer

Value: TypeAlias = "int | str | bytes | tuple[Value, ...] | None"

_UNSIGNED, _NEGATIVE, _BYTES, _TEXT, _ARRAY = 0, 1, 2, 3, 4
_NULL = b"\xf6"
_DEFAULT_SEED = "vllm-none-hash"
_FEW_TOKENS = 64  # fewer are encoded one by one faster than with numpy

# By size of a token: below 24, one byte, two, four.
_HEADS = np.array([0, 0x18, 0x19, 0x1A], np.uint8)
_WIDTHS = np.array([1, 2, 3, 5])
_KEPT = np.array([[1, 0, 0, 0, 0], [1, 0, 0, 0, 1], [1, 0, 0, 1, 1], [1, 1, 1, 1, 1]], np.bool_)


class CborChain(ChainHash):
    """See the module. Keys are the same in every process that sees the same PYTHONHASHSEED, or none.

    Args:
        block_size: tokens per block.
        lookahead: tokens behind a block that its key covers: they follow the extra keys, as in vLLM.
    """

    covers_extras = False

    def __init__(self, block_size: int, lookahead: int = 0) -> None:
        super().__init__("sha256", block_size, lookahead)
        self.name = "sha256_cbor"
        self._none_hash = self._digest(encode(os.environ.get("PYTHONHASHSEED", _DEFAULT_SEED)))
        self._head = _head(_ARRAY, 3) + _head(_BYTES, len(self._none_hash))
        self._tokens_head = _head(_ARRAY, block_size)

    def root(self, scope: bytes) -> bytes:
        """The same for all scopes: these are told apart by the extra keys."""
        return self._none_hash

    def blocks(
        self,
        parent: bytes,
        tokens: Buffer,
        start: int,
        end: int,
        extras: Extras | None,
        scope: Scope | None = None,
    ) -> list[bytes]:
        if start >= end:
            return []
        size = self.block_size
        self.hashed += end - start
        scope = scope or Scope()
        bodies = _encode_tokens(tokens, start * size, end * size, size)
        adapter = _adapter_keys(scope)
        everywhere = _NULL if not adapter else encode(adapter)
        plain = extras is None and not self.lookahead
        keys = []
        head, middle, sha256 = self._head, self._tokens_head, hashlib.sha256
        for index, body in enumerate(bodies, start):
            extra = everywhere if plain and index else self._extra(index, tokens, extras, scope, adapter)
            parent = sha256(head + parent + middle + body + extra).digest()
            keys.append(parent)
        return keys

    def _extra(
        self, index: int, tokens: Buffer, extras: Extras | None, scope: Scope, adapter: tuple[Value, ...]
    ) -> bytes:
        """The encoded extra keys of one block, null when it has none."""
        at, covered = index * self.block_size, self.block_size + self.lookahead
        carried = extras.cut(at, at + covered) if extras is not None else None
        named: Value = extra_keys(scope, carried, first=index == 0, adapter=adapter) or None
        if not self.lookahead:
            return encode(named)
        behind = np.frombuffer(tokens, "<u4", self.lookahead, (at + self.block_size) * TOKEN_BYTES)
        return encode((named, *behind.tolist()))


def extra_keys(scope: Scope, carried: Extras | None, first: bool, adapter: tuple[Value, ...]) -> tuple[Value, ...]:
    """The tagged extra keys of a block: what its scope and the tokens in it carry; () for nothing."""
    keys = list(adapter)
    embeds: list[Value] = []
    for start, end, digest, offset in carried.runs if carried is not None else ():
        if digest.startswith(EMBEDS_TAG):
            embeds.append(("prompt_embeds", digest.removeprefix(EMBEDS_TAG), start, end, offset))
        else:
            keys.append(("mm", _text(digest), start - offset))
    if first and scope.salt is not None:
        keys.append(("cache_salt", scope.salt))
    keys += embeds
    if first and scope.model != "":
        keys.append(("model", scope.model))
    if first and scope.generation:
        keys.append(("generation", scope.generation))
    if carried is not None and carried.ids:
        keys.append(("extra_ids", carried.ids))
    return tuple(keys)


def _adapter_keys(scope: Scope) -> tuple[Value, ...]:
    """NAME=PATH is vLLM's key of an adapter; any other identity has a shorter key, so none coincide."""
    adapter = scope.adapter
    if adapter is None:
        return ()
    name, equals, path = adapter.partition("=") if isinstance(adapter, str) else (adapter, "", "")
    return (("lora", name, path),) if equals else (("lora", adapter),)


def _text(digest: bytes) -> Value:
    """A digest as text where it is text: the two spellings of one digest are one."""
    try:
        return digest.decode()
    except UnicodeDecodeError:
        return digest


def encode(value: Value) -> bytes:
    """Canonical CBOR of None, ints, text, bytes and tuples of these."""
    if value is None:
        return _NULL
    if isinstance(value, int):
        return _head(_UNSIGNED, value) if value >= 0 else _head(_NEGATIVE, -1 - value)
    if isinstance(value, str):
        data = value.encode("utf-8", "surrogatepass")
        return _head(_TEXT, len(data)) + data
    if isinstance(value, bytes):
        return _head(_BYTES, len(value)) + value
    return _head(_ARRAY, len(value)) + b"".join(map(encode, value))


def _head(kind: int, count: int) -> bytes:
    """The first byte of an item and its shortest argument."""
    if count < 24:
        return bytes((kind << 5 | count,))
    for info, width in ((24, 1), (25, 2), (26, 4), (27, 8)):
        if count < 1 << 8 * width:
            return bytes((kind << 5 | info,)) + count.to_bytes(width, "big")
    # Beyond 64 bits an integer is a tagged byte string (2 for unsigned, 3 for negative numbers).
    data = count.to_bytes((count.bit_length() + 7) // 8, "big")
    return bytes((6 << 5 | 2 + kind,)) + _head(_BYTES, len(data)) + data


def _encode_tokens(tokens: Buffer, start: int, end: int, size: int) -> Iterable[bytes]:
    """The encoded items of each block of the tokens [start, end), without the heads of their arrays."""
    values = np.frombuffer(tokens, "<u4", end - start, start * TOKEN_BYTES)
    if len(values) < _FEW_TOKENS:
        listed = values.tolist()
        return [b"".join([_head(_UNSIGNED, t) for t in listed[i : i + size]]) for i in range(0, len(listed), size)]
    # Each token as five bytes, a head and four of its value; of these as many are kept as its size asks for.
    sizes = (values >= 24).astype(np.uint8) + (values >= 1 << 8) + (values >= 1 << 16)
    wide = np.empty((len(values), 5), np.uint8)
    wide[:, 0] = np.where(sizes, _HEADS[sizes], values)
    wide[:, 1:] = values.astype(">u4").view(np.uint8).reshape(-1, TOKEN_BYTES)
    text = wide[_KEPT[sizes]].tobytes()
    cuts = [0, *np.cumsum(_WIDTHS[sizes].reshape(-1, size).sum(1)).tolist()]
    return [text[a:b] for a, b in pairwise(cuts)]
