"""For people on transformers: `generate` as they know it, with shared prefixes computed once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from prefixcache.engine.engine import Engine
from prefixcache.engine.sampling import SamplingParams
from prefixcache.engine.sequence import Job
from prefixcache.errors import OptionError

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

        Raises `OptionError` naming an argument that cannot be honoured.
        """
        settings = _Settings.read(self.model, generation_config, arguments)
        given = input_ids if inputs is None else inputs
        if given is None or (inputs is not None and input_ids is not None):
            raise OptionError("generate: expected either inputs or input_ids")
        if isinstance(given, torch.Tensor):
            rows = _rows(given, attention_mask, settings)
            return settings.as_tensor(given, self._run(rows, settings, streamer))
        texts = [given] if isinstance(given, str) else list(given)
        jobs = self._run(texts, settings, streamer)
        answers = [completion.text for job in jobs for completion in job.completions]
        return answers[0] if isinstance(given, str) and settings.samples == 1 else answers

    def _run(self, prompts: Sequence[Any], settings: _Settings, streamer: Any) -> list[Job]:
        if streamer is not None and (len(prompts) != 1 or settings.samples != 1):
            raise OptionError(
                f"generate: streamer takes one prompt and one sample, not {len(prompts)}x{settings.samples}"
            )
        encoded = [self.engine.encode(prompt) for prompt in prompts]
        jobs = [self.engine.submit(tokens, settings.params(len(tokens))) for tokens in encoded]
        if streamer is not None:
            streamer.put(torch.from_numpy(jobs[0].tokens.astype("int64"))[None])
        for delta in self.engine.stream(jobs):
            if streamer is not None and delta.token is not None:
                streamer.put(torch.tensor([delta.token]))
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
        ends = merged.get("eos_token_id")
        ends = () if ends is None else (ends,) if isinstance(ends, int) else tuple(ends)
        stop = merged.get("stop_strings") or ()
        sampling: dict[str, Any] = {
            "stop": (stop,) if isinstance(stop, str) else tuple(stop),
            # The end tokens are those of this call, not those of the model.
            "stop_token_ids": ends,
            "ignore_eos": True,
            "n": int(merged.get("num_return_sequences") or 1),
        }
        if merged.get("do_sample"):
            sampling |= {name: merged[name] for name in ("temperature", "top_p") if merged.get(name) is not None}
            sampling["temperature"] = sampling.get("temperature", 1.0)
            sampling["top_k"] = merged.get("top_k", _TOP_K) or 0
        new_tokens, max_length = merged.get("max_new_tokens"), merged.get("max_length")
        if new_tokens is None and max_length is None:
            new_tokens = _NEW_TOKENS
        padding = merged.get("pad_token_id", ends[0] if ends else None)
        return cls(sampling, sampling["n"], new_tokens, max_length, ends, padding)

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


def _rows(given: torch.Tensor, mask: torch.Tensor | None, settings: _Settings) -> list[torch.Tensor]:
    """The tokens of each row without its padding."""
    if given.ndim != 2:
        raise OptionError(f"generate: input_ids has {given.ndim} dimensions: expected [batch, length]")
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
