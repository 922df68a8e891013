"""All that KV depends on besides the tokens, in a typed, length-delimited, prefix-free encoding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from prefixcache.errors import ScopeError

Name: TypeAlias = str | int | bytes


@dataclass(frozen=True, slots=True)
class Scope:
    """What KV depends on besides the tokens. Two scopes that differ share nothing.

    Attributes:
        model: identity of the model (name and version of its weights).
        generation: weight update the KV belongs to; None means the cache's current one.
        adapter: identity of the adapter (LoRA); None or "" means none. 0 is an adapter.
        salt: the tenant's cache salt; None or "" means none. 0 is a salt.

    Raises `ScopeError` when a field is of another type.
    """

    model: Name | None = ""
    generation: int | None = None
    adapter: Name | None = None
    salt: Name | None = None

    def __post_init__(self) -> None:
        for field, none in (("model", ""), ("adapter", None), ("salt", None)):
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, str | int | bytes | None):
                raise ScopeError(f"scope.{field} is {value!r}: expected str, int, bytes or None")
            if value is None or value == "" or value == b"":
                object.__setattr__(self, field, none)
        generation = self.generation
        if generation is not None and (
            isinstance(generation, bool) or not isinstance(generation, int) or generation < 0
        ):
            raise ScopeError(f"scope.generation is {generation!r}: expected an integer from 0 on, or None")

    def encode(self, generation: int, uses_extra_ids: bool = False) -> bytes:
        """The bytes that stand for this scope in every key, equal in every process.

        Every field is a type byte, a length and its bytes, so no two scopes share an encoding and none is
        the beginning of another's.
        """
        own = self.generation if self.generation is not None else generation
        fields = (self.model, own, self.adapter, self.salt, int(uses_extra_ids))
        return b"".join(encode_field(value) for value in fields)

    @staticmethod
    def decode(encoded: bytes) -> tuple[Scope, bool]:
        """The scope that `encode` made these bytes from, and whether extra ids are used. O(bytes)."""
        model, generation, adapter, salt, uses_extra_ids = _decode_fields(encoded)
        assert isinstance(generation, int)
        return Scope(model, generation, adapter, salt), bool(uses_extra_ids)


def _decode_fields(encoded: bytes) -> list[Name | None]:
    values: list[Name | None] = []
    at = 0
    while at < len(encoded):
        kind, length = encoded[at : at + 1], int.from_bytes(encoded[at + 1 : at + 9], "little")
        data = encoded[at + 9 : at + 9 + length]
        at += 9 + length
        if kind == b"n":
            values.append(None)
        elif kind == b"s":
            values.append(data.decode("utf-8", "surrogatepass"))
        else:
            values.append(data if kind == b"b" else int.from_bytes(data, "little", signed=True))
    return values


def encode_field(value: Name | None) -> bytes:
    """One value as type byte, 8-byte little-endian length, bytes."""
    if value is None:
        return b"n" + bytes(8)
    if isinstance(value, str):
        kind, data = b"s", value.encode("utf-8", "surrogatepass")
    elif isinstance(value, bytes):
        kind, data = b"b", value
    else:
        kind, data = b"i", value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return kind + len(data).to_bytes(8, "little") + data
