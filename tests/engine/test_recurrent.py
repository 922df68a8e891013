"""Where recurrent state is kept, and for whom it is found."""

from __future__ import annotations

import numpy as np
import torch

from prefixcache.engine.recurrent import Checkpoints, LayerState, State, size_of


def state(value: float, numbers: int = 8) -> State:
    return None, LayerState((torch.full((1, numbers), value),), (None,))


def tokens(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.uint32)


def value(found: State | None) -> float:
    assert found is not None
    layer = found[1]
    assert layer is not None
    convolution = layer.convolutions[0]
    assert convolution is not None
    return float(convolution[0, 0])


def test_the_longest_beginning_within_the_limit() -> None:
    kept = Checkpoints(10_000)
    kept.keep(b"s", tokens(1, 2), state(2.0))
    kept.keep(b"s", tokens(1, 2, 3, 4), state(4.0))
    prompt = tokens(1, 2, 3, 4, 5)
    assert kept.find(b"s", prompt, 1) == (0, None)
    for limit, length in ((2, 2), (3, 2), (4, 4), (5, 4)):
        found, what = kept.find(b"s", prompt, limit)
        assert found == length
        assert value(what) == length


def test_another_scope_or_another_beginning_finds_nothing() -> None:
    kept = Checkpoints(10_000)
    kept.keep(b"s", tokens(1, 2), state(1.0))
    assert kept.find(b"t", tokens(1, 2, 3), 3) == (0, None)
    assert kept.find(b"s", tokens(1, 9, 3), 3) == (0, None)


def test_the_least_recently_used_goes_first() -> None:
    size = size_of(state(0.0))
    kept = Checkpoints(2 * size)
    kept.keep(b"s", tokens(1), state(1.0))
    kept.keep(b"s", tokens(2), state(2.0))
    kept.find(b"s", tokens(1), 1)
    kept.keep(b"s", tokens(3), state(3.0))
    assert kept.nbytes == 2 * size
    assert len(kept) == 2
    assert [kept.find(b"s", tokens(token), 1)[0] for token in (1, 2, 3)] == [1, 0, 1]


def test_what_is_kept_owns_its_memory() -> None:
    kept = Checkpoints(10_000)
    given = state(1.0)
    kept.keep(b"s", tokens(1), given)
    layer = given[1]
    assert layer is not None
    assert layer.convolutions[0] is not None
    layer.convolutions[0].zero_()
    assert value(kept.find(b"s", tokens(1), 1)[1]) == 1.0


def test_what_exceeds_the_budget_is_not_kept() -> None:
    kept = Checkpoints(size_of(state(0.0)) - 1)
    kept.keep(b"s", tokens(1), state(1.0))
    assert len(kept) == 0
