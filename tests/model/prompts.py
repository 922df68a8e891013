"""Prompts of the randomised tests: what is asked for, in values that can be logged and replayed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from prefixcache import Media, Scope

# Two spellings of "no adapter" and an adapter and a salt of one name: what isolation gets wrong first.
SCOPES: tuple[dict[str, str], ...] = (
    {},
    {"salt": "x"},
    {"adapter": "x"},
    {"adapter": "x", "salt": "y"},
    {"adapter": "", "salt": ""},
    {"model": "x"},
)

Unit = tuple[int, str, int]  # token, digest of the media item over it ("" for none), offset in the item
ScopeKey = tuple[str, str, str]  # model, adapter, salt; "" for none


@dataclass(frozen=True)
class Picture:
    """A media item that covers positions [start, start + length) of a prompt."""

    digest: str
    start: int
    length: int
    offset: int = 0


@dataclass(frozen=True)
class Prompt:
    tokens: tuple[int, ...]
    scope: int = 0  # index into SCOPES
    pictures: tuple[Picture, ...] = ()

    def cut(self, length: int) -> Prompt:
        """The first `length` tokens, with the pictures or parts of pictures that lie over them."""
        kept = tuple(
            Picture(item.digest, item.start, min(item.length, length - item.start), item.offset)
            for item in self.pictures
            if item.start < length
        )
        return Prompt(self.tokens[:length], self.scope, kept)

    def then(self, *tokens: int) -> Prompt:
        return Prompt(self.tokens + tokens, self.scope, self.pictures)

    def with_picture(self, digest: str, tokens: tuple[int, ...]) -> Prompt:
        """The prompt followed by `tokens` that stand for one whole picture."""
        item = Picture(digest, len(self.tokens), len(tokens))
        return Prompt(self.tokens + tokens, self.scope, (*self.pictures, item))

    @cached_property
    def units(self) -> tuple[Unit, ...]:
        over = {
            place: (item.digest, item.offset + place - item.start)
            for item in self.pictures
            for place in range(item.start, item.start + item.length)
        }
        return tuple((token, *over.get(place, ("", 0))) for place, token in enumerate(self.tokens))

    @property
    def scope_key(self) -> ScopeKey:
        return _SCOPE_KEYS[self.scope]

    def arguments(self) -> dict[str, object]:
        """As keywords of `probe` and `open`."""
        media = tuple(Media(bytes.fromhex(item.digest), item.start, item.length, item.offset) for item in self.pictures)
        return {"tokens": list(self.tokens), "scope": _SCOPES[self.scope], "media": media}


def scope_key(scope: Scope) -> ScopeKey:
    return scope.model, scope.adapter or "", scope.salt or ""


_SCOPES = [Scope(**fields) for fields in SCOPES]
_SCOPE_KEYS = [scope_key(scope) for scope in _SCOPES]
