"""What the layers of a model keep per token and per sequence, read from the model itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import (
    Cache,
    CacheLayerMixin,
    DummyLayer,
    LinearAttentionLayer,
    get_layer_types_and_kwargs,
)

from prefixcache.engine.kv_pool import KVPool, LayerShape
from prefixcache.engine.paged_cache import PagedLayer, PagedStateLayer, Slots
from prefixcache.errors import OptionError

ATTENTION = frozenset({"full_attention", "sliding_attention"})
RECURRENT = frozenset({"linear_attention", "conv"})
BOTH = frozenset({"hybrid"})
NEITHER = frozenset({"dummy"})


@dataclass(frozen=True, slots=True)
class Layout:
    """The layers of a model.

    Attributes:
        types: transformers' name for the kind of each layer.
        shapes: KV per token of each layer, None for a layer without attention.
        states: recurrent states of each layer, 0 for a layer without any.
    """

    types: tuple[str, ...]
    shapes: tuple[LayerShape | None, ...]
    states: tuple[int, ...]

    @property
    def recurrent(self) -> bool:
        """Whether any layer carries state that a block cannot hold."""
        return any(self.states)

    @property
    def numbers_per_token(self) -> int:
        """Numbers of KV per token, all layers together."""
        return sum(shape.numbers for shape in self.shapes if shape is not None)

    def cache(self, pool: KVPool, slots: Slots) -> Cache:
        """The cache that a model takes, for one forward pass over these slots."""
        layers: list[Any] = []
        for index, states in enumerate(self.states):
            keys, values = pool.keys[index], pool.values[index]
            if keys is None or values is None:
                layers.append(LinearAttentionLayer(number_of_states=states) if states else DummyLayer())
            elif states:
                layers.append(PagedStateLayer(keys, values, slots, states))
            else:
                layers.append(PagedLayer(keys, values, slots))
        return Cache(layers=layers)


def read_layout(model: Any) -> Layout:
    """The layout of a loaded model, from its configuration and the shapes that one token leaves in a cache.

    Raises `OptionError` naming a kind of layer that has no place in a pool of blocks, or if none has KV.
    """
    config = model.config.get_text_config(decoder=True)
    types, arguments = get_layer_types_and_kwargs(config)
    known = ATTENTION | RECURRENT | BOTH | NEITHER
    for index, name in enumerate(types):
        if name not in known:
            raise OptionError(
                f"layer {index} of {config.model_type} is of the kind {name!r}: "
                f"expected one of {', '.join(sorted(known))}"
            )
    if not (ATTENTION | BOTH).intersection(types):
        raise OptionError(f"{type(model).__name__} ({config.model_type}) has no attention layer: it has no KV to reuse")
    states = tuple(
        int(layer.get("number_of_states", 1)) if name in RECURRENT | BOTH else 0
        for name, layer in zip(types, arguments, strict=True)
    )
    return Layout(tuple(types), _shapes(model), states)


def _shapes(model: Any) -> tuple[LayerShape | None, ...]:
    """Run one token: configurations name heads and sizes in many ways, a cache shows them."""
    cache = DynamicCache(config=model.config)
    token = torch.zeros((1, 1), dtype=torch.long, device=model.device)
    try:
        with torch.inference_mode():
            model(input_ids=token, position_ids=token, cache=cache, use_cache=True)
    except TypeError as error:
        raise OptionError(
            f"{type(model).__name__} does not take its KV as transformers' own models do: {error}"
        ) from None
    return tuple(_shape(layer) for layer in cache.layers)


def _shape(layer: Any) -> LayerShape | None:
    if not isinstance(layer, CacheLayerMixin) or layer.keys is None:
        return None
    return LayerShape(layer.keys.shape[1], layer.keys.shape[-1], layer.values.shape[-1])
