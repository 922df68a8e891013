"""Which models can be served: those that resume a prefix exactly."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from prefixcache.engine.kv_pool import KVPool
from prefixcache.engine.layout import Layout
from prefixcache.engine.runner import Row, Runner
from prefixcache.errors import OptionError

TESTED = frozenset(
    {"falcon_h1", "gemma2", "gemma3_text", "gpt_oss", "lfm2", "llama", "mistral", "qwen2", "qwen3", "qwen3_next"}
)
"""Held to greedy equality by this project's tests; others must pass `require_exact_resume` when they are loaded."""

INEXACT = frozenset({"bamba", "jamba", "mamba", "mamba2"})
"""transformers 5.24 restarts their scan at every chunk, so that a resumed prefix gives other logits."""

# Their rotary table is chosen by the length of the whole sequence: the same prefix has other keys in a longer one.
LENGTH_DEPENDENT_ROPE = frozenset({"dynamic", "longrope"})

PADDED_ATTENTION = frozenset({"eager", "sdpa"})

_ONE_BLOCK = np.zeros(1, dtype=np.int32)

CHECK_TOKENS = 24
CHECK_SPLIT = 11  # no multiple of a usual block or scan length
CHECK_TOLERANCE = 1e-4  # of the largest logit, float32; a lost state is off by much more


def require_supported(model: Any) -> None:
    """Raises `OptionError` naming the family and the reason when the engine cannot serve this model."""
    if isinstance(model, type) or not hasattr(getattr(model, "config", None), "get_text_config"):
        raise OptionError(f"model is {model!r}: expected a loaded model of transformers, as from_pretrained returns it")
    config, family = model.config.get_text_config(decoder=True), model.config.model_type
    what = f"{type(model).__name__} ({family})"
    if getattr(model.config, "is_encoder_decoder", False):
        raise OptionError(f"{what} has an encoder: expected a decoder-only model")
    if model.get_output_embeddings() is None:
        raise OptionError(f"{what} gives no logits: expected a causal language model (AutoModelForCausalLM)")
    if family in INEXACT:
        raise OptionError(
            f"{what} cannot be resumed exactly: transformers restarts its recurrent scan at every chunk, so a reused "
            f"prefix would change the answer; tested families are {', '.join(sorted(TESTED))}"
        )
    if getattr(config, "use_bidirectional_attention", False) or not getattr(config, "is_causal", True):
        raise OptionError(f"{what} attends in both directions: the KV of a prefix would depend on what follows it")
    rope = _rope_types(config) & LENGTH_DEPENDENT_ROPE
    if rope:
        raise OptionError(
            f"{what} uses {', '.join(sorted(rope))} rotary positions: the KV of a prefix depends on what follows it"
        )
    attention = config._attn_implementation
    if attention not in PADDED_ATTENTION:
        raise OptionError(
            f"{what} was loaded with attn_implementation={attention!r}: "
            f"expected {' or '.join(sorted(PADDED_ATTENTION))}"
        )
    places = sorted({str(parameter.device) for parameter in model.parameters()})
    if len(places) != 1 or places == ["meta"]:
        raise OptionError(f"{what} lies on {', '.join(places)}: expected all its weights on one device")
    if model.training:
        raise OptionError(f"{what} is in training mode: call model.eval() first")


def _rope_types(config: Any) -> set[str]:
    """Names of the rotary variants in a configuration, which holds one set of parameters or one per kind of layer."""
    parameters = getattr(config, "rope_parameters", None) or {}
    nested = [value for value in parameters.values() if isinstance(value, dict)]
    return {str(entry["rope_type"]) for entry in (parameters, *nested) if "rope_type" in entry}


def require_exact_resume(model: Any, layout: Layout) -> None:
    """Compare one pass over a few tokens with the same tokens in two; `OptionError` when the logits differ.

    Needed for families that the tests do not cover; takes two short forward passes.
    """
    family = model.config.model_type
    if family in TESTED:
        return
    tokens = [
        (7 * position + 3) % model.config.get_text_config(decoder=True).vocab_size for position in range(CHECK_TOKENS)
    ]
    whole = _logits(model, layout, tokens, [CHECK_TOKENS])
    parts = _logits(model, layout, tokens, [CHECK_SPLIT, CHECK_TOKENS - CHECK_SPLIT])
    difference = float((whole - parts).abs().max() / whole.abs().max())
    # NaN compares false, so that a model whose logits are no numbers is refused as well.
    if not difference <= CHECK_TOLERANCE * _coarseness(model.dtype):
        raise OptionError(
            f"{type(model).__name__} ({family}) cannot be resumed exactly: {CHECK_TOKENS} tokens in two parts give "
            f"logits that differ by {difference:.1%} from one pass; tested families are {', '.join(sorted(TESTED))}"
        )


def _logits(model: Any, layout: Layout, tokens: list[int], parts: list[int]) -> torch.Tensor:
    pool = KVPool(layout.shapes, blocks=1, block_size=len(tokens), dtype=model.dtype, device=model.device)
    runner = Runner(model, pool, layout)
    at, state = 0, None
    logits = torch.empty(0)
    for length in parts:
        logits, (state,) = runner.run([Row(_ONE_BLOCK, at, tokens[at : at + length], state)])
        at += length
    return logits


def _coarseness(dtype: torch.dtype) -> float:
    """How much coarser a number type is than float32."""
    ratio: float = torch.finfo(dtype).eps / torch.finfo(torch.float32).eps
    return max(1.0, math.sqrt(ratio))
