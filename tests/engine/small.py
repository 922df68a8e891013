"""Small random models, one per family, and what transformers alone makes of a prompt."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from transformers import (
    AutoModelForCausalLM,
    DynamicCache,
    FalconH1Config,
    Gemma2Config,
    Gemma3TextConfig,
    GptOssConfig,
    Lfm2Config,
    LlamaConfig,
    MistralConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3NextConfig,
)

from prefixcache.engine import Delta, Engine, Job

VOCABULARY = 512
LAYERS = 4
WINDOW = 24  # far shorter than the prompts, so that windows matter
NEAR_TIE = 1e-4  # two best logits closer than this may change places by rounding

_COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "initializer_range": 0.12,  # far enough apart for logits that rounding cannot reorder
    "max_position_embeddings": 1024,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
_NO_HEAD_DIM = {name: value for name, value in _COMMON.items() if name != "head_dim"}
_WINDOWS = ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]
_EXPERTS = {"num_experts_per_tok": 2}

CONFIGURATIONS = {
    "llama": lambda: LlamaConfig(**_COMMON),
    "qwen2": lambda: Qwen2Config(**_NO_HEAD_DIM),
    "qwen3": lambda: Qwen3Config(**_COMMON),
    "mistral": lambda: MistralConfig(**_COMMON, sliding_window=WINDOW),
    "gemma2": lambda: Gemma2Config(**_COMMON, sliding_window=WINDOW),
    "gemma3_text": lambda: Gemma3TextConfig(**_COMMON, sliding_window=WINDOW, layer_types=_WINDOWS),
    "gpt_oss": lambda: GptOssConfig(**_COMMON, **_EXPERTS, num_local_experts=4, sliding_window=WINDOW),
    "lfm2": lambda: Lfm2Config(
        **_NO_HEAD_DIM, layer_types=["conv", "full_attention"] * 2, block_auto_adjust_ff_dim=False
    ),
    "falcon_h1": lambda: FalconH1Config(
        **_COMMON,
        mamba_d_ssm=64,
        mamba_n_heads=4,
        mamba_d_head=16,
        mamba_n_groups=1,
        mamba_d_state=16,
        mamba_chunk_size=16,
    ),
    "qwen3_next": lambda: Qwen3NextConfig(
        **_COMMON,
        **_EXPERTS,
        num_experts=4,
        moe_intermediate_size=32,
        shared_expert_intermediate_size=32,
        linear_num_value_heads=4,
        linear_num_key_heads=2,
        linear_key_head_dim=16,
        linear_value_head_dim=16,
        layer_types=["linear_attention", "full_attention"] * 2,
    ),
}
RECURRENT = ("lfm2", "falcon_h1", "qwen3_next")


@cache
def small_model(family: str) -> Any:
    """A seeded model of a family, in evaluation mode."""
    configuration = CONFIGURATIONS[family]()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(configuration, dtype=torch.float32).eval()


def token_bytes(model: Any) -> int:
    """Bytes of KV that one token takes in a small model."""
    from prefixcache.engine.layout import read_layout

    return read_layout(model).numbers_per_token * 4


def engine(family: str = "llama", *, tokens: int = 2048, block_size: int = 4, **options: Any) -> Engine:
    """An engine over a small model with KV memory for this many tokens."""
    model = small_model(family)
    return Engine(model, memory=tokens * token_bytes(model), block_size=block_size, **options)


def prompts(random: np.random.Generator, shared: int, own: list[int]) -> list[np.ndarray]:
    """Prompts with a common beginning of `shared` tokens and that many of their own."""
    prefix = random.integers(0, VOCABULARY, shared)
    return [np.concatenate([prefix, random.integers(0, VOCABULARY, count)]) for count in own]


def logits_of(model: Any, tokens: np.ndarray) -> torch.Tensor:
    """Logits behind every token in one pass of transformers alone, [tokens, vocabulary]."""
    with torch.inference_mode():
        return model(input_ids=torch.from_numpy(np.asarray(tokens, dtype=np.int64))[None]).logits[0].float()


def greedy(model: Any, prompt: np.ndarray, count: int) -> list[int]:
    """The next tokens by transformers alone, with its own cache."""
    cache = DynamicCache(config=model.config)
    feed, tokens = np.asarray(prompt, dtype=np.int64), []
    with torch.inference_mode():
        for _ in range(count):
            logits = model(input_ids=torch.from_numpy(feed)[None], cache=cache, use_cache=True).logits[0, -1]
            tokens.append(int(logits.argmax()))
            feed = np.array(tokens[-1:])
    return tokens


def near_ties(model: Any, prompt: np.ndarray, got: list[int], count: int | None = None) -> int:
    """0 when these are the greedy tokens; 1 when they leave them where the two best logits are as good as equal.

    Fails where they leave them anywhere else, naming the position and the margin.
    """
    expected = greedy(model, prompt, len(got) if count is None else count)
    if got == expected:
        return 0
    assert len(got) == len(expected), (got, expected)
    at = next(index for index, (a, b) in enumerate(zip(got, expected, strict=True)) if a != b)
    best = logits_of(model, np.concatenate([prompt, expected[:at]]))[-1].topk(2).values
    margin = float(best[0] - best[1])
    assert margin < NEAR_TIE, f"token {at} is {got[at]}, expected {expected[at]}, by a margin of {margin:.6f}"
    return 1


def answer(job: Job, index: int = 0) -> list[int]:
    """Generated tokens of one sample."""
    return list(job.completions[index].tokens)


def finish(served: Engine, jobs: list[Job]) -> list[Delta]:
    """Drive the engine until these jobs are finished."""
    return list(served.stream(jobs))


def all_given_back(served: Engine) -> bool:
    """Whether no block is in use any more; `check()` on the way."""
    served.cache.check()
    books = served.cache.books()
    return books.pinned == books.quarantined == 0
