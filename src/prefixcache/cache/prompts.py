"""From the arguments of a call to a checked prompt: the one place where callers' data comes in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeAlias

from prefixcache.designs import Prompt
from prefixcache.errors import ScopeError, TokenError
from prefixcache.keys.extras import Extras, Media, pack_extra_ids, read_media
from prefixcache.keys.scope import Scope
from prefixcache.keys.tokens import TOKEN_BYTES, TokenLike, as_tokens

_EVERYBODY = Scope()

MediaLike: TypeAlias = Iterable[Media | Mapping[str, Any]]
Block: TypeAlias = tuple[bytes, bytes, Extras | None]  # a full block, named by all up to its end: root, tokens, extras


@dataclass(slots=True)
class Asked:
    """A prompt as asked for.

    Attributes:
        prompt: what designs look up.
        length: its tokens.
        given_scope: the scope as given, its generation perhaps None.
        generation: weight generation when it was read.
        why_not: why it can be neither read nor stored, "" when it can.
    """

    prompt: Prompt
    length: int
    given_scope: Scope
    generation: int
    why_not: str = ""


def read_prompt(
    tokens: TokenLike,
    scope: Scope | None,
    media: MediaLike,
    extra_ids: Sequence[int] | None,
    generation: int,
) -> Asked:
    """Check and copy the arguments of a lookup.

    Raises `TokenError` for bad tokens, `ScopeError` for a bad scope or bad extra ids. Malformed media
    metadata is no error: such a request is served, but takes nothing from the cache and leaves nothing in it,
    because with an unknown picture no key is safe.
    """
    buffer = as_tokens(tokens)
    length = len(buffer) // TOKEN_BYTES
    given = _EVERYBODY if scope is None else scope
    if not isinstance(given, Scope):
        raise ScopeError(f"scope is {scope!r}: expected a Scope")
    ids = b"" if extra_ids is None else pack_extra_ids(extra_ids, length)
    why_not = ""
    extras: Extras | None = None
    try:
        runs = () if isinstance(media, tuple) and not media else read_media(media, length)
        extras = Extras(runs, ids) if runs or ids else None
    except ScopeError as error:
        why_not = f"uncacheable: {error}"
    return Asked(locate(buffer, given, extras, extra_ids is not None, generation), length, given, generation, why_not)


def locate(buffer: bytes, scope: Scope, extras: Extras | None, uses_ids: bool, generation: int) -> Prompt:
    """The prompt under the scope's full identity in this generation."""
    root, full = _identity(scope, generation, uses_ids)
    return Prompt(buffer, root, full, extras)


@lru_cache(maxsize=64)
def _identity(scope: Scope, generation: int, uses_ids: bool) -> tuple[bytes, Scope]:
    """The encoded scope, and the scope with its generation filled in. Remembered: requests share few scopes."""
    full = scope if scope.generation is not None else replace(scope, generation=generation)
    return full.encode(generation, uses_ids), full


def refresh(asked: Asked, generation: int) -> None:
    """Move a prompt that was read before the weights changed to the current generation."""
    prompt = asked.prompt
    if asked.generation != generation and asked.given_scope.generation is None:
        uses_ids = prompt.extras is not None and bool(prompt.extras.ids)
        asked.prompt = locate(bytes(prompt.tokens), asked.given_scope, prompt.extras, uses_ids, generation)
    asked.generation = generation


def require_nonempty(asked: Asked) -> None:
    """Raises `TokenError` for an empty prompt: there would be no logits to sample from."""
    if not asked.length:
        raise TokenError("the prompt is empty: expected at least one token")


def next_block(prompt: Prompt, done: int, size: int, ahead: int = 0) -> Block | None:
    """The first full block that is not done, with `ahead` tokens behind it; None when there is none."""
    end = (done // size + 1) * size + ahead
    if end * TOKEN_BYTES > len(prompt.tokens):
        return None
    extras = prompt.extras.cut(0, end) if prompt.extras is not None else None
    return prompt.root, bytes(prompt.tokens[: end * TOKEN_BYTES]), extras
