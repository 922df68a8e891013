"""Forward passes over rows of paged KV."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from prefixcache.engine import recurrent
from prefixcache.engine.kv_pool import KVPool
from prefixcache.engine.layout import Layout
from prefixcache.engine.paged_cache import Slots
from prefixcache.engine.recurrent import State


@dataclass(slots=True)
class Row:
    """New tokens of one sequence.

    Attributes:
        block_table: the blocks of the sequence, as many as its tokens need.
        start: position of the first new token; the KV of all before it is in the pool.
        tokens: the new tokens.
        state: recurrent state after `start` tokens, None at the beginning or where the model has none.
        skip: leading new tokens whose KV is in the pool already: they are run for the state alone.
    """

    block_table: np.ndarray
    start: int
    tokens: Sequence[int] | np.ndarray
    state: State | None = None
    skip: int = 0


class Runner:
    """Runs a model over a pool. Nothing is kept between two passes but what the pool holds.

    Args:
        model: a causal language model of transformers.
        pool: where the KV lies.
        layout: what each layer keeps.

    Attributes:
        computed_tokens: tokens run through the model so far.
    """

    def __init__(self, model: Any, pool: KVPool, layout: Layout) -> None:
        self.model = model
        self.pool = pool
        self.layout = layout
        self.computed_tokens = 0

    def run(self, rows: Sequence[Row], *, all_logits: bool = False) -> tuple[torch.Tensor, list[State | None]]:
        """Compute the KV of the new tokens, the same number in every row.

        Returns the logits behind the last token of each row, float32 of shape [rows, vocabulary], or with
        `all_logits` behind every new one, [rows, tokens, vocabulary]; and each row's recurrent state.
        """
        device = self.model.device
        query = len(rows[0].tokens)
        slots = Slots.of(
            [row.block_table for row in rows], [row.start for row in rows], query, self.pool, device, rows[0].skip
        )
        cache = self.layout.cache(self.pool, slots)
        states = [row.state for row in rows if row.state is not None]
        if states:
            recurrent.load(cache.layers, states)
        starts = torch.tensor([row.start for row in rows], device=device)
        tokens = np.stack([np.asarray(row.tokens, dtype=np.int64) for row in rows])
        with torch.inference_mode():
            output = self.model(
                input_ids=torch.from_numpy(tokens).to(device),
                attention_mask=self._padding(rows, slots, device),
                position_ids=starts[:, None] + torch.arange(query, device=device),
                cache=cache,
                use_cache=True,
                logits_to_keep=0 if all_logits else 1,
            )
        self.computed_tokens += len(rows) * query
        logits = output.logits.float()
        after: list[State | None] = [None] * len(rows)
        if self.layout.recurrent:
            after = list(recurrent.take(cache.layers, len(rows)))
        return (logits if all_logits else logits[:, -1]), after

    @staticmethod
    def _padding(rows: Sequence[Row], slots: Slots, device: torch.device) -> torch.Tensor | None:
        """1 for a token, 0 for padding on the left, [rows, length]; None when nothing is padded."""
        lengths = torch.tensor([row.start + slots.query for row in rows])
        if bool((lengths == slots.length).all()):
            return None
        columns = torch.arange(slots.length)
        mask = columns[None, :] >= slots.length - lengths[:, None]
        return mask.to(device=device, dtype=torch.long)
