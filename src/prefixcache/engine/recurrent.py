"""The state of recurrent layers: what a sequence carries instead of KV, and where it was kept for others.

A prefix can be resumed only where its state is known, so states are kept at some lengths of it (checkpoints).
They are found by what they were computed from, scope and tokens, never by block id: one that outlives its
blocks is useless but cannot be wrong.
"""

from __future__ import annotations

import hashlib
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from transformers.cache_utils import LinearAttentionCacheLayerMixin


@dataclass(frozen=True, slots=True)
class LayerState:
    """State of one layer, batch first; None where the layer has none of that kind.

    Attributes:
        convolutions: the last inputs of each convolution.
        recurrences: the state of each recurrence.
    """

    convolutions: tuple[torch.Tensor | None, ...]
    recurrences: tuple[torch.Tensor | None, ...]


State = tuple[LayerState | None, ...]
"""State of one sequence, per layer of the model. It is never changed in place: each forward pass works on a copy."""


def load(layers: Sequence[object], rows: Sequence[State]) -> None:
    """Give the recurrent layers of a cache the states of these rows, as a copy."""
    for index, layer in enumerate(layers):
        if not isinstance(layer, LinearAttentionCacheLayerMixin):
            continue
        of_rows = [row[index] for row in rows]
        for number in range(layer.number_of_states):
            convolution = _stack([state.convolutions[number] for state in of_rows if state is not None])
            recurrence = _stack([state.recurrences[number] for state in of_rows if state is not None])
            if convolution is not None:
                layer.conv_states[number] = convolution
                layer.conv_kernel_size[number] = convolution.shape[-1]
                layer.is_conv_states_initialized[number] = True
                layer.dtype, layer.device = convolution.dtype, convolution.device
            if recurrence is not None:
                layer.recurrent_states[number] = recurrence
                layer.is_recurrent_states_initialized[number] = True
            layer.has_previous_state[number] = True


def _stack(tensors: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
    present = [tensor for tensor in tensors if tensor is not None]
    return torch.cat(present) if present else None


def take(layers: Sequence[object], rows: int) -> list[State]:
    """The states that a forward pass left in the recurrent layers of a cache, one per row."""
    return [tuple(_row(layer, row) for layer in layers) for row in range(rows)]


def _row(layer: object, row: int) -> LayerState | None:
    if not isinstance(layer, LinearAttentionCacheLayerMixin):
        return None
    numbers = range(layer.number_of_states)
    return LayerState(
        tuple(_slice(layer.conv_states[number], row) for number in numbers),
        tuple(_slice(layer.recurrent_states[number], row) for number in numbers),
    )


def _slice(tensor: torch.Tensor | None, row: int) -> torch.Tensor | None:
    if tensor is None:
        return None
    return tensor[row : row + 1]


def size_of(state: State) -> int:
    """Bytes of a state."""
    return sum(
        tensor.nbytes
        for layer in state
        if layer is not None
        for tensor in (*layer.convolutions, *layer.recurrences)
        if tensor is not None
    )


class Checkpoints:
    """States kept by what they were computed from; the least recently used goes when the room is used up.

    Args:
        budget: bytes of states kept.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.nbytes = 0
        self._states: OrderedDict[tuple[int, bytes], State] = OrderedDict()
        self._lengths: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self._states)

    def keep(self, root: bytes, tokens: np.ndarray, state: State) -> None:
        """Keep the state after these tokens under this encoded scope."""
        key = (len(tokens), self._digest(root, tokens))
        size = size_of(state)
        if key in self._states or size > self.budget:
            return
        while self.nbytes + size > self.budget:
            (length, _), old = self._states.popitem(last=False)
            self._forget(length, old)
        # A row of a batch would keep the whole batch alive: what is kept for long owns its memory.
        self._states[key] = tuple(None if layer is None else _own(layer) for layer in state)
        self._lengths[len(tokens)] += 1
        self.nbytes += size

    def _forget(self, length: int, state: State) -> None:
        self.nbytes -= size_of(state)
        self._lengths[length] -= 1
        if not self._lengths[length]:
            del self._lengths[length]

    def find(self, root: bytes, tokens: np.ndarray, limit: int) -> tuple[int, State | None]:
        """The longest kept beginning of these tokens of at most `limit`: (its length, its state), or (0, None).

        O(limit + lengths kept), whatever the number of states.
        """
        digest = hashlib.sha256(root)
        at = 0
        found: tuple[int, bytes] | None = None
        for length in sorted(length for length in self._lengths if length <= limit):
            digest.update(tokens[at:length].tobytes())
            at = length
            key = (length, digest.digest())
            if key in self._states:
                found = key
        if found is None:
            return 0, None
        self._states.move_to_end(found)
        return found[0], self._states[found]

    @staticmethod
    def _digest(root: bytes, tokens: np.ndarray) -> bytes:
        digest = hashlib.sha256(root)
        digest.update(tokens.tobytes())
        return digest.digest()


def _own(layer: LayerState) -> LayerState:
    return LayerState(
        tuple(None if tensor is None else tensor.clone() for tensor in layer.convolutions),
        tuple(None if tensor is None else tensor.clone() for tensor in layer.recurrences),
    )
