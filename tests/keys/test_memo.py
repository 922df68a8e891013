"""The chain memo: right for every prompt, hashes only what no remembered prompt has, bounded."""

from __future__ import annotations

import gc
import random
import tracemalloc
from itertools import pairwise

import pytest

from prefixcache.keys import ChainHash, ChainMemo, Extras, Scope, as_tokens
from prefixcache.keys.layouts import make_chain
from prefixcache.keys.memo import _cost


def memory(memo: ChainMemo) -> int:
    return sum(_cost(place, piece) for place, piece in memo._pieces.items())


@pytest.mark.parametrize("lookahead", [0, 1])
@pytest.mark.parametrize("hash", ["sha256", "xxh3-128", "sha256_cbor"])
def test_equal_to_the_plain_chain_and_bounded(hash: str, lookahead: int, seed: int) -> None:
    numbers = random.Random(seed)
    chain, plain = make_chain(hash, 4, lookahead), make_chain(hash, 4, lookahead)
    memo = ChainMemo(chain, most_bytes=40_000)
    scopes = [Scope(generation=0), Scope(generation=0, adapter="a=b"), Scope(generation=1, salt="s")]
    prompts = [[numbers.randrange(3) for _ in range(numbers.randrange(4, 60))] for _ in range(20)]
    for _ in range(2000):
        base = numbers.choice(prompts)
        prompt = base[: numbers.randrange(4, len(base) + 1)] + [
            numbers.randrange(3) for _ in range(numbers.randrange(12))
        ]
        tokens, scope = as_tokens(prompt), numbers.choice(scopes)
        root = scope.encode(0)
        blocks = numbers.randrange(chain.keyed(len(prompt)) + 1)
        extras = some_extras(numbers, len(prompt)) if numbers.random() < 0.5 else None
        keys = memo.keys(root, tokens, blocks, extras, scope)
        assert keys == plain.blocks(plain.root(root), tokens, 0, blocks, extras, scope)
        keys.append(b"the caller may change its list")
        assert memory(memo) == memo.bytes <= 40_000


def some_extras(numbers: random.Random, length: int) -> Extras | None:
    """A picture or two somewhere, or an extra id per token."""
    if numbers.random() < 0.2:
        return Extras((), b"".join(numbers.randrange(2).to_bytes(8, "little") for _ in range(length)))
    cuts = sorted(numbers.sample(range(length + 1), min(4, length + 1)))
    spans = list(pairwise(cuts))[::2]
    runs = [(start, end, bytes([numbers.randrange(2)]), numbers.randrange(2)) for start, end in spans]
    return Extras(tuple(runs)) if runs else None


def test_a_shared_prefix_is_hashed_once() -> None:
    chain = ChainHash("sha256", 16)
    memo = ChainMemo(chain)
    system = list(range(2048))
    for user in range(50):
        memo.keys(b"", as_tokens(system + [9_000 + user] * 64), 132)
    assert chain.hashed == 132 + 49 * 4


def test_a_shared_prefix_with_pictures_is_hashed_once() -> None:
    chain = ChainHash("sha256", 16)
    memo = ChainMemo(chain)
    system = list(range(2048))
    pictures = Extras(((500, 900, b"a", 0), (1000, 1100, b"b", 0)))
    for user in range(50):
        memo.keys(b"", as_tokens(system + [9_000 + user] * 64), 132, pictures)
    assert chain.hashed == 132 + 49 * 4


def test_a_long_line_of_tenants_does_not_grow_the_memo() -> None:
    memo = ChainMemo(ChainHash("sha256", 1), most_bytes=50_000)
    for tenant in range(10_000):
        memo.keys(Scope(salt=tenant).encode(0), as_tokens([tenant]), 1)
    assert memory(memo) == memo.bytes <= 50_000
    assert len(memo) < 100
    assert len(memo._roots) <= 4096


@pytest.mark.parametrize("carries", ["nothing", "ids", "pictures", "a long salt"])
@pytest.mark.parametrize("block_size", [4, 256])
def test_memory_is_bounded_whatever_prompts_carry(carries: str, block_size: int, seed: int) -> None:
    numbers = random.Random(seed)
    memo = ChainMemo(ChainHash("sha256", block_size), most_bytes=2**18)
    length = 4 * max(block_size, 16)
    tracemalloc.start()
    for number in range(2 * 2**18 // (length * 4)):
        tokens = numbers.randbytes(length * 4)
        root = Scope(salt="s" * 5000).encode(number) if carries == "a long salt" else b"root"
        extras = None
        if carries == "ids":
            extras = Extras((), numbers.randbytes(length * 8))
        if carries == "pictures":
            extras = Extras(tuple((at, at + 1, numbers.randbytes(32), 0) for at in range(0, length, 8)))
        memo._roots.clear()  # what it keeps of scopes has a bound of its own
        memo.keys(root, tokens, length // block_size, extras)
    del tokens, extras, root
    gc.collect()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 2**15 < held < 1.1 * 2**18
