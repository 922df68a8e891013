"""For people on transformers: `generate` as they know it, with shared prefixes computed once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import torch

from prefixcache.engine.engine import Engine
from prefixcache.engine.sampling import SamplingParams
from prefixcache.engine.sequence import Job
from prefixcache.errors import OptionError, RequestError, whole_number

HONOURED = frozenset(
    {
        "do_sample",
        "eos_token_id",
        "max_length",
        "max_new_tokens",
        "num_return_sequences",
        "pad_token_id",
        "stop_strings",
        "temperature",
        "top_k",
        "top_p",
    }
)

# Values that ask for nothing, for arguments that otherwise cannot be honoured; None and False are such for all.
_NEUTRAL: dict[str, Any] = {
    "diversity_penalty": 0.0,
    "encoder_no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "length_penalty": 1.0,
    "min_length": 0,
    "min_new_tokens": 0,
    "no_repeat_ngram_size": 0,
    "num_beam_groups": 1,
    "num_beams": 1,
    "repetition_penalty": 1.0,
    "typical_p": 1.0,
    "use_cache": True,
}
_NO_MATTER = frozenset({"_from_model_config", "bos_token_id", "tokenizer", "transformers_version"})

# Ends that a caller must not take for an answer.
_CUT_SHORT = {
    "cancelled": "given up, because a step of the engine that another thread drove has failed",
    "refused": "no room, because nobody gives back the blocks that are in the way",
}

# What transformers takes where nobody says anything.
_NEW_TOKENS = 20
_TOP_K = 50


class CachedModel:
    """A model whose `generate` computes a prefix once, however many prompts begin with it.

    Args:
        model: a decoder of transformers, loaded and in evaluation mode.
        tokenizer: its tokenizer, needed for prompts as text and for stop strings.
        options: of `Engine`: design, block_size, memory and so on.

    Attributes:
        engine: what runs underneath, with its cache and the statement about its memory.
    """

    def __init__(self, model: Any, tokenizer: Any = None, **options: Any) -> None:
        self.model = model
        self.engine = Engine(model, tokenizer, **options)

    def generate(
        self,
        inputs: str | Sequence[str] | torch.Tensor | None = None,
        *,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        streamer: Any = None,
        generation_config: Any = None,
        **arguments: Any,
    ) -> Any:
        """Continue one prompt or a batch, as the model's own `generate` does.

        Greedy results are those of the model without this cache, up to rounding. Sampling draws its seed from
        torch, so `torch.manual_seed` repeats it, but the tokens are others than transformers would draw.

        Args:
            inputs, input_ids: token ids of shape [batch, length], padded where `attention_mask` is 0; or a text, or
                a list of texts.
            attention_mask: 1 for a token and 0 for padding, [batch, length].
            streamer: gets the prompt, then each token as it comes; for one prompt and one sample.
            generation_config: goes before the model's own.
            arguments: those of `HONOURED`; they go before both.

        Returns, for ids, what transformers returns: prompts and new tokens, int64 of shape
        [batch * num_return_sequences, longest], padded on the right. For texts the new text of each, cut
        before a stop string: a text for a text, when one sample is asked for, else a list.

        Raises `OptionError` naming an argument that cannot be honoured, and `RequestError` when the answer was cut
        short from outside: a step that another thread drove has failed, or blocks that it needs are never given back.
        """
        settings = _Settings.read(self.model, generation_config, arguments)
        given = input_ids if inputs is None else inputs
        if given is None or (inputs is not None and input_ids is not None):
            raise OptionError("generate: expected either inputs or input_ids")
        if streamer is not None and not (hasattr(streamer, "put") and hasattr(streamer, "end")):
            raise OptionError(f"generate: streamer={streamer!r} has no put and end")
        if isinstance(given, torch.Tensor):
            rows = _rows(given, attention_mask, settings)
            return settings.as_tensor(given, self._run(rows, settings, streamer))
        if attention_mask is not None:
            raise OptionError("generate: attention_mask cannot be honoured for texts: expected input_ids with it")
        texts = _texts(given)
        jobs = self._run(texts, settings, streamer)
        answers = [completion.text for job in jobs for completion in job.completions]
        return answers[0] if isinstance(given, str) and settings.samples == 1 else answers

    def _run(self, prompts: Sequence[Any], settings: _Settings, streamer: Any) -> list[Job]:
        if streamer is not None and (len(prompts) != 1 or settings.samples != 1):
            raise OptionError(
                f"generate: streamer takes one prompt and one sample, not {len(prompts)}x{settings.samples}"
            )
        encoded = [self.engine.encode(prompt) for prompt in prompts]
        jobs = self.engine.submit_batch(encoded, [settings.params(len(tokens)) for tokens in encoded])
        # Closed, and so cancelled, at once when a streamer raises.
        with closing(self.engine.stream(jobs)) as deltas:
            if streamer is not None:
                streamer.put(torch.from_numpy(jobs[0].tokens.astype("int64"))[None])
            for delta in deltas:
                if streamer is not None and delta.token is not None:
                    streamer.put(torch.tensor([delta.token]))
        for reason in (completion.finish_reason for job in jobs for completion in job.completions):
            if reason in _CUT_SHORT:
                raise RequestError(f"generate: {_CUT_SHORT[reason]}")
        if streamer is not None:
            streamer.end()
        return jobs


@dataclass(frozen=True, slots=True)
class _Settings:
    """What `generate` was asked for, in our words."""

    sampling: Mapping[str, Any]
    samples: int
    new_tokens: int | None  # None: max_length decides
    max_length: int | None
    ends: tuple[int, ...]
    padding: int | None

    @classmethod
    def read(cls, model: Any, generation_config: Any, arguments: Mapping[str, Any]) -> _Settings:
        """Merge arguments over the configuration and refuse what cannot be honoured."""
        merged: dict[str, Any] = {}
        for configuration in (model.generation_config, generation_config):
            if configuration is not None:
                if not hasattr(configuration, "to_dict"):
                    raise OptionError(f"generate: generation_config={configuration!r} is no GenerationConfig")
                merged |= {name: value for name, value in configuration.to_dict().items() if value is not None}
        merged |= arguments
        for name, value in merged.items():
            if name in HONOURED or name in _NO_MATTER or value is None or value is False:
                continue
            if name not in _NEUTRAL or value != _NEUTRAL[name]:
                where = "" if name in arguments else " of the generation_config"
                raise OptionError(
                    f"generate: {name}={value!r}{where} cannot be honoured; expected only {', '.join(sorted(HONOURED))}"
                )
        if arguments.get("use_cache") is False:
            raise OptionError("generate: use_cache=False cannot be honoured: the KV cache is the point")
        ends = _ends(merged.get("eos_token_id"))
        samples = _whole(merged, "num_return_sequences", 1) or 1
        sampling: dict[str, Any] = {
            "stop": _stop_strings(merged.get("stop_strings")),
            # The end tokens are those of this call, not those of the model.
            "stop_token_ids": ends,
            "ignore_eos": True,
            "n": samples,
        }
        if merged.get("do_sample"):
            sampling |= {name: merged[name] for name in ("temperature", "top_p") if merged.get(name) is not None}
            sampling["temperature"] = sampling.get("temperature", 1.0)
            sampling["top_k"] = merged.get("top_k", _TOP_K) or 0
        new_tokens, max_length = _whole(merged, "max_new_tokens", 1), _whole(merged, "max_length", 1)
        if new_tokens is None and max_length is None:
            new_tokens = _NEW_TOKENS
        padding = _whole(merged, "pad_token_id", 0)
        if padding is None and "pad_token_id" not in merged and ends:
            padding = ends[0]
        return cls(sampling, samples, new_tokens, max_length, ends, padding)

    def params(self, prompt: int) -> SamplingParams:
        """Parameters for a prompt of this many tokens. A sampled one takes its seed from torch."""
        seed = int(torch.randint(2**62, ())) if "temperature" in self.sampling else None
        new_tokens = self.new_tokens
        if new_tokens is None:
            assert self.max_length is not None
            new_tokens = self.max_length - prompt
            if new_tokens < 1:
                raise OptionError(f"generate: max_length={self.max_length}, but the prompt has {prompt} tokens already")
        return SamplingParams(max_tokens=new_tokens, seed=seed, **self.sampling)

    def as_tensor(self, given: torch.Tensor, jobs: Sequence[Job]) -> torch.Tensor:
        """Prompts as they were given, with the new tokens behind them."""
        answers = [torch.tensor(completion.tokens) for job in jobs for completion in job.completions]
        new = torch.nn.utils.rnn.pad_sequence(answers, batch_first=True, padding_value=self.padding or 0)
        return torch.cat([given.repeat_interleave(self.samples, dim=0), new.to(given)], dim=1)


def _whole(merged: Mapping[str, Any], name: str, least: int) -> int | None:
    """An argument that is a whole number where it is given."""
    value = merged.get(name)
    return None if value is None else whole_number(value, f"generate: {name}", least=least)


def _ends(given: Any) -> tuple[int, ...]:
    """End tokens, given as one or several."""
    if isinstance(given, torch.Tensor):
        given = given.tolist()
    several = () if given is None else given if isinstance(given, list | tuple) else (given,)
    return tuple(whole_number(token, "generate: eos_token_id") for token in several)


def _stop_strings(given: Any) -> tuple[str, ...]:
    """Stop texts, given as one or several."""
    several = () if given is None else (given,) if isinstance(given, str) else given
    if not isinstance(several, list | tuple) or not all(isinstance(text, str) and text for text in several):
        raise OptionError(f"generate: stop_strings={given!r}: expected a text or a list of texts, none of them empty")
    return tuple(several)


def _texts(given: Any) -> list[str]:
    """The prompts of a call that has no ids."""
    texts = [given] if isinstance(given, str) else given
    if isinstance(texts, list | tuple) and all(isinstance(text, str) for text in texts):
        return list(texts)
    hint = ": pass a tokenizer's answer as generate(**answer)" if isinstance(given, Mapping) else ""
    raise OptionError(
        f"generate: inputs is {type(given).__name__}: expected a tensor of ids, a text or a list of texts{hint}"
    )


def _rows(given: torch.Tensor, mask: torch.Tensor | None, settings: _Settings) -> list[torch.Tensor]:
    """The tokens of each row without its padding."""
    if given.ndim != 2:
        raise OptionError(f"generate: input_ids has {given.ndim} dimensions: expected [batch, length]")
    if given.is_floating_point() or not len(given):
        raise OptionError(
            f"generate: input_ids is {given.dtype} of {len(given)} rows: expected integers, at least a row"
        )
    if mask is not None and not isinstance(mask, torch.Tensor):
        raise OptionError(f"generate: attention_mask is {type(mask).__name__}: expected a tensor")
    padding = settings.padding
    if mask is None and padding is not None and padding not in settings.ends:
        mask = given != padding  # as transformers does
    if mask is None:
        return list(given)
    if mask.shape != given.shape:
        raise OptionError(f"generate: attention_mask is {tuple(mask.shape)}, input_ids {tuple(given.shape)}")
    kept = mask.bool()
    if bool((kept.int().diff(dim=1) < 0).any()):
        raise OptionError("generate: attention_mask is 0 behind a 1: expected padding on the left only")
    return [row[keep] for row, keep in zip(given, kept, strict=True)]
