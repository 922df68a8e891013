"""`generate` for people on transformers: the same results, or a refusal by name."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GenerationConfig, TextStreamer

from prefixcache.engine import CachedModel, Engine, SamplingParams, random_model
from prefixcache.errors import OptionError, RequestError, TokenError
from tests.engine.small import VOCABULARY

SMALL = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.2,
    "max_position_embeddings": 512,
    "eos_token_id": None,
}


@pytest.fixture(scope="module")
def pair() -> tuple[Any, Any]:
    return random_model("llama", seed=1, **SMALL)


@pytest.fixture
def cached(pair: tuple[Any, Any]) -> CachedModel:
    return CachedModel(*pair, memory=2**22, block_size=8)


def test_three_lines(pair: tuple[Any, Any]) -> None:
    model, tokenizer = pair
    cached = CachedModel(model, tokenizer, memory=2**22)
    answer = cached.generate("a prompt", max_new_tokens=5)
    assert isinstance(answer, str)


def test_ids_are_continued_as_transformers_does(pair: tuple[Any, Any], cached: CachedModel, seed: int) -> None:
    model, _ = pair
    rows = torch.from_numpy(np.random.default_rng(seed).integers(3, VOCABULARY // 2, (3, 40)))
    rows[:, :30] = rows[0, :30]
    expected = model.generate(rows, attention_mask=torch.ones_like(rows), max_new_tokens=12, do_sample=False)
    assert torch.equal(cached.generate(rows, max_new_tokens=12, do_sample=False), expected)
    assert torch.equal(cached.generate(input_ids=rows, max_length=52), expected)
    # 24 tokens of the 30 are whole blocks, computed once for the three rows and not at all the second time.
    assert cached.engine.computed_tokens == 40 + 2 * 16 + 3 * 11 + 3 * (8 + 11)


def test_padding_and_ends(pair: tuple[Any, Any], cached: CachedModel) -> None:
    model, tokenizer = pair
    given = tokenizer(["short", "a somewhat longer prompt"], return_tensors="pt", padding=True, padding_side="left")
    free = model.generate(**given, max_new_tokens=16, do_sample=False)
    length = given["input_ids"].shape[1]
    end = int(free[1, length + 4])  # a token that ends one row early makes the other one pad
    expected = model.generate(**given, max_new_tokens=16, do_sample=False, eos_token_id=end)
    got = cached.generate(**given, max_new_tokens=16, do_sample=False, eos_token_id=end)
    assert torch.equal(got, expected)


def test_texts(pair: tuple[Any, Any], cached: CachedModel) -> None:
    model, tokenizer = pair
    texts = ["one prompt", "one prompt more"]
    answers = cached.generate(texts, max_new_tokens=9)
    for text, answer in zip(texts, answers, strict=True):
        ids = tokenizer(text, return_tensors="pt")
        row = model.generate(**ids, max_new_tokens=9, do_sample=False)[0, ids["input_ids"].shape[1] :]
        assert answer == tokenizer.decode(row, skip_special_tokens=True)
        assert cached.generate(text, max_new_tokens=9) == answer
    several = cached.generate("one prompt", max_new_tokens=4, do_sample=True, num_return_sequences=3)
    assert len(several) == 3


def test_stop_strings(cached: CachedModel) -> None:
    whole = cached.generate("tell me", max_new_tokens=40)
    middle = next(text for text in (whole[at : at + 2] for at in range(4, len(whole))) if text.isprintable())
    assert cached.generate("tell me", max_new_tokens=40, stop_strings=middle) == whole[: whole.index(middle)]


def test_sampling_repeats_with_the_seed_of_torch(cached: CachedModel) -> None:
    def draw() -> str:
        torch.manual_seed(4)
        text: str = cached.generate("a prompt", max_new_tokens=12, do_sample=True, temperature=1.5, top_p=0.95)
        return text

    assert draw() == draw()


class Recorder:
    """A streamer that keeps what it gets."""

    def __init__(self) -> None:
        self.values: list[list[int]] = []
        self.ended = False

    def put(self, value: torch.Tensor) -> None:
        self.values.append(value.flatten().tolist())

    def end(self) -> None:
        self.ended = True


def test_a_streamer_gets_what_transformers_gives_it(pair: tuple[Any, Any], cached: CachedModel) -> None:
    model, tokenizer = pair
    ids = tokenizer("stream this", return_tensors="pt")
    theirs, ours = Recorder(), Recorder()
    model.generate(**ids, max_new_tokens=6, do_sample=False, streamer=theirs)
    cached.generate(**ids, max_new_tokens=6, streamer=ours)
    assert ours.values == theirs.values
    assert ours.ended


def test_the_streamer_of_transformers_prints(
    pair: tuple[Any, Any], cached: CachedModel, capsys: pytest.CaptureFixture[str]
) -> None:
    streamer = TextStreamer(pair[1], skip_prompt=True, skip_special_tokens=True)
    answer = cached.generate("stream this", max_new_tokens=12, streamer=streamer)
    assert capsys.readouterr().out.strip() == answer.strip()


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("num_beams", 4),
        ("repetition_penalty", 1.3),
        ("no_repeat_ngram_size", 3),
        ("output_scores", True),
        ("return_dict_in_generate", True),
        ("logits_processor", [object()]),
        ("assistant_model", object()),
        ("past_key_values", object()),
        ("min_new_tokens", 5),
        ("max_time", 1.0),
        ("no_such_argument", 1),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(cached: CachedModel, name: str, given: object) -> None:
    with pytest.raises(OptionError, match=rf"generate: {name}="):
        cached.generate("x", **{name: given})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"max_new_tokens": "5"}, "generate: max_new_tokens is '5'"),
        ({"max_new_tokens": 0}, "generate: max_new_tokens is 0"),
        ({"num_return_sequences": 0}, "generate: num_return_sequences is 0"),
        ({"pad_token_id": "a"}, "generate: pad_token_id is 'a'"),
        ({"eos_token_id": "a"}, "generate: eos_token_id is 'a'"),
        ({"stop_strings": 5}, "generate: stop_strings=5"),
        ({"stop_strings": ""}, "generate: stop_strings=''"),
        ({"streamer": "x"}, "generate: streamer='x' has no put and end"),
        ({"generation_config": {}}, "generate: generation_config={} is no GenerationConfig"),
        ({"attention_mask": torch.ones(1, 2)}, "attention_mask cannot be honoured for texts"),
        ({"inputs": {"input_ids": 1}}, r"inputs is dict: .* generate\(\*\*answer\)"),
        ({"inputs": [{"role": "user"}]}, "inputs is list: expected a tensor of ids, a text or a list of texts"),
        ({"inputs": 5}, "inputs is int"),
        ({"inputs": torch.ones(1, 3)}, r"input_ids is torch\.float32 of 1 rows"),
        ({"inputs": torch.ones(0, 3, dtype=torch.long)}, "of 0 rows"),
        ({"inputs": torch.ones(1, 3, dtype=torch.long), "attention_mask": [[1]]}, "attention_mask is list"),
    ],
)
def test_values_that_make_no_sense_are_refused_by_name(
    cached: CachedModel, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        cached.generate(**({"inputs": "x"} | given))
    assert cached.engine.idle


def test_half_a_character_is_no_prompt(cached: CachedModel) -> None:
    with pytest.raises(TokenError, match="character 1 of the prompt is half a surrogate pair"):
        cached.generate("a\ud800")


def test_a_batch_is_taken_whole_or_not_at_all(cached: CachedModel) -> None:
    with pytest.raises(OptionError, match="the model's context holds 512"):
        cached.generate(["fits", "does not fit " * 60], max_new_tokens=4)
    assert cached.engine.idle


def test_a_streamer_that_raises_ends_the_generation(cached: CachedModel) -> None:
    class Full(Recorder):
        def put(self, value: torch.Tensor) -> None:
            super().put(value)
            if len(self.values) > 2:
                raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full") as caught:
        cached.generate("x", max_new_tokens=20, streamer=Full())
    cached.engine.step()
    assert cached.engine.idle
    assert cached.engine.cache.books().pinned == 0
    assert caught.traceback  # held until here: nothing waited for the collector


def test_a_streamer_that_raises_at_the_prompt_ends_the_generation(cached: CachedModel) -> None:
    class Full(Recorder):
        def put(self, value: torch.Tensor) -> None:
            raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        cached.generate("x", max_new_tokens=20, streamer=Full())
    cached.engine.step()
    assert cached.engine.idle and cached.engine.computed_tokens == 0
    assert cached.engine.cache.books().pinned == 0


def test_who_is_given_up_with_the_step_of_another_is_told(cached: CachedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """What there is so far is no answer."""

    class Other(Recorder):
        def put(self, value: torch.Tensor) -> None:
            super().put(value)
            if len(self.values) == 3:
                with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="out of memory"):
                    patch.setattr(cached.engine._runner, "run", broken)
                    cached.engine.step()  # as another thread would

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("out of memory")

    streamer = Other()
    with pytest.raises(RequestError, match="generate: given up, because a step of the engine that another thread"):
        cached.generate("x", max_new_tokens=20, streamer=streamer)
    assert len(streamer.values) == 3 and not streamer.ended
    assert cached.engine.idle and cached.engine.cache.books().pinned == 0


def test_who_gets_no_room_is_told(pair: tuple[Any, Any]) -> None:
    cached = CachedModel(*pair, memory=2**15)
    cache = cached.engine.cache
    in_the_way = cache.open(range(cache.capacity * cache.block_size - 20))
    with pytest.raises(RequestError, match="generate: no room, because nobody gives back the blocks"):
        cached.generate("far longer than what is left of the memory", max_new_tokens=2)
    in_the_way.close()
    assert cached.engine.idle and cache.books().pinned == 0


def test_a_tokenizer_that_fails_leaves_nothing_behind(pair: tuple[Any, Any]) -> None:
    """Neither what runs in the step that fails nor what is cancelled while it fails."""
    model, tokenizer = pair

    class Tokenizer:
        broken = False

        def __call__(self, text: str) -> Any:
            return tokenizer(text)

        def decode(self, tokens: list[int], **options: Any) -> str:
            if self.broken:
                raise OSError("no vocabulary")
            return str(tokenizer.decode(tokens, **options))

    failing = Tokenizer()
    served = Engine(model, failing, memory=2**22, block_size=8)
    jobs = served.submit_batch(["one", "two", "three"], SamplingParams(max_tokens=9, n=2, ignore_eos=True))
    served.step()
    late = served.submit("four")
    served.cancel(late)
    failing.broken = True
    with pytest.raises(OSError, match="no vocabulary"):
        served.step()
    assert [delta.finish_reason for job in (*jobs, late) for delta in job.deltas].count("cancelled") == 7
    assert served.idle and served.cache.books().pinned == 0


def test_threads_get_what_is_theirs(pair: tuple[Any, Any], cached: CachedModel) -> None:
    """Whoever drives the engine, every streamer gets all of its tokens and no other ones."""
    prompts = [f"question {number}" for number in range(4)]
    recorders = [Recorder() for _ in prompts]
    answers: dict[int, str] = {}

    def ask(number: int) -> None:
        answers[number] = cached.generate(prompts[number], max_new_tokens=24, streamer=recorders[number])

    askers = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join()
    for number, (prompt, recorder) in enumerate(zip(prompts, recorders, strict=True)):
        assert recorder.values[0] == pair[1](prompt)["input_ids"]
        assert len(recorder.values) == 1 + 24
        tokens = [token for value in recorder.values[1:] for token in value]
        assert pair[1].decode(tokens, skip_special_tokens=True) == answers[number]


@pytest.mark.parametrize(
    ("name", "given"), [("num_beams", 1), ("repetition_penalty", 1.0), ("output_scores", False), ("use_cache", True)]
)
def test_what_asks_for_nothing_is_accepted(cached: CachedModel, name: str, given: object) -> None:
    assert isinstance(cached.generate("x", max_new_tokens=2, **{name: given}), str)


def test_other_refusals(pair: tuple[Any, Any], cached: CachedModel) -> None:
    model, _ = pair
    with pytest.raises(OptionError, match="use_cache=False"):
        cached.generate("x", use_cache=False)
    with pytest.raises(OptionError, match=r"repetition_penalty=1\.2 of the generation_config"):
        cached.generate("x", generation_config=GenerationConfig(repetition_penalty=1.2))
    with pytest.raises(OptionError, match="either inputs or input_ids"):
        cached.generate()
    with pytest.raises(OptionError, match="one prompt and one sample, not 2x1"):
        cached.generate(["a", "b"], streamer=Recorder())
    with pytest.raises(OptionError, match="padding on the left"):
        cached.generate(torch.ones(1, 3, dtype=torch.long), attention_mask=torch.tensor([[1, 1, 0]]))
    with pytest.raises(OptionError, match=r"attention_mask is \(1, 2\), input_ids \(1, 3\)"):
        cached.generate(torch.ones(1, 3, dtype=torch.long), attention_mask=torch.ones(1, 2))
    with pytest.raises(OptionError, match="max_length=3, but the prompt has 5 tokens"):
        cached.generate(torch.full((1, 5), 9), max_length=3)
    assert model.generation_config.max_new_tokens is None  # untouched


def test_the_models_own_configuration_is_honoured(pair: tuple[Any, Any], cached: CachedModel) -> None:
    ids = pair[1]("x", return_tensors="pt")["input_ids"]
    model = pair[0]
    assert cached.generate(ids).shape[1] == ids.shape[1] + 20  # what transformers takes where nobody says anything
    assert cached.generate(ids, generation_config=GenerationConfig(max_new_tokens=3)).shape[1] == ids.shape[1] + 3
    before = model.generation_config
    try:
        model.generation_config = GenerationConfig(max_new_tokens=5)
        assert cached.generate(ids).shape[1] == ids.shape[1] + 5
        assert cached.generate(ids, generation_config=GenerationConfig(top_k=1)).shape[1] == ids.shape[1] + 5
    finally:
        model.generation_config = before
