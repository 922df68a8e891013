"""Tokens enter once: any integer sequence becomes one little-endian uint32 buffer.

Everything behind this module works on that buffer: prefixes are compared by memcmp, blocks are slices,
and no alias of the caller's data is kept.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np

from prefixcache.errors import TokenError

TOKEN_BYTES = 4
MAX_TOKEN = 2**32 - 1

Buffer: TypeAlias = bytes | bytearray
TokenLike: TypeAlias = Sequence[int] | Iterable[int] | np.ndarray[Any, Any]

_LITTLE_U4 = np.dtype("<u4")
_NATIVE_IS_LITTLE = np.dtype("=u4") == _LITTLE_U4


def as_tokens(tokens: TokenLike) -> bytes:
    """The tokens as one little-endian uint32 buffer, a private copy.

    Accepts list, tuple, range, any iterable of ints, `array`, memoryview, numpy and torch arrays of an
    integer type, one-dimensional. Raises `TokenError` naming the position of the first item that is no
    unsigned 32-bit id (negative, bool, float, too large); nothing wraps. O(n).
    """
    if isinstance(tokens, list | tuple):
        return _from_list(tokens)
    if isinstance(tokens, np.ndarray):
        return _from_array(tokens)
    if isinstance(tokens, str | bytes | bytearray):
        raise TokenError(f"tokens must be integer ids, not {type(tokens).__name__}: tokenize the text first")
    if isinstance(tokens, array | memoryview):
        return _from_array(np.asarray(tokens))
    if hasattr(tokens, "detach"):  # a torch tensor, wherever it lives
        return _from_array(tokens.detach().cpu().numpy())
    if hasattr(tokens, "__array__"):
        return _from_array(np.asarray(tokens))
    try:
        return _from_list(list(tokens))
    except TypeError:
        raise TokenError(f"tokens must be a sequence of integer ids, not {type(tokens).__name__}") from None


def _from_list(tokens: Sequence[int]) -> bytes:
    packed = array("I")
    try:  # a third faster than array("I", tokens), which asks for each item by its index
        packed.fromlist(tokens if isinstance(tokens, list) else list(tokens))
    except (TypeError, OverflowError, ValueError):
        raise _first_fault(tokens) from None
    view = np.frombuffer(packed, dtype=np.uint32)
    # True and False pass for 1 and 0 in an array; only items of that value can be bools, so only they are looked at.
    if packed and view.min() <= 1 and any(isinstance(tokens[i], bool) for i in np.flatnonzero(view <= 1).tolist()):
        raise _first_fault(tokens)
    return packed.tobytes() if _NATIVE_IS_LITTLE else view.astype(_LITTLE_U4).tobytes()


def _from_array(tokens: np.ndarray[Any, Any]) -> bytes:
    if tokens.ndim != 1:
        raise TokenError(f"tokens must be one-dimensional, not of shape {tokens.shape}")
    if tokens.dtype == _LITTLE_U4:
        return tokens.tobytes()
    if tokens.size == 0:
        return b""
    if tokens.dtype.kind not in "iu":
        if tokens.dtype.kind == "O":
            return _from_list(tokens.tolist())
        raise TokenError(f"tokens[0] is of type {tokens.dtype}: a token is an integer from 0 to {MAX_TOKEN}")
    if tokens.dtype.kind == "i" or tokens.dtype.itemsize > TOKEN_BYTES:
        bad = np.flatnonzero((tokens < 0) | (tokens > MAX_TOKEN))
        if bad.size:
            raise _fault(int(bad[0]), int(tokens[bad[0]]))
    return tokens.astype(_LITTLE_U4).tobytes()


def _first_fault(tokens: Sequence[Any]) -> TokenError:
    for i, token in enumerate(tokens):
        if isinstance(token, bool) or not hasattr(token, "__index__") or not 0 <= int(token) <= MAX_TOKEN:
            return _fault(i, token)
    return TokenError("tokens are no unsigned 32-bit ids")


def _fault(position: int, token: object) -> TokenError:
    return TokenError(f"tokens[{position}] is {token!r}: a token is an integer from 0 to {MAX_TOKEN}")


def to_tuple(buffer: Buffer) -> tuple[int, ...]:
    """The token ids of a buffer."""
    return struct.unpack(f"<{len(buffer) // TOKEN_BYTES}I", buffer)


def to_numpy(buffer: Buffer) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """A read-only uint32 snapshot of a buffer."""
    return np.frombuffer(bytes(buffer), dtype=_LITTLE_U4)


def common_tokens(a: Buffer, a_start: int, b: Buffer, b_start: int, most: int) -> int:
    """How many tokens the two buffers share from these token positions on, at most `most`.

    Halving with memcmp: every step compares only bytes not yet known to be equal. O(most) bytes,
    O(log most) steps; no step when the ranges are equal.
    """
    a_at, b_at = a_start * TOKEN_BYTES, b_start * TOKEN_BYTES
    if a[a_at : a_at + most * TOKEN_BYTES] == b[b_at : b_at + most * TOKEN_BYTES]:
        return most
    low, high = 0, most - 1  # the answer lies in [low, high]
    while low < high:
        middle = (low + high + 1) // 2
        lo, hi = low * TOKEN_BYTES, middle * TOKEN_BYTES
        if a[a_at + lo : a_at + hi] == b[b_at + lo : b_at + hi]:
            low = middle
        else:
            high = middle - 1
    return low
