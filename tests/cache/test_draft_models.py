"""With a draft model in the key, the last computed position is written once more: it is shared and freed with care."""

from __future__ import annotations

import pytest

from prefixcache import PrefixCache


def make(design: str, block_size: int) -> PrefixCache:
    return PrefixCache(design, block_size=block_size, capacity=8, lookahead=1, lookahead_by="key")


@pytest.mark.parametrize("design", ["radix", "hash_chain"])
@pytest.mark.parametrize("store", [True, False])
def test_a_fork_does_not_share_the_block_that_both_write_again(design: str, store: bool) -> None:
    cache = make(design, 1)
    request = cache.open([1, 2], store=store)
    request.computed(2)
    fork = request.fork()
    assert (fork.block_table[0], len(fork.copies)) == (request.block_table[0], 1)
    assert fork.block_table[1] != request.block_table[1]
    cache.check()


def test_a_block_that_is_written_again_waits_for_the_step_in_flight() -> None:
    cache = make("radix", 2)
    request = cache.open([1, 2, 3, 4])
    request.computed(4)
    request.close(in_flight=True)
    assert (cache.books().idle, cache.books().quarantined) == (1, 1)
    request.settled()
    assert (cache.books().idle, cache.books().quarantined) == (1, 0)
    cache.check()
