"""What a cache tells the world about its index: plain frozen values, no logic.

The set of keys built from these events alone is the set that a probe can reach (the mirror rule).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from prefixcache.keys.scope import Scope


@dataclass(frozen=True, slots=True)
class Stored:
    """Blocks became findable.

    Attributes:
        keys: one key per block, in prompt order; each covers the whole prefix up to its block's end.
        parent: key of the block before the first one, None at the beginning of a prompt.
        tokens: the tokens of these blocks, joined; only the last block of a design with partial
            tails may hold fewer than `block_size`.
        scope: what the KV depends on besides the tokens.
        group: attention group whose blocks they are.
    """

    keys: tuple[bytes, ...]
    parent: bytes | None
    tokens: tuple[int, ...]
    scope: Scope
    group: int = 0


@dataclass(frozen=True, slots=True)
class Removed:
    """The keys are no longer findable: evicted, replaced, or cut off from the beginning of their prompt."""

    keys: tuple[bytes, ...]
    group: int = 0


@dataclass(frozen=True, slots=True)
class Moved:
    """The blocks of these keys now lie in another tier."""

    keys: tuple[bytes, ...]
    tier: str


@dataclass(frozen=True, slots=True)
class Cleared:
    """Everything is gone (reset); no `Removed` is sent for it."""


Event: TypeAlias = Stored | Removed | Moved | Cleared
