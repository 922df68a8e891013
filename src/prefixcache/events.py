"""What a cache tells the world about its index: plain frozen values, no logic.

The set of keys built from these events alone is the set that a probe can reach (the mirror rule).
"""

from __future__ import annotations

from dataclasses import FrozenInstanceError, dataclass
from typing import TypeAlias

from prefixcache.errors import TokenError
from prefixcache.keys.scope import Scope
from prefixcache.keys.tokens import TOKEN_BYTES, TokenLike, as_tokens, to_tuple


class Stored:
    """Blocks became findable.

    Attributes:
        keys: one key per block, in prompt order; each covers the whole prefix up to its block's end.
        parent: key of the block before the first one, None at the beginning of a prompt.
        tokens: the tokens of these blocks, joined; only the last block of a design with partial
            tails may hold fewer than `block_size`. Given as ids or as one uint32 buffer, of which ids are made
            only when somebody reads them: an index of keys never does.
        scope: what the KV depends on besides the tokens.
        group: attention group whose blocks they are.
    """

    __slots__ = ("_tokens", "group", "keys", "parent", "scope")
    __match_args__ = ("keys", "parent", "tokens", "scope", "group")

    def __init__(
        self,
        keys: tuple[bytes, ...],
        parent: bytes | None,
        tokens: TokenLike | bytes,
        scope: Scope,
        group: int = 0,
    ) -> None:
        put = object.__setattr__
        put(self, "keys", keys)
        put(self, "parent", parent)
        buffer = tokens if isinstance(tokens, bytes) else as_tokens(tokens)
        if len(buffer) % TOKEN_BYTES:
            raise TokenError(f"tokens are {len(buffer)} bytes: expected {TOKEN_BYTES} for each token")
        put(self, "_tokens", buffer)
        put(self, "scope", scope)
        put(self, "group", group)

    keys: tuple[bytes, ...]
    parent: bytes | None
    scope: Scope
    group: int
    _tokens: bytes

    @property
    def tokens(self) -> tuple[int, ...]:
        """The ids. O(tokens)."""
        return to_tuple(self._tokens)

    def __setattr__(self, name: str, value: object) -> None:
        raise FrozenInstanceError(f"cannot assign to {name}: an event does not change")

    def __delattr__(self, name: str) -> None:
        raise FrozenInstanceError(f"cannot delete {name}: an event does not change")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stored) and self._all() == other._all()

    def __hash__(self) -> int:
        return hash(self._all())

    def __reduce__(self) -> tuple[type[Stored], tuple[object, ...]]:
        return Stored, self._all()

    def _all(self) -> tuple[object, ...]:
        return self.keys, self.parent, self._tokens, self.scope, self.group

    def __repr__(self) -> str:
        named = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__match_args__)
        return f"Stored({named})"


@dataclass(frozen=True, slots=True)
class Removed:
    """The keys are no longer findable: evicted, replaced, or cut off from the beginning of their prompt."""

    keys: tuple[bytes, ...]
    group: int = 0


@dataclass(frozen=True, slots=True)
class Moved:
    """The blocks of these keys have arrived in another tier, "device" or "host". Until then nothing is said of them."""

    keys: tuple[bytes, ...]
    tier: str


@dataclass(frozen=True, slots=True)
class Cleared:
    """Everything is gone (reset); no `Removed` is sent for it."""


Event: TypeAlias = Stored | Removed | Moved | Cleared
