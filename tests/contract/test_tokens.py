"""Contract, "token" and how tokens enter: any ints, once, as unsigned 32-bit ids, with no alias kept."""

from __future__ import annotations

from array import array

import numpy as np
import pytest

from prefixcache import TokenError
from tests.contract.bench import Bench

WRONG = [-1, True, 1.0, 2**32, None, "7"]


@pytest.mark.parametrize("wrong", WRONG, ids=repr)
def test_a_token_that_is_no_unsigned_32_bit_id_is_an_error_naming_the_position(bench: Bench, wrong: object) -> None:
    for call in (bench.cache.open, bench.cache.probe, bench.cache.pin, bench.cache.explain):
        with pytest.raises(TokenError, match=r"\b2\b"):
            call([5, 6, wrong, 7])
    request = bench.open([1, 2])
    for tokens in (wrong, [wrong]):
        if tokens is not None:
            with pytest.raises(TokenError):
                request.append(tokens)
    assert request.length == 2
    assert bench.cache.take_events()[2] == []
    assert bench.cache.books().pinned == 1


@pytest.mark.parametrize("array_of", ["float64", "bool", "int64 with 2**32", "int8 with -1"])
def test_arrays_are_held_to_the_same_rule(bench: Bench, array_of: str) -> None:
    tokens = {
        "float64": np.array([1.0, 2.0]),
        "bool": np.array([True, False]),
        "int64 with 2**32": np.array([1, 2**32]),
        "int8 with -1": np.array([1, -1], dtype=np.int8),
    }[array_of]
    with pytest.raises(TokenError):
        bench.open(tokens)
    assert bench.books() == (16, 0, 0, 0)


def test_nothing_wraps(bench: Bench) -> None:
    bench.run([0, 2**32 - 1, 0, 2**32 - 1])
    assert bench.found([0, 2**32 - 1, 0, 2**32 - 1]) == 4
    with pytest.raises(TokenError):
        bench.cache.probe([2**32, 2**32 - 1, 0, 2**32 - 1])


def test_any_container_of_ints_is_the_same_prompt(bench: Bench) -> None:
    bench.run([1, 2, 3, 4, 5])
    containers = [
        (1, 2, 3, 4, 9),
        array("I", [1, 2, 3, 4, 9]),
        array("q", [1, 2, 3, 4, 9]),
        range(1, 6),
        np.array([1, 2, 3, 4, 9], dtype=np.uint32),
        np.array([1, 2, 3, 4, 9], dtype=np.int64),
        np.array([1, 0, 2, 0, 3, 0, 4, 0, 9, 0], dtype=np.int32)[::2],
        np.array([1, 2, 3, 4, 9], dtype=">u4"),
        [np.int64(token) for token in (1, 2, 3, 4, 9)],
    ]
    for tokens in containers:
        assert bench.cache.probe(tokens).cached == 4, tokens


@pytest.mark.parametrize("container", ["list", "array", "numpy"])
def test_no_alias_of_the_callers_data_is_kept(bench: Bench, container: str) -> None:
    numbers = [1, 2, 3, 4, 5]
    tokens = {"list": list, "array": lambda n: array("I", n), "numpy": lambda n: np.array(n, np.uint32)}[container](
        numbers
    )
    request = bench.open(tokens)
    tokens[0] = 99
    bench.step(request)
    more = {"list": list, "array": lambda n: array("I", n), "numpy": lambda n: np.array(n, np.uint32)}[container](
        [6, 7, 8]
    )
    request.append(more)
    more[0] = 99
    bench.step(request).close()
    assert bench.found([1, 2, 3, 4, 5, 6, 7, 8]) == 8
    assert bench.found([99, 2, 3, 4]) == 0
    assert list(tokens) == [99, 2, 3, 4, 5], "the caller's own data is left as it was"


def test_no_alias_of_our_data_is_given_out(bench: Bench) -> None:
    request = bench.step(bench.open([1, 2, 3, 4, 5]))
    for snapshot in (request.tokens, request.block_table, *request.tables):
        before = list(snapshot)
        with pytest.raises((TypeError, ValueError)):
            snapshot[0] = 99
        request.append([6, 7, 8, 9])
        assert list(snapshot) == before, "a snapshot does not follow the request"
        request.rewind(5)
    request.close()
    assert bench.found([1, 2, 3, 4]) == 4


def test_an_empty_prompt_is_an_error_at_open_and_nothing_at_probe(bench: Bench) -> None:
    with pytest.raises(TokenError):
        bench.open([])
    assert bench.cache.probe([]).cached == 0
    assert bench.books() == (16, 0, 0, 0)
