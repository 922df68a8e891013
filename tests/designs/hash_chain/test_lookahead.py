"""Draft models: the KV of a position depends on the next token. Drop the last hit, or put the token into the key."""

from __future__ import annotations

import random
from typing import Any

import pytest

from prefixcache import Media, PrefixCache, Request, Scope, Stored


def make(form: str, **options: Any) -> PrefixCache:
    return PrefixCache("hash_chain", block_size=4, capacity=16, lookahead=1, lookahead_by=form, **options)


def run(cache: PrefixCache, tokens: list[int]) -> None:
    request = cache.open(tokens)
    request.computed(len(tokens))
    request.close()


@pytest.mark.parametrize(("form", "expected"), [("drop", [4, 4, 0]), ("key", [4, 8, 0])])
def test_the_numbers_of_the_bug_report(form: str, expected: list[int]) -> None:
    cache = make(form)
    run(cache, list(range(1, 10)))
    probes = ([*range(1, 9), 99], [*range(1, 10), 99], [1, 2, 3, 4, 99])
    assert [cache.probe(tokens).cached for tokens in probes] == expected


def test_vllm_drops_one_block_of_twenty_cached_tokens() -> None:
    cache = PrefixCache.preset("vllm-1", block_size=4, capacity=16, lookahead=1)
    run(cache, list(range(20)))
    assert [cache.probe(range(n)).cached for n in (17, 20, 21)] == [12, 12, 16]


def test_a_block_is_stored_when_the_token_behind_it_is_known() -> None:
    cache = make("key")
    request = cache.open(range(1, 9))
    request.computed(8)
    assert cache.probe([*range(1, 9), 9]).cached == 4
    request.append(9)
    request.computed(8)
    assert cache.probe([*range(1, 9), 9]).cached == 8
    assert cache.probe([*range(1, 9), 7]).cached == 4


def test_another_next_token_after_a_rewind_is_another_block() -> None:
    cache = make("key")
    request = cache.open(range(1, 10))
    request.computed(9)
    request.rewind(8)  # block 1 was stored for the next token 9: the request takes a copy of it
    request.copied()
    request.append(7)
    request.computed(9)
    cache.check()
    assert cache.probe([*range(1, 10), 0]).cached == 8
    assert cache.probe([*range(1, 9), 7, 0]).cached == 8
    assert cache.books().pinned == 3
    keys = [key for event in cache.take_events()[2] if isinstance(event, Stored) for key in event.keys]
    assert len(keys) == len(set(keys)) == 3


def test_a_picture_behind_a_block_is_part_of_its_key() -> None:
    cache = make("key")
    tokens = [1, 2, 3, 4, 5, 6, 7, 8, 9]
    request = cache.open(tokens, media=[Media(b"a", 4, 1)])
    request.computed(9)
    assert cache.probe(tokens, media=[Media(b"a", 4, 1)]).cached == 8
    assert cache.probe(tokens, media=[Media(b"b", 4, 1)]).cached == 0
    assert cache.probe(tokens).cached == 0


@pytest.mark.parametrize("hash", ["sha256", "xxh3-128", "sha256_cbor"])
def test_the_two_forms_share_no_keys(hash: str) -> None:
    keys = []
    for lookahead in (0, 1):
        cache = PrefixCache("hash_chain", block_size=4, capacity=16, hash=hash, lookahead=lookahead, lookahead_by="key")
        request = cache.open(range(9))
        request.computed(9)
        keys += [key for event in cache.take_events()[2] if isinstance(event, Stored) for key in event.keys]
    assert len(set(keys)) == 4


@pytest.mark.parametrize("hash", ["sha256", "xxh3-128", "sha256_cbor"])
def test_a_miss_for_want_of_the_next_token_says_so(hash: str) -> None:
    cache = make("key", hash=hash)
    run(cache, list(range(1, 10)))
    expected = {
        (1, 2, 3, 4, 5, 6, 7, 8, 99): (4, "lookahead"),
        (1, 2, 3, 4, 99): (0, "lookahead"),
        (1, 2, 3, 4, 5, 6, 7, 99, 9): (4, "not found"),  # another block
        (1, 2, 3, 99, 5): (0, "not found"),
        (1, 2, 3, 4, 5, 6, 7, 8): (4, "last token"),  # the block would not fit before the last token
    }
    for tokens, answer in expected.items():
        hit = cache.probe(tokens)
        assert (hit.cached, hit.reason) == answer, tokens
    assert cache.probe([1, 2, 3, 4, 99], Scope(salt="b")).reason == "not found"
    assert cache.probe([1, 2, 3, 4, 99], media=[Media(b"a", 3, 1)]).reason == "not found"
    assert cache.probe([1, 2, 3, 4, 5, 0], media=[Media(b"a", 4, 1)]).reason == "lookahead"
    cache.open([1, 2, 3, 4, 99]).close()
    assert cache.stats().lookahead_tokens == 4
    cache.evict(1)
    assert cache.probe([1, 2, 3, 4, 5, 6, 7, 8, 99]).reason == "not found"
    assert cache.probe([1, 2, 3, 4, 99]).reason == "lookahead"
    cache.new_generation()
    assert cache.probe([1, 2, 3, 4, 99]).reason == "not found"


def test_a_block_that_is_not_shown_yet_lacks_more_than_the_next_token() -> None:
    cache = make("key", visibility="step")
    request = cache.open(range(1, 10))
    request.computed(9)
    assert cache.probe([1, 2, 3, 4, 99]).reason == "not found"
    cache.end_step()
    assert cache.probe([1, 2, 3, 4, 99]).reason == "lookahead"


@pytest.mark.parametrize("duplicates", ["give_back", "keep"])
def test_what_a_next_token_is_lacking_for_is_known_exactly(duplicates: str) -> None:
    """Random histories of few tokens: the reason against a search through all that was cached."""
    for seed in range(30):
        rng = random.Random(seed)
        cache = PrefixCache(
            "hash_chain", block_size=2, capacity=9, lookahead=1, lookahead_by="key", duplicates=duplicates
        )
        stored: dict[bytes, tuple[int, ...]] = {}  # the prefix, the next token included
        for _ in range(60):
            tokens = [rng.randrange(2) for _ in range(rng.randrange(3, 12))]
            request = cache.open(tokens)
            request.computed(len(tokens))
            for cut in range(3, len(tokens) + 1, 2):
                stored[key_of(request, cut)] = tuple(tokens[:cut])
            request.close()
            cache.evict(rng.randrange(3))
            cache.check()
            there = {stored[key] for node in cache.outline() for key in node.keys}
            for _ in range(5):
                asked = tuple(rng.randrange(2) for _ in range(rng.randrange(3, 12)))
                hit = cache.probe(asked)
                at = hit.cached + 2
                lacking = at < len(asked) and any(len(t) == at + 1 and t[:at] == asked[:at] for t in there)
                assert (hit.reason == "lookahead") == lacking, (seed, asked, hit)


def key_of(request: Request, cut: int) -> bytes:
    """The key of the block of a request that is known from `cut` tokens on."""
    return request.holding.prompt.keys[(cut - 1) // 2 - 1]
