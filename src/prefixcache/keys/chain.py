"""Chained digests: the key of a block covers its whole prefix.

    key[i] = H(key[i-1] || tokens of block i),   key[-1] = H(tag || scope)

A block that carries media or extra ids mixes them into what it continues from:

    key[i] = H(H(tag || key[i-1] || extras) || tokens of block i)

With a lookahead of L (draft models), the tokens and extras of a block go on for L tokens behind its end, and
the scope has a tag of its own.

The tags are constants of 32 bytes that no digest can be expected to equal, so the kinds of message never
coincide: no token list can imitate a scope or a picture.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from operator import index
from typing import SupportsIndex, TypeAlias

import numpy as np
import xxhash

from prefixcache.errors import InvariantError, OptionError
from prefixcache.keys.extras import Extras
from prefixcache.keys.scope import Scope
from prefixcache.keys.tokens import TOKEN_BYTES, Buffer

Digest: TypeAlias = Callable[[bytes], bytes]

_SCOPE_TAG = b"prefixcache scope".ljust(32, b"\0")
_LOOKAHEAD_TAG = b"prefixcache scope, lookahead".ljust(32, b"\0")
_EXTRAS_TAG = b"prefixcache extras".ljust(32, b"\0")


def _sha256(message: bytes) -> bytes:
    return hashlib.sha256(message).digest()


# Each hash with whether it resists collisions: where it does not, a hit is confirmed by comparing tokens.
HASHES: dict[str, tuple[Digest, bool]] = {
    "sha256": (_sha256, True),
    "xxh3-128": (xxhash.xxh3_128_digest, False),
}


class ChainHash:
    """One way of chaining digests over the blocks of a prompt.

    Args:
        hash: a name of `HASHES`, or a function from bytes to bytes or int (for study and tests; taken as
            not collision-resistant).
        block_size: tokens per block.
        lookahead: tokens behind a block that its key covers as well.

    Attributes:
        trusted: equal keys mean equal scopes and tokens; else hits must be confirmed by tokens.
        covers_extras: equal keys mean equal extras too; else hits must be confirmed by these.
        hashed: blocks hashed so far, for tests and benchmarks.
    """

    covers_extras = True

    def __init__(self, hash: str | Callable[[bytes], bytes | int], block_size: int, lookahead: int = 0) -> None:
        self.block_size = block_size
        self.lookahead = lookahead
        self.hashed = 0
        if callable(hash):
            self.name, self.trusted = getattr(hash, "__name__", "custom"), False
            self._digest = _as_digest(hash)
        elif isinstance(hash, str) and hash in HASHES:
            self.name = hash
            self._digest, self.trusted = HASHES[hash]
        else:
            raise OptionError(f"hash is {hash!r}: expected one of {', '.join(HASHES)} or a function of bytes")

    def keyed(self, tokens: int) -> int:
        """How many leading blocks have a key that these many tokens determine."""
        return max(tokens - self.lookahead, 0) // self.block_size

    def root(self, scope: bytes) -> bytes:
        """The digest that the first block of a scope continues from."""
        return self._digest((_LOOKAHEAD_TAG if self.lookahead else _SCOPE_TAG) + scope)

    def block(self, parent: bytes, tokens: bytes, extras: Extras | None) -> bytes:
        """Key of one block, full or partial, behind `parent`. O(tokens)."""
        self.hashed += 1
        if extras is not None:
            parent = self._digest(_EXTRAS_TAG + parent + extras.encode())
        return self._digest(parent + tokens)

    def behind(
        self, scope: bytes, before: bytes | None, tokens: Buffer, start: int, extras: Extras | None
    ) -> Iterator[bytes]:
        """Keys of the full blocks from token `start` on, behind the key `before`, about as many as are asked for.

        First one, then twice as many as before at a time: most lookups end with the first, and long ones are fast.
        """
        parent = before if before is not None else self.root(scope)
        at, end, count = start // self.block_size, len(tokens) // TOKEN_BYTES // self.block_size, 1
        while at < end:
            keys = self.blocks(parent, tokens, at, min(at + count, end), extras)
            yield from keys
            parent, at, count = keys[-1], at + len(keys), 2 * count

    def blocks(
        self,
        parent: bytes,
        tokens: Buffer,
        start: int,
        end: int,
        extras: Extras | None,
        scope: Scope | None = None,
    ) -> list[bytes]:
        """Keys of the full blocks [start, end) of a prompt, behind the key of block start-1. O(tokens).

        Only layouts that name parts of the scope in their blocks look at `scope`; here the root stands for it.
        """
        size, covered = self.block_size, self.block_size + self.lookahead
        if extras is not None:
            keys = []
            for at in range(start * size, end * size, size):
                text = bytes(tokens[at * TOKEN_BYTES : (at + covered) * TOKEN_BYTES])
                parent = self.block(parent, text, extras.cut(at, at + covered))
                keys.append(parent)
            return keys
        self.hashed += end - start
        step = size * TOKEN_BYTES
        if len(tokens) < end * step:
            raise InvariantError(f"{end} keys asked for of {len(tokens) // TOKEN_BYTES} tokens in blocks of {size}")
        if covered > size:  # what two blocks cover overlaps
            width = covered * TOKEN_BYTES
            texts: Iterable[bytes] = (bytes(tokens[at : at + width]) for at in range(start * step, end * step, step))
        elif start < end:  # opaque items, cut out all at once
            texts = np.frombuffer(tokens, np.dtype((np.void, step)), end - start, start * step).tolist()
        else:
            return []
        if self._digest is _sha256:  # the loop that every long prompt runs through: no call but the hash itself
            sha256 = hashlib.sha256
            return [parent := sha256(parent + text).digest() for text in texts]
        digest = self._digest
        return [parent := digest(parent + text) for text in texts]


def _as_digest(function: Callable[[bytes], bytes | int]) -> Digest:
    """The function as a digest, tried once: one that fails does so here and not under a request that owns blocks."""

    def digest(message: bytes) -> bytes:
        value: object = function(bytes(message))
        if isinstance(value, bytes):
            return value
        if not isinstance(value, SupportsIndex):
            raise OptionError(f"hash gives {value!r}: expected a function from bytes to bytes or int")
        number = index(value)
        return number.to_bytes(max(16, number.bit_length() // 8 + 1), "little", signed=True)

    try:
        digest(b"")
    except OptionError:
        raise
    except Exception as error:
        raise OptionError(f"hash fails on bytes: {error!r}") from error
    return digest
