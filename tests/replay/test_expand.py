"""Pieces become tokens: deterministic, and equal exactly where the pieces are."""

from __future__ import annotations

import numpy as np
import pytest

from prefixcache.replay.traces.expand import expand_blocks, expand_pieces


def _pieces(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.uint32)


def test_the_tokens_are_the_same_in_every_process() -> None:
    """Traces that were expanded elsewhere, or kept, must go on meaning the same."""
    assert expand_blocks(_pieces(0, 1, 2), 3, 9).tolist() == [
        *(0, 2065550767, 2713282036),
        *(2654435761, 3844781086, 1066277957),
        *(1013904226, 1198735053, 2648151702),
    ]


@pytest.mark.parametrize("offset", [0, 1, 511])
def test_pieces_differ_at_every_offset(offset: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    pieces = np.unique(np.concatenate([np.arange(200_000), random.integers(0, 2**32, 100_000), [2**32 - 1]])).astype(
        np.uint32
    )
    tokens = np.concatenate(
        [
            expand_pieces(part, np.full(part.size, offset + 1))[offset :: offset + 1]
            for part in np.array_split(pieces, 400)
        ]
    )
    assert np.unique(tokens).size == pieces.size


def test_a_piece_is_the_same_text_in_every_place_and_at_every_length() -> None:
    alone = expand_blocks(_pieces(7), 100, 100)
    mixed = expand_pieces(_pieces(3, 7, 5, 7), np.array([10, 100, 1, 60]))
    assert mixed[10:110].tolist() == alone.tolist()
    assert mixed[111:].tolist() == alone[:60].tolist()


@pytest.mark.parametrize("length", [1, 15, 16, 17, 48])
def test_a_prompt_ends_where_its_length_says(length: int) -> None:
    count = -(-length // 16)
    tokens = expand_blocks(np.arange(count, dtype=np.uint32), 16, length)
    assert tokens.dtype == np.uint32
    assert tokens.size == length
    assert tokens.tolist() == expand_blocks(np.arange(3, dtype=np.uint32), 16, 48)[:length].tolist()


def test_no_pieces_are_no_tokens() -> None:
    assert expand_pieces(_pieces(), np.array([], dtype=np.uint32)).size == 0
