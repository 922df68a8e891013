"""Tokens: any int sequence becomes one uint32 buffer, or a TokenError that names the position."""

from __future__ import annotations

import random
from array import array

import numpy as np
import pytest

from prefixcache.errors import TokenError
from prefixcache.keys import as_tokens, common_tokens, to_tuple

IDS = [0, 1, 7, 2**31, 2**32 - 1]


@pytest.mark.parametrize(
    "container",
    [
        list,
        tuple,
        iter,
        lambda ids: array("I", ids),
        lambda ids: array("q", ids),
        lambda ids: np.array(ids, dtype=np.uint32),
        lambda ids: np.array(ids, dtype=np.int64),
        lambda ids: np.array(ids, dtype=">u4"),
        lambda ids: np.array(ids, dtype=object),
        lambda ids: memoryview(array("I", ids)),
        lambda ids: [np.int64(i) for i in ids],
    ],
)
def test_every_container_gives_the_same_buffer(container):
    assert as_tokens(container(IDS)) == b"".join(i.to_bytes(4, "little") for i in IDS)


def test_small_dtypes_and_ranges():
    assert to_tuple(as_tokens(np.array([1, 2], dtype=np.int8))) == (1, 2)
    assert to_tuple(as_tokens(range(3))) == (0, 1, 2)
    assert as_tokens([]) == as_tokens(np.array([])) == b""


@pytest.mark.parametrize("bad", [-1, True, False, 1.0, 2**32, "7", None, np.True_, np.float32(1)])
def test_a_bad_token_is_named_by_its_position(bad):
    with pytest.raises(TokenError, match=r"tokens\[2\]"):
        as_tokens([5, 1, bad, 0])


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (np.array([3, -1]), r"tokens\[1\] is -1"),
        (np.array([3, 2**32]), r"tokens\[1\] is 4294967296"),
        (np.array([1.0]), r"tokens\[0\] is of type float64"),
        (np.array([True]), r"tokens\[0\] is of type bool"),
        (np.zeros((2, 2), dtype=int), "one-dimensional"),
        ("text", "tokenize"),
        (b"\1\2", "tokenize"),
        (7, "sequence"),
    ],
)
def test_bad_arrays_and_non_sequences(bad, says):
    with pytest.raises(TokenError, match=says):
        as_tokens(bad)


def test_no_alias_of_the_callers_data():
    mine = np.array([1, 2, 3], dtype=np.uint32)
    buffer = as_tokens(mine)
    mine[0] = 9
    assert to_tuple(buffer) == (1, 2, 3)


def test_common_tokens_against_a_plain_loop():
    rng = random.Random(3)
    for _ in range(500):
        a = [rng.randrange(2) for _ in range(rng.randrange(1, 40))]
        b = a[: rng.randrange(len(a) + 1)] + [rng.randrange(2) for _ in range(rng.randrange(20))]
        shift_a, shift_b = rng.randrange(3), rng.randrange(3)
        most = min(len(a), len(b))
        expected = next((i for i in range(most) if a[i] != b[i]), most)
        got = common_tokens(as_tokens([9] * shift_a + a), shift_a, as_tokens([8] * shift_b + b), shift_b, most)
        assert got == expected
