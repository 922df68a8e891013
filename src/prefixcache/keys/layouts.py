"""The ways of chaining keys by name: our own layout under each of `HASHES`, and those of vLLM."""

from __future__ import annotations

from collections.abc import Callable

from prefixcache.errors import OptionError
from prefixcache.keys.builtin import BuiltinChain
from prefixcache.keys.cbor import CborChain
from prefixcache.keys.chain import HASHES, ChainHash

LAYOUTS: dict[str, Callable[[int, int], ChainHash]] = {"sha256_cbor": CborChain, "builtin": BuiltinChain}


def make_chain(hash: str | Callable[[bytes], bytes | int], block_size: int, lookahead: int = 0) -> ChainHash:
    """The chain of this name, or of a function of bytes. Raises `OptionError` for an unknown name."""
    if callable(hash) or (isinstance(hash, str) and hash in HASHES):
        return ChainHash(hash, block_size, lookahead)
    if not isinstance(hash, str) or hash not in LAYOUTS:
        raise OptionError(f"hash is {hash!r}: expected one of {', '.join([*HASHES, *LAYOUTS])} or a function of bytes")
    return LAYOUTS[hash](block_size, lookahead)
