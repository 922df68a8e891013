"""What an engine is given: prompts, memory, types; what can never run is refused with the reason."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from prefixcache import Window
from prefixcache.engine import Engine, SamplingParams
from prefixcache.errors import OptionError, ScopeError, TokenError
from tests.engine.small import (
    CONFIGURATIONS,
    answer,
    engine,
    finish,
    greedy,
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
    with pytest.raises(OptionError, match="capacity cannot be given: it follows from memory"):
        Engine(model, memory=2**20, capacity=5)
    with pytest.raises(OptionError, match="groups cannot be given: the engine keeps the KV of all layers"):
        Engine(model, memory=2**20, groups=[Window(8)])
    with pytest.raises(OptionError, match=r"design is \['radix'\]"):
        Engine(model, memory=2**20, design=["radix"])
    with pytest.raises(OptionError, match=r"cannot be had on cpu: .* GiB are free"):
        Engine(model, memory=2**60)
    with pytest.raises(OptionError, match="tokenizer is 'gpt2': expected a loaded tokenizer"):
        Engine(model, "gpt2", memory=2**20)
    with pytest.raises(OptionError, match="prompts is a text: expected a list"):
        engine().generate("text")
    with pytest.raises(OptionError, match="prompts is a text: expected a list"):  # and not a prompt for each character
        engine().submit_batch("text")
    with pytest.raises(OptionError, match="params are 1: expected one for each of 2 prompts"):
        engine().submit_batch([[1], [2]], [SamplingParams()])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"priority": 500}, "^priority is 500: expected an integer from 0 to 100"),
        ({"ttl": -1}, "^ttl is -1"),
        ({"scope": "tenant"}, "^scope is 'tenant': expected a Scope"),
        ({"store": None}, "^store is None"),
        ({"params": {"max_tokens": 3}}, "^params is {'max_tokens': 3}: expected SamplingParams"),
    ],
)
def test_what_the_cache_would_refuse_is_refused_at_once(given: dict[str, Any], message: str) -> None:
    """Found only in the step that admits it, it would end all that runs, and again in the next step."""
    served = engine()
    with pytest.raises((OptionError, ScopeError), match=message):
        served.submit([1, 2, 3], **given)
    assert served.idle
    assert served.cache.stats().queries == 0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"stop_token_ids": 5}, "stop_token_ids is 5"),
        ({"stop": "abc"}, "stop is 'abc'"),
        ({"temperature": True}, "temperature is True"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_p": 0.0}, r"top_p is 0\.0"),
        ({"ignore_eos": "no"}, "ignore_eos is 'no'"),
        ({"n": 0}, "n is 0"),
        ({"max_tokens": 1.5}, r"max_tokens is 1\.5"),
        ({"logprobs": 101}, "logprobs is 101: expected an integer from 0 to 100"),
    ],
)
def test_bad_parameters_say_what_is_wrong(given: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        SamplingParams(**given)


@pytest.mark.parametrize("temperature", [1e-300, 1e-40, 1e30])
def test_no_temperature_is_too_cold_or_too_hot(temperature: float) -> None:
    job = engine().generate([[1, 2]], SamplingParams(temperature=temperature, max_tokens=4, seed=1))[0]
    assert len(answer(job)) == 4
    if temperature < 1:
        assert answer(job) == greedy(small_model("llama"), np.array([1, 2]), 4)


@pytest.mark.parametrize("model", ["gpt2", None, torch.nn.Linear(2, 2), LlamaForCausalLM], ids=str)
def test_what_is_no_loaded_model_is_refused(model: object) -> None:
    with pytest.raises(OptionError, match="expected a loaded model of transformers"):
        Engine(model)


def test_a_job_of_another_engine_is_not_cancelled() -> None:
    mine, other = engine(), engine()
    job = mine.submit([1, 2, 3], SamplingParams(max_tokens=3))
    mine.step()
    for wrong in (job, None):
        with pytest.raises(OptionError, match="expected a job that this engine's submit returned"):
            other.cancel(wrong)
    finish(mine, [job])
    assert job.completions[0].finish_reason == "length"


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
