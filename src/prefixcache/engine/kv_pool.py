"""The KV memory behind the block ids: one allocation per attention layer, made once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch

from prefixcache.blocks.kv_store import BlockCopy


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What one token leaves in one attention layer.

    Attributes:
        kv_heads: key and value heads.
        key_dim, value_dim: numbers per head.
    """

    kv_heads: int
    key_dim: int
    value_dim: int

    @property
    def numbers(self) -> int:
        """Numbers per token, keys and values together."""
        return self.kv_heads * (self.key_dim + self.value_dim)


class KVPool:
    """Keys and values of every slot of every layer.

    A slot is one token position: `block * block_size + offset`. The memory starts as zeros: a padded batch
    reads slots that nobody wrote, and what is masked out must still be a finite number. Each head's slots are
    adjacent, as attention reads them: with the heads of a slot adjacent instead it takes a third longer.

    Args:
        shapes: per layer of the model, None for a layer without attention.
        blocks: blocks of the pool, the `capacity` of the cache that hands out their ids.
        block_size: tokens per block.
        dtype, device: those of the model.
        host_blocks: blocks of the tier below, in the memory of the host.

    Attributes:
        keys, values: per layer, tensors of shape [kv_heads, blocks * block_size, dim]; None without attention.
    """

    def __init__(
        self,
        shapes: Iterable[LayerShape | None],
        *,
        blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
        host_blocks: int = 0,
    ) -> None:
        self.blocks = blocks
        self.block_size = block_size
        self.keys: list[torch.Tensor | None] = []
        self.values: list[torch.Tensor | None] = []
        host_keys: list[torch.Tensor] = []
        host_values: list[torch.Tensor] = []
        for shape in shapes:
            if shape is None:
                self.keys.append(None)
                self.values.append(None)
                continue
            keys, values = _layer(shape, blocks * block_size, dtype, device)
            self.keys.append(keys)
            self.values.append(values)
            keys, values = _layer(shape, host_blocks * block_size, dtype, torch.device("cpu"))
            host_keys.append(keys)
            host_values.append(values)
        self._host = [*host_keys, *host_values]

    @property
    def nbytes(self) -> int:
        """Bytes of KV memory on the device in all."""
        return sum(tensor.nbytes for tensor in self._device)

    @property
    def _device(self) -> list[torch.Tensor]:
        return [tensor for tensor in (*self.keys, *self.values) if tensor is not None]

    def copy(self, copies: Iterable[BlockCopy]) -> None:
        """Do what a request asks for in `copies`: the first tokens of one block into another, in every layer."""
        size, tiers = self.block_size, {"device": self._device, "host": self._host}
        for copy in copies:
            source, target = copy.source * size, copy.target * size
            for read, written in zip(tiers[copy.source_tier], tiers[copy.target_tier], strict=True):
                written[:, target : target + copy.tokens] = read[:, source : source + copy.tokens]

    def slots(self, block_table: np.ndarray, start: int, end: int) -> np.ndarray:
        """The slots of token positions start..end of a block table, int64 of shape [end - start]."""
        positions = np.arange(start, end)
        return block_table[positions // self.block_size].astype(np.int64) * self.block_size + (
            positions % self.block_size
        )


def _layer(
    shape: LayerShape, slots: int, dtype: torch.dtype, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Memory for the keys and the values of one layer."""
    memory = _zeros(slots * shape.numbers, dtype, device)
    end_of_keys = slots * shape.kv_heads * shape.key_dim
    return (
        memory[:end_of_keys].view(shape.kv_heads, slots, shape.key_dim),
        memory[end_of_keys:].view(shape.kv_heads, slots, shape.value_dim),
    )


def _zeros(numbers: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros. On the CPU torch would write all of them at once; the system gives zeroed pages when they are used."""
    if device.type != "cpu" or not numbers:
        return torch.zeros(numbers, dtype=dtype, device=device)
    return torch.from_numpy(np.zeros(numbers * dtype.itemsize, dtype=np.uint8)).view(dtype)
