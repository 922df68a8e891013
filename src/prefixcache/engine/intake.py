"""What may come in, checked where it is submitted: in the step that runs it, a fault would hit everybody."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from prefixcache.cache import PrefixCache
from prefixcache.engine.sampling import SamplingParams
from prefixcache.errors import OptionError, ScopeError, TokenError
from prefixcache.keys import Scope, as_tokens
from prefixcache.keys.tokens import TokenLike

Prompt: TypeAlias = str | TokenLike


class Intake:
    """Checks prompts and their parameters.

    Args:
        config: of the decoder.
        tokenizer: makes tokens of texts, None without.
        cache: checks what `PrefixCache.open` will be given.
        slots: token positions of the KV memory.

    Raises `OptionError` for a tokenizer that is none.
    """

    def __init__(self, config: Any, tokenizer: Any, cache: PrefixCache, slots: int) -> None:
        if tokenizer is not None and not (callable(tokenizer) and hasattr(tokenizer, "decode")):
            raise OptionError(f"tokenizer is {tokenizer!r}: expected a loaded tokenizer of transformers, or None")
        self._vocabulary = int(config.vocab_size)
        self._tokenizer = tokenizer
        self._cache = cache
        context = getattr(config, "max_position_embeddings", None)
        self._limits = (("the model's context", context), ("the KV memory", slots))

    def encode(self, prompt: Prompt) -> np.ndarray:
        """Token ids of a prompt, uint32. Raises `TokenError` for ids or texts that cannot be such."""
        if isinstance(prompt, str):
            if self._tokenizer is None:
                raise OptionError("the prompt is text, but the engine has no tokenizer: expected token ids")
            try:
                prompt.encode()
            except UnicodeEncodeError as error:
                raise TokenError(f"character {error.start} of the prompt is half a surrogate pair: no text") from None
            ids: TokenLike = self._tokenizer(prompt)["input_ids"]
        else:
            ids = prompt
        tokens = np.frombuffer(as_tokens(ids), dtype="<u4")
        if not len(tokens):
            raise TokenError("the prompt is empty: expected at least one token")
        beyond = np.flatnonzero(tokens >= self._vocabulary)
        if len(beyond):
            at = int(beyond[0])
            raise TokenError(f"token {at} is {tokens[at]}: the model's vocabulary ends at {self._vocabulary - 1}")
        return tokens

    def check(
        self, tokens: np.ndarray, params: SamplingParams, scope: Scope | None, opening: Mapping[str, Any]
    ) -> None:
        """Raises what would make this prompt fail later: no room for it ever, or arguments that `open` refuses."""
        if not isinstance(params, SamplingParams):
            raise OptionError(f"params is {params!r}: expected SamplingParams")
        if params.stop and self._tokenizer is None:
            raise OptionError(f"stop={params.stop!r} needs the engine to have a tokenizer")
        prompt, generated = len(tokens), params.max_tokens
        for what, limit in self._limits:
            if limit is not None and prompt + generated > limit:
                raise OptionError(
                    f"{prompt} prompt tokens and max_tokens={generated} are {prompt + generated}: {what} holds {limit}"
                )
        try:  # one token is enough to have the other arguments read
            self._cache.plan([{"tokens": tokens[:1], "scope": scope, **opening}])
        except (ScopeError, OptionError) as error:
            raise type(error)(str(error).removeprefix("request 0 of the batch: ")) from None
