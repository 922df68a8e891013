"""What an engine is given: prompts, memory, types; what can never run is refused with the reason."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM

from prefixcache.engine import Engine, SamplingParams
from prefixcache.errors import OptionError, TokenError
from tests.engine.small import (
    CONFIGURATIONS,
    answer,
    engine,
    small_model,
)


def test_bad_prompts_say_what_is_wrong() -> None:
    served = engine(tokens=128)
    with pytest.raises(TokenError, match="token 1 is 512: the model's vocabulary ends at 511"):
        served.submit([3, 512])
    with pytest.raises(TokenError, match=r"tokens\[0\] is -1"):
        served.submit([-1])
    with pytest.raises(TokenError, match="empty"):
        served.submit([])
    with pytest.raises(OptionError, match=r"120 prompt tokens and max_tokens=16 are 136: the KV memory holds 128"):
        served.submit(list(range(120)))
    with pytest.raises(OptionError, match="the model's context holds 1024"):
        served.submit([1], SamplingParams(max_tokens=1024))
    with pytest.raises(OptionError, match="no tokenizer"):
        served.submit("text")
    with pytest.raises(OptionError, match="needs the engine to have a tokenizer"):
        served.submit([1], SamplingParams(stop=("x",)))
    assert served.idle


def test_bad_options_say_what_is_wrong() -> None:
    model = small_model("llama")
    with pytest.raises(OptionError, match="design is 'trie': expected one of radix"):
        Engine(model, design="trie", memory=2**20)
    with pytest.raises(OptionError, match="memory=100 holds no block: one of 16 tokens takes 16,384 bytes"):
        Engine(model, memory=100)
    with pytest.raises(OptionError, match="step_tokens is 0"):
        Engine(model, memory=2**20, step_tokens=0)


def test_the_memory_is_stated() -> None:
    served = engine(tokens=2048)
    assert served.statement == "KV memory: 0.00 GiB on cpu: 512 blocks of 4 tokens in float32"
    assert "half of the free memory" in Engine(small_model("llama"), block_size=4096).statement


def test_kv_memory_has_the_type_of_the_model() -> None:
    model = AutoModelForCausalLM.from_config(CONFIGURATIONS["llama"](), dtype=torch.bfloat16).eval()
    served = Engine(model, memory=2**20)
    first = served.generate([list(range(40))], SamplingParams(max_tokens=6))[0]
    again = served.generate([list(range(40))], SamplingParams(max_tokens=6))[0]
    assert served.statement.endswith("in bfloat16")
    assert again.cached_tokens == 32
    assert len(answer(first)) == len(answer(again)) == 6


def test_prompts_may_come_as_tensors() -> None:
    served = engine()
    job = served.generate([torch.arange(20)], SamplingParams(max_tokens=2))[0]
    assert job.tokens.tolist() == list(range(20))
