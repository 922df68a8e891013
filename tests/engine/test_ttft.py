"""The command and its measurement: gated on tokens computed, never on time."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from prefixcache.cli import app
from prefixcache.engine import default_model, load
from prefixcache.engine.models import MODELS, smollm2_weights
from prefixcache.engine.ttft import CASES, Case, measure
from prefixcache.errors import OptionError
from tests.engine.small import small_model

SETUPS = [("radix", 1), ("hash_chain", 16)]


def test_the_articles_cases() -> None:
    assert [(case.prefix, case.suffix, case.block_size) for case in CASES] == [
        (2048, 32, None),
        (2049, 32, 128),
        (3072, 32, None),
    ]


def test_tokens_computed_are_what_each_design_cannot_reuse() -> None:
    cases = [Case("aligned", 256, 8), Case("one more", 257, 8, block_size=128)]
    measured = list(measure(small_model("llama"), SETUPS, cases, runs=4))
    got = [(m.case.name, m.design, m.block_size, m.cold_tokens, m.warm_tokens, m.reused_tokens) for m in measured]
    assert got == [
        ("aligned", "radix", 1, 264, 8, 256),
        ("aligned", "hash_chain", 16, 264, 8, 256),
        ("one more", "radix", 1, 265, 8, 257),
        ("one more", "hash_chain", 128, 265, 9, 256),
    ]
    assert all(m.identical for m in measured)
    assert all(len(m.warm_seconds) == len(m.floor_seconds) == 4 and len(m.cold_seconds) == 2 for m in measured)


def test_a_copied_tail_is_reused_too() -> None:
    (measured,) = measure(small_model("llama"), [("digest_chain", 128)], [Case("one more", 257, 8)], runs=1)
    assert (measured.warm_tokens, measured.reused_tokens) == (8, 257)
    assert measured.identical


def test_a_recurrent_model_resumes_where_a_chunk_ended() -> None:
    (measured,) = measure(small_model("lfm2"), [("radix", 16)], [Case("given", 512, 8)], runs=2)
    assert (measured.cold_tokens, measured.warm_tokens) == (520, 8)
    assert measured.identical


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["ttft", *arguments])
    return result.exit_code, result.output


ARGUMENTS = ("--model", "random-llama", "--prefix", "64", "--suffix", "4", "--runs", "1")


def test_the_table() -> None:
    code, output = run(*ARGUMENTS, "--design", "radix", "--design", "hash_chain@32")
    assert code == 0
    title, heading, radix, chain, footer = output.splitlines()
    assert title == "random-llama: median milliseconds to the first token"
    columns = ("case", "design", "block", "prefix", "computed", "cold", "warm", "floor", "cold/warm", "warm/floor")
    assert heading.split() == [*columns, "same", "tokens"]
    assert radix.split()[:7] == ["given", "radix", "1", "64", "4", "of", "68"]
    assert chain.split()[:7] == ["given", "hash_chain", "32", "64", "4", "of", "68"]
    assert radix.split()[-1] == chain.split()[-1] == "yes"
    assert footer.startswith("floor:")


def test_json() -> None:
    code, output = run(*ARGUMENTS, "--design", "radix", "--json", "-")
    assert code == 0
    document = json.loads(output)
    (row,) = document["rows"]
    assert document["model"] == "random-llama"
    assert row["design"] == "radix"
    assert row["cold_tokens"] == 68
    assert row["identical"] is True
    assert len(row["warm_seconds"]) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--model", "gpt-17"), "model is 'gpt-17': expected one of smollm2, random-llama"),
        (("--model", ""), "model is ''"),
        (("--design", "trie"), "design is 'trie'"),
        (("--model", "random-llama", "--prefix", "20000"), "are 20040: the model's context holds 16384"),
        (("--model", "random-llama", "--prefix", "8", "--runs", "400"), "a vocabulary of 384 tokens has too few"),
        (("--json", "no/such/folder/file.json"), "expected a file in a folder that exists"),
    ],
)
def test_mistakes(arguments: tuple[str, ...], message: str) -> None:
    result = CliRunner().invoke(app, ["ttft", *arguments])
    assert isinstance(result.exception, OptionError)
    assert message in str(result.exception)


@pytest.mark.parametrize("name", [name for name in MODELS if name.startswith("random-")])
def test_random_models_are_seeded(name: str) -> None:
    first, tokenizer = load(name, seed=1)
    second, _ = load(name, seed=1)
    other, _ = load(name, seed=2)
    weights = [next(iter(model.parameters()))[5] for model in (first, second, other)]
    assert weights[0].equal(weights[1])
    assert not weights[0].equal(weights[2])
    assert not first.training
    assert tokenizer.decode(tokenizer("text")["input_ids"], skip_special_tokens=True) == "text"


@pytest.mark.parametrize(
    "weights", [path for path in (smollm2_weights(),) if path is not None], ids=lambda path: path.stem
)
def test_real_weights(weights: object) -> None:
    """SmolLM2 where it is installed: it answers, and the second question reuses the system prompt."""
    from prefixcache.engine import CachedModel

    assert default_model() == "smollm2"
    model, tokenizer = load("smollm2")
    cached = CachedModel(model, tokenizer, memory=2**27)

    def ask(question: str) -> str:
        chat = [{"role": "system", "content": "You answer in one word."}, {"role": "user", "content": question}]
        text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        answer: str = cached.generate(text, max_new_tokens=8)
        return answer

    assert "Paris" in ask("What is the capital of France?")
    before = cached.engine.cache.stats().hits
    assert "Rome" in ask("What is the capital of Italy?")
    assert cached.engine.cache.stats().hits - before >= 16
