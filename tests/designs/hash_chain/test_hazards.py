"""The hazards of vLLM 0.8.5: for each, the steps that make the original go wrong, and the right answer here."""

from __future__ import annotations

import pytest

from prefixcache import PrefixCache, Request, Scope, TokenError
from prefixcache.designs.hash_chain.search import SEARCHES


def make(capacity: int = 16, **options: object) -> PrefixCache:
    return PrefixCache.preset("vllm-0.8.5", block_size=4, capacity=capacity, **options)


def start(cache: PrefixCache, tokens: list[int]) -> Request:
    """Open and compute, as one scheduling step does."""
    request = cache.open(tokens)
    request.computed(len(tokens))
    return request


@pytest.mark.parametrize("search", SEARCHES)
def test_h1_a_parent_with_an_older_stamp_leaves_a_hole_to_bisect_over(search: str) -> None:
    """The original evicts the shared parent before its younger child; bisection then finds both, linear none."""
    cache = make(search=search)
    shared, later = [1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 3, 4, 9, 9, 9, 9]
    first = start(cache, shared)
    cache.end_step()
    start(cache, later).close()  # in a later step: its own block is younger than what `first` lets go of
    first.close()  # the last to let go of the shared block stamps it with the older step
    assert cache.probe([*later, 0]).cached == 8
    assert cache.evict(2) == 2  # the original: the first request's block, then the parent of the other one
    cache.check()
    assert cache.probe([*later, 0]).cached == 4
    assert cache.probe([*shared, 0]).cached == 4
    assert cache.evict(9) == 1
    assert cache.probe([*later, 0]).cached == 0


def test_h2_an_old_heap_entry_speaks_for_a_block_that_holds_something_else() -> None:
    """The original: free, hit and free in one step, then the id is reused; an old entry evicts the new content."""
    cache = make(capacity=2)
    for _ in range(3):
        start(cache, [1, 2, 3, 4]).close()
    start(cache, [5, 6, 7, 8]).close()
    other = start(cache, [9, 9, 9, 9])  # takes over the id of the block that was released three times
    cache.check()
    assert cache.evict(9) == 1
    assert cache.evict(9) == 0
    cache.end_step()
    assert cache.probe([9, 9, 9, 9, 0]).cached == 4
    other.close()
    cache.check()


def test_h3_a_use_after_the_release_hides_a_free_block() -> None:
    """The original: touching a block that waits for eviction orphans its heap entry; one free block, no memory."""
    cache = make(capacity=1)
    for tokens in ([1, 2, 3, 4], [5, 6, 7, 8]) * 3:
        request = start(cache, tokens)
        request.close()
        request.close()
        cache.end_step()
        assert cache.probe([*tokens, 0]).cached == 4
        assert cache.books().idle == 1  # and it can be had: the next turn takes it


def test_h4_a_hit_promised_to_a_waiting_request_is_evicted_meanwhile() -> None:
    """The original keeps the first answer, 12, for as long as the request waits; the truth is 0 by then."""
    cache = make(capacity=4)
    start(cache, list(range(12))).close()
    waiting = [*range(12), 99]
    assert cache.probe(waiting).cached == 12
    start(cache, list(range(100, 116))).close()
    assert cache.open(waiting).cached == 0


def test_h5_a_first_chunk_marks_the_whole_prompt() -> None:
    """The original marks all 64 tokens when the first chunk of 4 is scheduled."""
    cache = make(capacity=40)
    request = cache.open(range(65))
    request.computed(4)
    cache.end_step()
    assert cache.probe([*range(65), 0]).cached == 4
    request.computed(65)
    cache.end_step()
    assert cache.probe([*range(65), 0]).cached == 64


def test_h6_different_tokens_with_equal_hashes() -> None:
    """The original's keys of (-1, True) and (-2, 1) are equal. Here neither is a token, in any mode."""
    assert hash((-1, True)) == hash((-2, 1))
    with pytest.warns(UserWarning, match="64-bit hash"):
        cache = make(hash="builtin")
    for bad in (-1, -2, True):
        with pytest.raises(TokenError):
            cache.open([1, 2, 3, bad])
    start(cache, [1, 2, 3, 4]).close()
    assert cache.probe([1, 2, 3, 4, 0]).cached == 4
    assert cache.probe([1, 2, 3, 4, 0], Scope(salt="s")).cached == 0


def test_h7_a_mark_of_the_last_owner_hits_the_next_one() -> None:
    """The original: released before the step's marking, the id is reused, and the marking shows what was never
    computed. Here a release ends the step, so nothing of it is left to be marked."""
    cache = make(capacity=1)
    start(cache, [1, 2, 3, 4]).close()
    assert cache.probe([1, 2, 3, 4, 0]).cached == 4  # the release has ended the step
    reuser = cache.open([5, 6, 7, 8])
    cache.end_step()
    assert cache.probe([5, 6, 7, 8, 0]).cached == 0
    reuser.close()
    assert cache.books().free == 1
    start(cache, [1, 2, 3, 4]).close()
    assert cache.reset()
    reuser = cache.open([5, 6, 7, 8])
    cache.end_step()
    assert cache.probe([5, 6, 7, 8, 0]).cached == 0
