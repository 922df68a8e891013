"""Draft models: the KV of a position depends on the next token. Drop the last hit, or put the token into the key."""

from __future__ import annotations

from typing import Any

import pytest

from prefixcache import Media, PrefixCache, Stored


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
