"""Pieces become tokens: the same ones in every process, and never the same for two pieces at one offset.

Token j of piece i is `(i * M) ^ P[j]` in 32 bits, with M odd and P[0] = 0. At any offset j that maps
pieces to tokens one to one, so two prompts share exactly the pieces they share and not one token more.
It is one operation a token: expanding costs less than copying the result into a cache. Tokens use the
whole uint32 range, not that of a vocabulary, because a trace has more blocks than a vocabulary has tokens.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

MAX_PIECES = 2**32

_Array: TypeAlias = np.ndarray[Any, np.dtype[np.uint32]]
_MULTIPLIER = np.uint32(0x9E3779B1)
_SMALLEST_PATTERN = 1024


def expand_blocks(pieces: _Array, block_size: int, length: int) -> _Array:
    """Pieces of `block_size` tokens each, cut after `length` tokens. O(length)."""
    rows = (pieces * _MULTIPLIER)[:, np.newaxis] ^ _pattern(block_size)[np.newaxis, :]
    return rows.reshape(-1)[:length]


def expand_pieces(pieces: _Array, lengths: _Array) -> _Array:
    """Pieces of the given lengths, one after the other. O(sum of lengths)."""
    if not pieces.size:
        return np.empty(0, dtype=np.uint32)
    ends = np.cumsum(lengths, dtype=np.int64)
    starts = ends - lengths
    offsets = np.arange(ends[-1]) - np.repeat(starts, lengths)
    tokens: _Array = np.repeat(pieces * _MULTIPLIER, lengths) ^ _pattern(int(lengths.max()))[offsets]
    return tokens


def _pattern(length: int) -> _Array:
    """P[0..length), a view."""
    return _long_pattern(max(_SMALLEST_PATTERN, 1 << (length - 1).bit_length()))[:length]


@lru_cache(maxsize=8)
def _long_pattern(length: int) -> _Array:
    # The finalizer of splitmix64: neighbouring offsets get unrelated bits, and 0 stays 0.
    x = np.arange(length, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((x ^ (x >> np.uint64(31))) & np.uint64(0xFFFFFFFF)).astype(np.uint32)
