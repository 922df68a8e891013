"""What transformers takes for its KV cache: layers that read and write the pool.

A model calls `update` of its layer with the new keys and values and attends to what comes back. Here the new
ones go into their slots of the pool, and what comes back is gathered from the slots of every position, so a
hit needs no step of its own: its blocks are in the table.

The batch is padded on the left, as transformers pads prompts: then a token's distance to another is the
distance in its row, and the masks that the model itself makes are right for full attention and for windows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers.cache_utils import (
    CacheLayerMixin,
    LinearAttentionLayer,
)

from prefixcache.engine.kv_pool import KVPool


@dataclass(slots=True)
class Slots:
    """Where one forward pass reads and writes. Adjacent slots are a range: they need no gathering and no scattering.

    Attributes:
        write: slots of the new tokens, [batch * query - skip].
        read: slots of all positions with the new ones, [batch * length], padded on the left with any slot.
        batch, query, length: rows, new tokens per row, positions per row.
        skip: leading new tokens whose KV is in the pool already and belongs to others; their slots are not
            written (only with a batch of one).
    """

    write: torch.Tensor | slice
    read: torch.Tensor | slice
    batch: int
    query: int
    length: int
    skip: int = 0

    @classmethod
    def of(
        cls,
        tables: Sequence[np.ndarray],
        starts: Sequence[int],
        query: int,
        pool: KVPool,
        device: torch.device,
        skip: int = 0,
    ) -> Slots:
        """Slots of rows whose new tokens are the `query` ones from `starts` on."""
        rows = [pool.slots(table, 0, start + query) for table, start in zip(tables, starts, strict=True)]
        length = max(len(row) for row in rows)
        write = np.concatenate([row[len(row) - query :] for row in rows])[skip:]
        read = np.concatenate([np.pad(row, (length - len(row), 0)) for row in rows]) if len(rows) > 1 else rows[0]
        return cls(_places(write, device), _places(read, device), len(rows), query, length, skip)


def _places(slots: np.ndarray, device: torch.device) -> torch.Tensor | slice:
    """These slots as an index: a range where they are adjacent."""
    if len(slots) and slots[-1] - slots[0] == len(slots) - 1 and bool((np.diff(slots) == 1).all()):
        return slice(int(slots[0]), int(slots[-1]) + 1)
    return torch.from_numpy(slots).to(device)


class PagedLayer(CacheLayerMixin):  # type: ignore[misc]
    """One attention layer on the pool. A window is no matter here: all KV is kept and the model's mask cuts it."""

    is_sliding = False

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, slots: Slots) -> None:
        super().__init__()
        self.pool_keys, self.pool_values = keys, values
        self.slots = slots
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing is left to do: the pool exists before any forward pass."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store new states of shape [batch, heads, query, dim]; all states, [batch, heads, length, dim]."""
        return self._exchange(self.pool_keys, key_states), self._exchange(self.pool_values, value_states)

    def _exchange(self, pool: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        slots, heads, dim = self.slots, pool.shape[0], pool.shape[2]
        new = states.transpose(0, 1).reshape(heads, -1, dim)[:, slots.skip :]
        if isinstance(slots.write, slice):
            pool[:, slots.write] = new
        else:
            pool.index_copy_(1, slots.write, new)
        kept = pool[:, slots.read] if isinstance(slots.read, slice) else pool.index_select(1, slots.read)
        return kept.view(heads, slots.batch, slots.length, dim).transpose(0, 1)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """(positions that `update` returns, first of them)."""
        return self.slots.length, 0

    def get_seq_length(self) -> int:
        """Positions before the new ones."""
        return self.slots.length - self.slots.query

    def get_max_length(self) -> int:
        """-1: the table grows."""
        return -1


class PagedStateLayer(PagedLayer, LinearAttentionLayer):  # type: ignore[misc]
    """A layer with both attention and recurrent state (FalconH1)."""

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, slots: Slots, number_of_states: int) -> None:
        LinearAttentionLayer.__init__(self, number_of_states=number_of_states)
        PagedLayer.__init__(self, keys, values, slots)

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        """The state is made by the first forward pass; attention has nothing to make."""
        if kwargs:
            LinearAttentionLayer.lazy_initialization(self, **kwargs)
