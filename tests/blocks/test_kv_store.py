"""KV memory in numpy: what a copy moves, and that other threads run while it does."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from prefixcache import Copy
from prefixcache.blocks.kv_store import KVStore
from prefixcache.errors import OptionError


def _store(dtype: str = "float32") -> KVStore:
    store = KVStore(layers=3, blocks=4, block_size=4, width=5, dtype=dtype)
    store.memory[:] = np.arange(store.memory.size).reshape(store.memory.shape)
    return store


@pytest.mark.parametrize("dtype", ["float16", "float32", "uint32"])
@pytest.mark.parametrize("tokens", [0, 1, 3, 4])
def test_a_copy_moves_keys_and_values_of_every_layer_and_nothing_else(tokens: int, dtype: str) -> None:
    store = _store(dtype)
    expected = store.memory.copy()
    expected[:, :, 2, :tokens] = expected[:, :, 1, :tokens]
    store.copy([Copy(1, 2, tokens)])
    assert (store.memory == expected).all()


def test_copies_are_done_in_order() -> None:
    store = _store()
    first = store.memory[:, :, 0].copy()
    store.copy([Copy(0, 1, 4), Copy(1, 2, 4)])
    assert (store.memory[:, :, 2] == first).all()


@pytest.mark.parametrize("copy", [Copy(4, 0, 1), Copy(0, 4, 1), Copy(-1, 0, 1), Copy(0, 1, 5), Copy(0, 1, -1)])
def test_a_copy_that_does_not_fit_is_refused_and_not_begun(copy: Copy) -> None:
    store = _store()
    before = store.memory.copy()
    with pytest.raises(OptionError, match="expected device blocks below 4 and at most 4 tokens"):
        store.copy([copy])
    assert (store.memory == before).all()


@pytest.mark.parametrize("tiers", [("device", "host"), ("host", "device")])
def test_a_store_without_a_host_says_how_it_would_have_one(tiers: tuple[str, str]) -> None:
    with pytest.raises(OptionError, match="this store has no blocks there, see `host_blocks`"):
        _store().copy([Copy(0, 1, 4, 0, *tiers)])


def test_a_copy_in_another_attention_group_is_refused_and_not_begun() -> None:
    store = _store()
    before = store.memory.copy()
    with pytest.raises(OptionError, match="attention group 1: this store holds group 0"):
        store.copy([Copy(1, 2, 4, group=1)])
    assert (store.memory == before).all()


def test_what_is_written_through_a_table_is_read_through_it() -> None:
    store = _store()
    states = np.random.default_rng(1).random((3, 2, 6, 5), dtype=np.float32)
    before = store.memory.copy()
    store.write([3, 0, 1], 3, states)
    assert (store.read([3, 0, 1], 3, 9) == states).all()
    assert (store.memory[:, :, 3, 3] == states[:, :, 0]).all()
    assert (store.memory[:, :, 0] == states[:, :, 1:5]).all()
    assert (store.memory[:, :, 1, 1:] == before[:, :, 1, 1:]).all()
    with pytest.raises(OptionError, match="the table covers 4"):
        store.write([3], 3, states)


@pytest.mark.parametrize("name", ["layers", "blocks", "block_size", "width"])
def test_a_store_of_nothing_is_refused(name: str) -> None:
    sizes = {"layers": 1, "blocks": 1, "block_size": 1, "width": 1, name: 0}
    with pytest.raises(OptionError, match=f"{name} is 0"):
        KVStore(**sizes)


def _others_run_during(work: Callable[[], object], times: int) -> bool:
    """Whether another thread gets to run while this one does nothing but `work`, again and again.

    Nobody is made to take turns: the other thread runs only when the work lets go of the interpreter's lock.
    """
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    go, ran = threading.Lock(), []
    go.acquire()

    def other() -> None:
        with go:
            ran.append(True)

    thread = threading.Thread(target=other)
    thread.start()
    try:
        go.release()
        for _ in range(times):
            work()
            if ran:
                break
        return bool(ran)
    finally:
        sys.setswitchinterval(interval)
        thread.join()


@pytest.mark.parametrize("tokens", [16, 5])
def test_other_threads_run_while_a_block_is_copied(tokens: int) -> None:
    store = KVStore(layers=32, blocks=2, block_size=16, width=1024, dtype=np.float16)
    assert store.block_bytes == 2 * 2**20
    copies = [Copy(0, 1, tokens)]
    assert _others_run_during(lambda: store.copy(copies), 20_000)  # a busy machine may let it wait for hundreds


@pytest.mark.parametrize("_", [0] if getattr(sys, "_is_gil_enabled", lambda: True)() else [])
def test_other_threads_do_not_run_where_the_interpreter_works(_: int) -> None:
    assert not _others_run_during(lambda: sum(range(20_000)), 200)


@pytest.mark.parametrize(
    ("table", "start", "stop", "says"),
    [
        ([1, 2], -2, 2, "positions -2"),
        ([1, 2], 0, 9, "the table covers 8"),
        ([-1, 2], 0, 4, "blocks -1"),
        ([1, 16], 4, 6, "blocks 16"),
        ([1.9], 0, 2, "block ids"),
        ([[1, 2]], 0, 2, "block ids"),
    ],
)
def test_places_that_are_not_there_are_refused(table: Any, start: int, stop: int, says: str) -> None:
    store = KVStore(layers=2, blocks=16, block_size=4, width=3)
    states = np.ones((2, 2, stop - start, 3))
    with pytest.raises(OptionError, match=says):
        store.write(table, start, states)
    with pytest.raises(OptionError, match=says):
        store.read(table, start, stop)
    assert not store.memory.any()


def test_what_a_window_has_given_up_need_not_be_there_to_read_the_rest() -> None:
    store = KVStore(layers=1, blocks=4, block_size=2, width=1)
    store.write([-1, 3], 2, np.ones((1, 2, 2, 1)))
    assert store.read([-1, 3], 2, 4).sum() == 4


@pytest.mark.parametrize("shape", [(1, 2, 2, 3), (2, 1, 2, 3), (2, 2, 2, 1), (2, 2, 2), (12,)])
def test_states_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    store = KVStore(layers=2, blocks=4, block_size=4, width=3)
    with pytest.raises(OptionError, match="states are of shape"):
        store.write([0], 0, np.ones(shape))
    assert not store.memory.any()


@pytest.mark.parametrize("dtype", ["nope", object, "S3", "U2", "datetime64[s]"])
def test_a_type_that_is_no_number_is_refused(dtype: Any) -> None:
    with pytest.raises(OptionError, match="type of numbers"):
        KVStore(layers=1, blocks=1, block_size=1, width=1, dtype=dtype)


@pytest.mark.parametrize("sizes", [{"host_blocks": 2**70}, {"blocks": 2**70}, {"blocks": 2**45, "host_blocks": 2**45}])
def test_more_memory_than_can_be_had_is_refused_by_name(sizes: dict[str, int]) -> None:
    with pytest.raises(OptionError, match=r"a store of [\d,]+ blocks and [\d,]+ on the host cannot be had"):
        KVStore(**({"layers": 1, "blocks": 4, "block_size": 4, "width": 8} | sizes))
