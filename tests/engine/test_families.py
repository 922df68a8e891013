"""Every family: the same logits and the same greedy tokens as transformers alone, whatever is reused."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    BertLMHeadModel,
    JambaConfig,
    Lfm2Config,
    LlamaConfig,
    LlamaModel,
    MambaConfig,
)

from prefixcache.engine import Engine, SamplingParams
from prefixcache.engine import families as families_module
from prefixcache.engine.families import INEXACT, TESTED
from prefixcache.engine.kv_pool import KVPool
from prefixcache.engine.layout import Layout, read_layout
from prefixcache.engine.recurrent import State
from prefixcache.engine.runner import Row, Runner
from prefixcache.errors import OptionError
from tests.engine.small import (
    CONFIGURATIONS,
    RECURRENT,
    engine,
    logits_of,
    near_ties,
    prompts,
    small_model,
)

TOLERANCE = 1e-4  # float32, as a share of the largest logit where that exceeds 1


def close(got: torch.Tensor, expected: torch.Tensor) -> bool:
    return float((got - expected).abs().max()) <= TOLERANCE * max(1.0, float(expected.abs().max()))


def test_the_table_of_families_is_what_is_tested() -> None:
    assert set(CONFIGURATIONS) == TESTED


@pytest.mark.parametrize("family", CONFIGURATIONS)
def test_logits_in_chunks_and_in_a_padded_batch(family: str, seed: int) -> None:
    model = small_model(family)
    random = np.random.default_rng(seed)
    pool = KVPool(read_layout(model).shapes, blocks=64, block_size=4, dtype=torch.float32, device=model.device)
    runner = Runner(model, pool, read_layout(model))
    long, short = random.integers(0, 512, 61), random.integers(0, 512, 45)
    blocks = random.permutation(64).astype(np.int32)
    tables = blocks[:16], blocks[16:32]
    expected = logits_of(model, long), logits_of(model, short)
    states: list[State | None] = []
    for tokens, table, wanted, chunks in (
        (long, tables[0], expected[0], (17, 30, 13)),
        (short, tables[1], expected[1], (30, 14)),
    ):
        at, state = 0, None
        for count in chunks:
            logits, (state,) = runner.run([Row(table, at, tokens[at : at + count], state)], all_logits=True)
            assert close(logits[0], wanted[at : at + count]), (family, at, count)
            at += count
        states.append(state)
    rows = [Row(tables[0], 60, long[60:], states[0]), Row(tables[1], 44, short[44:], states[1])]
    logits, _ = runner.run(rows)
    assert close(logits, torch.stack([expected[0][-1], expected[1][-1]]))


def test_rows_of_a_padded_batch_may_write_side_by_side(seed: int) -> None:
    """Two short prompts that were admitted one after the other: no index is needed, the padding is."""
    model = small_model("llama")
    random = np.random.default_rng(seed)
    pool = KVPool(read_layout(model).shapes, blocks=16, block_size=1, dtype=torch.float32, device=model.device)
    runner = Runner(model, pool, read_layout(model))
    given = random.integers(0, 512, 4), random.integers(0, 512, 6)
    tables = np.array([0, 1, 2, 8]), np.array([3, 4, 5, 6, 7, 9])
    for tokens, table in zip(given, tables, strict=True):
        runner.run([Row(table, 0, tokens[:-1])])
    rows = [Row(table, len(tokens) - 1, tokens[-1:]) for tokens, table in zip(given, tables, strict=True)]
    logits, _ = runner.run(rows)
    assert close(logits, torch.stack([logits_of(model, tokens)[-1] for tokens in given]))


@pytest.mark.parametrize("family", CONFIGURATIONS)
def test_greedy_tokens_when_givenshare_their_beginning(
    family: str, seed: int, record_property: Callable[[str, object], None]
) -> None:
    model = small_model(family)
    given = prompts(np.random.default_rng(seed), 90, [5, 9, 14, 5, 23])
    served = engine(family, step_tokens=40)
    jobs = served.generate(given, SamplingParams(max_tokens=10))
    ties = sum(
        near_ties(model, prompt, list(job.completions[0].tokens)) for prompt, job in zip(given, jobs, strict=True)
    )
    record_property("near ties", ties)
    assert ties <= 1
    # Whoever comes behind the first finds 88 tokens, whole blocks; a recurrent state only where a chunk ended.
    assert jobs[0].cached_tokens == 0
    assert jobs[1].cached_tokens == (80 if family in RECURRENT else 88)
    assert all(job.cached_tokens == 88 for job in jobs[2:])
    served.cache.check()
    assert served.cache.books().pinned == 0


@pytest.mark.parametrize("family", RECURRENT)
def test_a_state_is_kept_where_givenbranch(family: str, seed: int) -> None:
    given = prompts(np.random.default_rng(seed), 64, [8, 8, 8])
    served = engine(family, step_tokens=40)
    computed = []
    for prompt in given:
        before = served.computed_tokens
        served.generate([prompt], SamplingParams(max_tokens=1))
        computed.append(served.computed_tokens - before)
    # The second finds KV for 64 tokens but a state only after 40: it runs 24 again for the state alone.
    assert computed == [72, 32, 8]


def test_a_lost_state_is_noticed(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control of the equality tests: with the recurrent state forgotten they must fail."""
    monkeypatch.setattr("prefixcache.engine.recurrent.load", lambda layers, rows: None)
    with pytest.raises(AssertionError):
        test_logits_in_chunks_and_in_a_padded_batch("lfm2", seed)


def test_a_family_that_is_not_tested_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(families_module, "TESTED", frozenset())
    engine("lfm2")
    monkeypatch.setattr("prefixcache.engine.recurrent.load", lambda layers, rows: None)
    with pytest.raises(OptionError, match=r"Lfm2ForCausalLM \(lfm2\) cannot be resumed exactly"):
        engine("lfm2")


SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 64}
ATTENTION = {"num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 64}


@pytest.mark.parametrize("family", ["mamba", "jamba"])
def test_a_family_that_cannot_be_resumed_is_refused_by_name(family: str) -> None:
    assert family in INEXACT
    configuration = {
        "mamba": lambda: MambaConfig(**SMALL, state_size=4),
        "jamba": lambda: JambaConfig(**SMALL, **ATTENTION, num_experts=2, use_mamba_kernels=False),
    }[family]()
    model = AutoModelForCausalLM.from_config(configuration).eval()
    with pytest.raises(OptionError, match=rf"\({family}\) cannot be resumed exactly: .* recurrent scan"):
        Engine(model)


def test_other_models_are_refused_with_the_reason() -> None:
    def build(**changes: object) -> object:
        return AutoModelForCausalLM.from_config(LlamaConfig(**(SMALL | ATTENTION | changes)))

    cases = [
        (LlamaModel(LlamaConfig(**SMALL, **ATTENTION)).eval(), "gives no logits"),
        (build().train(), r"call model\.eval\(\)"),
        (
            build(rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}).eval(),
            "dynamic rotary positions",
        ),
        (
            # No word in its configuration says that it looks ahead: the comparison of one pass with two does.
            BertLMHeadModel(BertConfig(**SMALL, num_attention_heads=2, initializer_range=0.3)).eval(),
            r"\(bert\) cannot be resumed exactly",
        ),
        (
            AutoModelForCausalLM.from_config(Lfm2Config(**SMALL, **ATTENTION, layer_types=["conv", "conv"])).eval(),
            r"Lfm2ForCausalLM \(lfm2\) has no attention layer",
        ),
    ]
    for model, reason in cases:
        with pytest.raises(OptionError, match=reason):
            Engine(model)


def test_the_layout_of_a_hybrid() -> None:
    layout = read_layout(small_model("lfm2"))
    assert layout == Layout(
        ("conv", "full_attention") * 2, (None, layout.shapes[1], None, layout.shapes[1]), (1, 0, 1, 0)
    )
    assert layout.shapes[1] is not None
    assert layout.shapes[1].numbers == 2 * 2 * 16
