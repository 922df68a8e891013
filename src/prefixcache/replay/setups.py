"""What to compare: designs and presets, each at some block sizes and some capacities."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from prefixcache.cache import PRESETS, PrefixCache
from prefixcache.designs import BASELINES, DESIGNS
from prefixcache.errors import OptionError

UNBOUNDED = "unbounded"
_UNBOUNDED_BLOCKS = 2**31 - 1

# What users of the originals run: SGLang's page of 1, vLLM's default block and a large one, TensorRT-LLM's
# default. A design that is not here is compared only when it is asked for.
_USUAL_BLOCK_SIZES = {
    "radix": (1,),
    "hash_chain": (16, 128),
    "block_trie": (32,),
    "digest_chain": (32,),
    "token_trie": (1,),
}
_OTHER_BLOCK_SIZES = (16,)

_KNOWN = DESIGNS | BASELINES

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")
_TOKEN_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}
_BYTE_UNITS = {"mib": 2**20, "gib": 2**30, "tib": 2**40}


@dataclass(frozen=True, slots=True)
class Setup:
    """What one row of the table is about.

    Attributes:
        design: name of a design or of a preset.
        block_size: tokens per block.
        capacity_tokens: room for this many tokens, in whole blocks; None = unbounded.
        host_tokens: the same of the host tier below; 0 = none.
    """

    design: str
    block_size: int
    capacity_tokens: int | None
    host_tokens: int = 0

    @property
    def eviction(self) -> str:
        """Name of the policy that ranks what may go."""
        preset = PRESETS.get(self.design)
        own = _KNOWN[preset.design if preset is not None else self.design].default_eviction
        policy = (preset.eviction if preset is not None else None) or own
        return policy if isinstance(policy, str) else policy.name

    def build(self, *, bounded: bool = True) -> PrefixCache:
        """An empty cache. Raises `OptionError` for what does not exist or holds no block."""
        capacity = _UNBOUNDED_BLOCKS
        if bounded and self.capacity_tokens is not None:
            capacity = self.capacity_tokens // self.block_size
        if capacity < 1:
            raise OptionError(
                f"a capacity of {self.capacity_tokens} tokens holds no block of {self.block_size}: "
                f"expected at least {self.block_size} tokens"
            )
        if capacity > _UNBOUNDED_BLOCKS:
            raise OptionError(
                f"a capacity of {self.capacity_tokens} tokens makes {capacity} blocks of {self.block_size}: "
                f"expected at most {_UNBOUNDED_BLOCKS}, or {UNBOUNDED}"
            )
        arguments: dict[str, Any] = {"block_size": self.block_size, "capacity": capacity, "events": False}
        if self.host_tokens and bounded:
            arguments["tiers"] = {"host": self._host_blocks()}
        if self.design in PRESETS:
            return PrefixCache.preset(self.design, **arguments)
        if self.design in _KNOWN:
            return PrefixCache(self.design, **arguments)
        known = ", ".join([*_KNOWN, *PRESETS])
        raise OptionError(f"design is {self.design!r}: expected one of {known}")

    def _host_blocks(self) -> int:
        blocks = min(self.host_tokens // self.block_size, _UNBOUNDED_BLOCKS)
        if not blocks:
            raise OptionError(f"a host tier of {self.host_tokens} tokens holds no block of {self.block_size}")
        return blocks


def plan(
    designs: Sequence[str], block_sizes: Sequence[int], capacities: Sequence[int | None], host: int = 0
) -> list[Setup]:
    """Every design at every block size and capacity; without designs all of them, without sizes the usual ones.

    With `host` each has a host tier of so many tokens. A design may bring its own block size: `hash_chain@64`.
    Each setup is built once, so what does not exist raises `OptionError` before any work is done.
    """
    names = designs or [name for name in _USUAL_BLOCK_SIZES if name in DESIGNS]
    pairs = [(name, size) for given in names for name, size in _at_sizes(given, block_sizes)]
    setups = [
        Setup(name, size, capacity, host)
        for capacity in dict.fromkeys(capacities)
        for name, size in dict.fromkeys(pairs)
    ]
    for setup in setups:
        setup.build()
    return setups


def _at_sizes(given: str, block_sizes: Sequence[int]) -> list[tuple[str, int]]:
    name, at, size = given.partition("@")
    if not at:
        return [(name, size) for size in block_sizes or _usual_block_sizes(name)]
    if not size.isdecimal() or int(size) < 1:
        raise OptionError(f"design is {given!r}: expected a number of tokens from 1 on after the @")
    return [(name, int(size))]


def _usual_block_sizes(name: str) -> tuple[int, ...]:
    design = PRESETS[name].design if name in PRESETS else name
    sizes = _USUAL_BLOCK_SIZES.get(design, _OTHER_BLOCK_SIZES)
    return sizes[:1] if name in PRESETS else sizes


def read_capacity(text: str, kv_bytes_per_token: int | None = None) -> int | None:
    """Tokens from `400k`, `4M`, `2000000`, `40GiB` (which needs the bytes of KV per token) or `unbounded`.

    Returns None for `unbounded`. Raises `OptionError` for anything else.
    """
    if text.strip().lower() == UNBOUNDED:
        return None
    found = _SIZE.fullmatch(text.strip())
    unit = found[2].lower() if found else ""
    if not found or unit not in _TOKEN_UNITS | _BYTE_UNITS:
        raise OptionError(
            f"capacity is {text!r}: expected tokens such as 400k or 4M, memory such as 40GiB, or {UNBOUNDED}"
        )
    if unit in _TOKEN_UNITS:
        tokens = round(float(found[1]) * _TOKEN_UNITS[unit])
    elif kv_bytes_per_token is None:
        raise OptionError(f"capacity is {text!r}: memory needs --kv-bytes-per-token to become tokens")
    else:
        tokens = int(float(found[1]) * _BYTE_UNITS[unit]) // kv_bytes_per_token
    if tokens < 1:
        raise OptionError(f"capacity is {text!r}: that is no token; expected at least 1")
    return tokens


def read_host(text: str | None, kv_bytes_per_token: int | None = None) -> int:
    """Tokens of a host tier, as `read_capacity` reads them; None, as no host tier, is 0. Raises `OptionError`."""
    if text is None:
        return 0
    tokens = read_capacity(text, kv_bytes_per_token)
    if tokens is None:
        raise OptionError(f"host is {text!r}: expected tokens such as 4M or memory such as 40GiB")
    return tokens
