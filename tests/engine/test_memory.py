"""The KV memory: slots, copies, and how much of it there is."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from prefixcache import Copy
from prefixcache.engine.kv_pool import KVPool, LayerShape
from prefixcache.engine.memory import free_memory, gibibytes
from prefixcache.engine.paged_cache import PagedLayer, Slots

CPU = torch.device("cpu")


def pool(dtype: torch.dtype = torch.float32) -> KVPool:
    return KVPool([LayerShape(2, 4, 3), None], blocks=6, block_size=4, dtype=dtype, device=CPU)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_memory_is_one_zeroed_allocation_per_layer(dtype: torch.dtype) -> None:
    made = pool(dtype)
    keys, values = made.keys[0], made.values[0]
    assert keys is not None
    assert values is not None
    assert keys.shape == (2, 24, 4)
    assert values.shape == (2, 24, 3)
    assert keys.dtype == dtype
    assert keys.untyped_storage().data_ptr() == values.untyped_storage().data_ptr()
    assert not keys.any()
    assert made.keys[1] is None
    assert made.nbytes == 24 * 2 * 7 * dtype.itemsize


def test_slots_follow_the_table() -> None:
    table = np.array([5, 0, 2], dtype=np.int32)
    assert pool().slots(table, 2, 10).tolist() == [22, 23, 0, 1, 2, 3, 8, 9]


def test_a_copy_takes_the_first_tokens_of_a_block_and_no_more() -> None:
    made = pool()
    keys = made.keys[0]
    assert keys is not None
    keys += torch.arange(24)[:, None]
    made.copy([Copy(source=3, target=1, tokens=3)])
    for head in (0, 1):
        assert keys[head, :, 0].tolist() == [*range(4), 12, 13, 14, 7, *range(8, 24)]


def layer(slots: Slots, made: KVPool) -> PagedLayer:
    keys, values = made.keys[0], made.values[0]
    assert keys is not None
    assert values is not None
    return PagedLayer(keys, values, slots)


def test_a_layer_writes_what_is_new_and_returns_all() -> None:
    made = pool()
    table = np.array([4, 1], dtype=np.int32)
    first = layer(Slots.of([table], [0], 4, made, CPU), made)
    keys, values = torch.rand(1, 2, 4, 4), torch.rand(1, 2, 4, 3)
    assert torch.equal(first.update(keys, values)[0], keys)
    second = layer(Slots.of([table], [4], 2, made, CPU), made)
    more = torch.rand(1, 2, 2, 4), torch.rand(1, 2, 2, 3)
    all_keys, all_values = second.update(*more)
    assert torch.equal(all_keys, torch.cat([keys, more[0]], dim=2))
    assert torch.equal(all_values, torch.cat([values, more[1]], dim=2))
    assert second.get_seq_length() == 4
    assert second.get_mask_sizes(2) == (6, 0)


def test_what_is_skipped_is_read_and_not_written() -> None:
    made = pool()
    table = np.array([0, 3], dtype=np.int32)
    keys, values = torch.rand(1, 2, 6, 4), torch.rand(1, 2, 6, 3)
    layer(Slots.of([table], [0], 6, made, CPU), made).update(keys, values)
    again = layer(Slots.of([table], [2], 4, made, CPU, skip=3), made)
    got, _ = again.update(torch.full((1, 2, 4, 4), 9.0), torch.full((1, 2, 4, 3), 9.0))
    assert torch.equal(got[:, :, :5], keys[:, :, :5])
    assert torch.equal(got[:, :, 5], torch.full((1, 2, 4), 9.0))


def test_adjacent_blocks_are_neither_gathered_nor_scattered() -> None:
    made = pool()
    adjacent = Slots.of([np.array([2, 3, 4])], [8], 1, made, CPU)
    assert (adjacent.read, adjacent.write) == (slice(8, 17), slice(16, 17))
    apart = Slots.of([np.array([2, 4]), np.array([0, 1])], [4, 4], 1, made, CPU)
    assert isinstance(apart.write, torch.Tensor)
    assert apart.write.tolist() == [16, 4]
    assert isinstance(Slots.of([np.array([2, 4, 3])], [8], 1, made, CPU).read, torch.Tensor)
    assert isinstance(Slots.of([np.array([2, 1])], [4], 1, made, CPU).read, torch.Tensor)


def test_free_memory_is_some_of_what_there_is() -> None:
    free = free_memory(CPU)
    assert free > 0
    assert gibibytes(3 * 2**29) == "1.50 GiB"
