"""Equal keys are no proof: under a weak hash no prompt is ever served another one's block."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from prefixcache import Media, PrefixCache, Scope, Stored
from prefixcache.scenario.oracle import KVOracle
from tests.designs.hash_chain.inside import design_of


def constant(message: bytes) -> int:
    return 7


def parity(message: bytes) -> int:
    return sum(message) % 2


def first_byte(message: bytes) -> bytes:
    return message[-4:-3]


WEAK: list[Callable[[bytes], bytes | int]] = [constant, parity, first_byte]


@pytest.mark.parametrize("duplicates", ["give_back", "keep"])
@pytest.mark.parametrize("hash", WEAK, ids=[function.__name__ for function in WEAK])
def test_a_weak_hash_costs_hits_and_never_content(hash: Any, duplicates: str, seed: int) -> None:
    dice = random.Random(f"{seed} {hash.__name__} {duplicates}")
    cache = PrefixCache("hash_chain", block_size=2, capacity=24, hash=hash, duplicates=duplicates)
    oracle = KVOracle(2)
    live: list[Any] = []
    hits = 0
    for _ in range(1500):
        if live and dice.random() < 0.45:
            live.pop(dice.randrange(len(live))).close()
        elif len(live) < 3:
            tokens = [dice.randrange(3) for _ in range(dice.randrange(1, 9))]
            media = [Media(bytes([dice.randrange(2)]), 0, dice.randrange(1, len(tokens) + 1))]
            request = cache.open(
                tokens, Scope(salt=dice.choice([None, "s"])), media=media if dice.random() < 0.3 else ()
            )
            hits += request.cached > 0
            oracle.verify(request, request.cached)
            oracle.write(request, request.cached, request.length)
            request.computed(request.length)
            live.append(request)
        cache.check()
        for request in live:
            oracle.verify(request, request.length)
    assert hits > 5, "the test is about hits that are right, not about none"


def test_what_collides_with_its_own_beginning_is_not_published() -> None:
    cache = PrefixCache("hash_chain", block_size=4, capacity=16, hash=constant)
    request = cache.open([1, 2, 3, 4] * 3)
    request.computed(12)
    assert cache.probe([1, 2, 3, 4] * 3).cached == 4
    assert cache.probe([9, 2, 3, 4, 5]).cached == 0


def test_the_content_of_a_block_is_not_enough_its_predecessor_counts() -> None:
    """Both second blocks hold 5 6 7 8 under one key; only one of them was computed behind 1 2 3 4."""

    def second_block(message: bytes) -> bytes:
        return message[-16:]  # keys tell blocks apart, but not what stood before them

    cache = PrefixCache("hash_chain", block_size=4, capacity=16, hash=second_block)
    for tokens in ([1, 2, 3, 4, 5, 6, 7, 8, 0], [4, 3, 2, 1, 0]):
        request = cache.open(tokens)
        request.computed(len(tokens))
    assert cache.probe([4, 3, 2, 1, 5, 6, 7, 8, 0]).cached == 4
    assert cache.probe([1, 2, 3, 4, 5, 6, 7, 8, 0]).cached == 8


@pytest.mark.parametrize("hash", ["xxh3-128", "builtin"])
def test_named_hashes_that_need_confirming_are_confirmed(hash: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cache = PrefixCache("hash_chain", block_size=4, capacity=16, hash=hash)
    assert not design_of(cache)._chain.trusted
    request = cache.open(range(9), Scope(adapter="a"))
    request.computed(9)
    assert cache.probe(range(9), Scope(adapter="a")).cached == 8
    assert cache.probe(range(9), Scope(adapter="b")).cached == 0
    (run,) = design_of(cache)._index
    assert run.held is not None
    run.held.text = run.held.text[:16] + b"another prompt's"  # as if the key of the second block had collided
    assert cache.probe(range(9), Scope(adapter="a")).cached == 4


def test_the_study_hash_warns_and_is_nobodys_default() -> None:
    with pytest.warns(UserWarning, match="kept for study"):
        PrefixCache("hash_chain", block_size=4, capacity=16, hash="builtin")
    for preset in ("vllm-0.8.5", "vllm-1"):
        assert design_of(PrefixCache.preset(preset, block_size=4, capacity=16))._chain.trusted


def test_vllms_layout_does_not_say_how_long_a_picture_is() -> None:
    """Equal keys, for the key holds no end; what the block holds tells them apart, as in every other layout."""
    cache = PrefixCache("hash_chain", block_size=4, capacity=16, hash="sha256_cbor")
    tokens = [1, 2, 3, 4, 5, 6, 7, 8, 9]
    request = cache.open(tokens, media=[Media(b"a", 1, 1)])
    request.computed(9)
    assert cache.probe(tokens, media=[Media(b"a", 1, 1)]).cached == 8
    assert cache.probe(tokens, media=[Media(b"a", 1, 2)]).cached == 0
    other = cache.open(tokens, media=[Media(b"a", 1, 2)])
    other.computed(9)
    cache.check()
    assert cache.probe(tokens, media=[Media(b"a", 1, 2)]).cached == 0
    assert cache.probe(tokens, media=[Media(b"a", 1, 1)]).cached == 8


@pytest.mark.parametrize("hash", ["sha256", "sha256_cbor", "xxh3-128"])
def test_scopes_never_share_a_key(hash: str) -> None:
    names = [None, "", "x", "x=", "=x", "x=y", "x=y=z", b"x", 0, 1, -1, "0", b"0", 2**70]
    scopes = {Scope(adapter=name) for name in names} | {Scope(salt=name) for name in names}
    scopes |= {Scope(model=name) for name in names} | {Scope(adapter="x", salt="x"), Scope(adapter="x", model="x")}
    cache = PrefixCache("hash_chain", block_size=2, capacity=1000, hash=hash)
    for scope in scopes:
        request = cache.open([1, 2, 3, 4, 5], scope)
        assert request.cached == 0
        request.computed(5)
    keys = [key for event in cache.take_events()[2] if isinstance(event, Stored) for key in event.keys]
    assert len(keys) == len(set(keys)) == 2 * len(scopes)
