"""What is particular to block_trie by default: hits inside a block, tails, media, batches, plans."""

from __future__ import annotations

from typing import Any

import pytest

from prefixcache import Media, NoSpace, OptionError, PrefixCache, Request
from prefixcache.blocks.pool import BlockPool
from prefixcache.designs.block_trie.tree import Trie


def make(capacity: int = 32, block_size: int = 4, **options: Any) -> PrefixCache:
    return PrefixCache("block_trie", block_size=block_size, capacity=capacity, **options)


def run(cache: PrefixCache, tokens: Any, **given: Any) -> Request:
    request = cache.open(tokens, **given)
    request.copied()
    request.computed(request.length)
    request.close()
    cache.check()
    return request


def trie_of(cache: PrefixCache) -> Trie:
    design: Any = cache._core.design
    trie: Trie = design._trie
    return trie


def test_an_unbranched_prompt_of_a_thousand_blocks_is_one_step() -> None:
    cache = make(capacity=2000, block_size=32)
    tokens = list(range(32 * 1024))
    run(cache, tokens)
    (root,) = trie_of(cache).roots.values()
    packed = b"".join(token.to_bytes(4, "little") for token in tokens)
    path, inside, _ = trie_of(cache).walk(root, packed, None, 0, len(tokens))
    assert (len(path), inside) == (1, None)


def test_the_first_block_without_an_exact_node_is_matched_in_part_wherever_it_is() -> None:
    cache = make()
    run(cache, range(16))
    assert cache.probe([0, 1, 2, 99, *range(50, 60)]).cached == 3
    assert cache.probe([*range(6), 99, *range(50, 60)]).cached == 6
    assert cache.probe([*range(15), 99, 98]).cached == 15


def test_the_best_of_many_children_is_found_and_the_first_of_equals() -> None:
    cache = make(capacity=2000, block_size=8)
    for i in range(300):
        run(cache, [1, 2, 3, i % 7, i, i, i, i, 0])
    best = cache.open([1, 2, 3, 5, 47, 47, 999, 0])
    assert best.cached == 6
    first = cache.open([1, 2, 3, 999, 0])
    assert first.cached == 3
    assert first.copies[0].source == cache.open([1, 2, 3, 0, 0, 0, 0, 0, 5]).block_table[0]


@pytest.mark.parametrize(("partial", "copies", "idle"), [("copy", 1, 1), ("take", 0, 0)])
def test_an_unused_leaf_is_copied_or_taken_over(partial: str, copies: int, idle: int) -> None:
    cache = make(partial=partial)
    run(cache, range(6))
    request = cache.open([0, 1, 2, 3, 4, 9, 9])
    assert (request.cached, len(request.copies)) == (5, copies)
    request.copied()
    assert cache.books().idle == idle
    cache.check()


def test_with_partial_off_only_whole_blocks_hit_and_no_tail_is_stored() -> None:
    cache = make(partial="off")
    run(cache, range(7))
    assert (cache.probe([*range(7), 99]).cached, cache.books().idle) == (4, 1)


def test_a_used_or_inner_block_is_copied_in_both_modes() -> None:
    cache = make(partial="take")
    run(cache, range(9))
    inner = cache.open([0, 1, 2, 99])
    assert len(inner.copies) == 1
    holder = cache.open([*range(8), 50])
    used = cache.open([*range(6), 77])
    assert (holder.cached, len(used.copies)) == (8, 1)


def test_a_longer_tail_replaces_an_unused_shorter_one() -> None:
    cache = make()
    run(cache, range(6))
    assert cache.books().idle == 2
    run(cache, range(7))
    assert cache.books().idle == 2
    run(cache, range(8))
    assert cache.books().idle == 2
    run(cache, range(6))
    assert cache.books().idle == 2
    every = make(tails="all")
    for length in (6, 7, 8):
        run(every, range(length))
    assert every.books().idle == 4


def test_a_tail_that_is_being_copied_stays_until_then() -> None:
    cache = make()
    run(cache, range(6))
    waiting = cache.open([*range(6), 50, 51])
    run(cache, range(8))
    cache.check()
    assert waiting.copies[0].tokens == 2
    waiting.copied()
    cache.check()


def test_pictures_are_matched_token_by_token_or_whole() -> None:
    cat, dog = Media(b"cat", 2, 4), Media(b"dog", 2, 4)
    prompt = [7, 8, 0, 0, 0, 0, 9, 9, 5]
    by_token, whole = make(), make(media="block", duplicates="keep", evict_from="anywhere")
    for cache, hits in ((by_token, (8, 2, 2)), (whole, (8, 0, 0))):
        run(cache, prompt, media=[cat])
        found = [cache.probe([*prompt[:8], 1], media=media).cached for media in ([cat], [dog], [])]
        assert tuple(found) == hits


def test_many_pictures_on_the_same_placeholders_are_found_one_by_one() -> None:
    cache = make(capacity=400)
    for i in range(60):
        run(cache, [7, 0, 0, 0, 3, i], media=[Media(f"picture {i}", 1, 3)])
    for i in range(60):
        assert cache.probe([7, 0, 0, 5, 5], media=[Media(f"picture {i}", 1, 2)]).cached == 3
    assert cache.probe([7, 0, 0, 5, 5]).cached == 1


def test_extra_ids_part_blocks_pair_by_pair() -> None:
    cache = make()
    run(cache, [1, 2, 3, 4, 5], extra_ids=[0, 0, 0, 1, 0])
    run(cache, [1, 2, 3, 4, 5], extra_ids=[0, 0, 2, 2, 0])
    assert cache.probe([1, 2, 3, 9, 9], extra_ids=[0, 0, 0, 0, 0]).cached == 3
    assert cache.probe([1, 2, 3, 9, 9], extra_ids=[0, 0, 2, 0, 0]).cached == 3
    assert cache.probe([1, 2, 3, 9, 9], extra_ids=[0, 0, 5, 0, 0]).cached == 2


def test_malformed_media_are_never_taken_for_text() -> None:
    cache = make()
    broken = [Media(b"cat", 2, 400)]
    run(cache, range(9), media=broken)
    assert cache.books().idle == 0
    run(cache, range(9))
    assert cache.probe(range(9), media=broken).cached == 0


def test_from_the_limit_of_children_on_only_exact_blocks_hit() -> None:
    cache = make(child_limit=3)
    for i in range(2):
        run(cache, [1, 2, 3, 10 + i, 0])
    assert cache.probe([1, 2, 9, 9, 9]).cached == 2
    run(cache, [1, 2, 3, 12, 0])
    assert cache.probe([1, 2, 9, 9, 9]).cached == 0
    assert cache.probe([1, 2, 3, 12, 9]).cached == 4


def test_priorities_rank_leaves_and_end_with_their_time() -> None:
    clock = [0.0]
    cache = make(capacity=4, clock=lambda: clock[0])
    run(cache, range(4), priority=80, ttl=10)
    run(cache, range(10, 14), priority=20)
    run(cache, range(20, 24))
    assert cache.evict(1) == 1
    assert [cache.probe([*range(a, a + 4), 99]).cached for a in (0, 10, 20)] == [4, 0, 4]
    clock[0] = 11.0
    run(cache, [40])
    cache.evict(1)
    assert [cache.probe([*range(a, a + 4), 99]).cached for a in (0, 20)] == [0, 4]


def test_a_hit_splits_what_its_priorities_part() -> None:
    cache = make(capacity=8)
    run(cache, range(16))
    run(cache, [*range(16), 99], priority=[(0, 8, 90, None), (8, None, 10, None)])
    design: Any = cache._core.design
    assert [(r.priority, len(r.blocks)) for r in trie_of(cache).runs()] == [(90, 2), (10, 2), (10, 1)]
    assert design.idle == 5


@pytest.mark.parametrize(
    "options",
    [{"duplicates": "keep"}, {"evict_from": "anywhere"}],
    ids=str,
)
def test_kept_copies_and_eviction_anywhere_go_together(options: dict[str, str]) -> None:
    with pytest.raises(OptionError, match="evict_from"):
        make(**options)


def test_eviction_anywhere_is_by_priority() -> None:
    with pytest.raises(OptionError, match="priority"):
        make(duplicates="keep", evict_from="anywhere", eviction="lru")


def test_the_last_of_a_batch_takes_the_leaf_and_a_whole_match_beats_it() -> None:
    def open_batch(*prompts: list[int]) -> list[int]:
        cache = make(partial="take")
        run(cache, range(6))
        run(cache, [0, 1, 2, 3, 20, 21, 22, 23])
        requests = cache.open_batch([{"tokens": prompt} for prompt in prompts])
        cache.check()
        assert all(isinstance(request, Request) for request in requests)
        return [len(request.copies) for request in requests if isinstance(request, Request)]

    head = [0, 1, 2, 3]
    assert open_batch([*head, 4, 50]) == [0]
    assert open_batch([*head, 4, 50], [*head, 4, 60]) == [1, 0]
    assert open_batch([*head, 4, 50], [*head, 4, 60], [*head, 4, 70]) == [1, 1, 0]
    whole = [*head, 20, 21, 22, 23, 9]
    assert open_batch([*head, 20, 21, 50], whole) == [1, 0]
    assert open_batch([*head, 20, 21, 50], [*head, 20, 21, 60], whole) == [1, 1, 0]
    assert open_batch(whole, [*head, 20, 21, 50]) == [0, 1]


def test_a_refused_request_leaves_the_batch_as_if_it_had_not_been_there() -> None:
    def prepared() -> PrefixCache:
        cache = make(capacity=6, partial="take")
        run(cache, range(6))
        return cache

    wanted = [{"tokens": [0, 1, 2, 3, 4, 50]}, {"tokens": [0, 1, 2, 3, 4, 60]}]
    hopeless = {"tokens": [0, 1, 2, 3, 4, *range(100, 130)]}
    mixed, clean = prepared(), prepared()
    first, refused, last = mixed.open_batch([wanted[0], hopeless, wanted[1]])
    expected = clean.open_batch(wanted)
    assert isinstance(refused, NoSpace)
    assert mixed.books() == clean.books()
    for got, other in zip((first, last), expected, strict=True):
        assert isinstance(got, Request) and isinstance(other, Request)
        assert (got.cached, got.copies, got.block_table.tolist()) == (
            other.cached,
            other.copies,
            other.block_table.tolist(),
        )


def test_the_source_is_let_go_of_by_its_last_copier() -> None:
    cache = make()
    run(cache, range(9))
    requests = [r for r in cache.open_batch([{"tokens": [0, 1, 50]}, {"tokens": [0, 60]}]) if isinstance(r, Request)]
    assert [r.copies[0].source for r in requests] == [0, 0]
    pinned = cache.books().pinned
    requests[0].copied()
    assert cache.books().pinned == pinned
    requests[1].copied()
    assert cache.books().pinned == pinned - 1


def test_a_plan_says_what_the_batch_gets_and_changes_nothing() -> None:
    cache = make(capacity=8, partial="take")
    run(cache, range(6))
    batch = [{"tokens": [0, 1, 2, 3, 4, 50]}, {"tokens": list(range(100, 140))}, {"tokens": [*range(8), 9]}]
    before = cache.books(), cache.stats()
    planned = cache.plan(batch)
    assert cache.plan(batch) == planned
    assert (cache.books(), cache.stats()) == before
    opened = cache.open_batch(batch)
    assert [p.cached if p.fits else None for p in planned] == [getattr(r, "cached", None) for r in opened]


def test_a_request_waits_for_an_earlier_one_that_computes_its_next_block() -> None:
    cache = make()
    prompt = list(range(12))
    batch = [{"tokens": [*prompt, 1]}, {"tokens": [*prompt, 2]}, {"tokens": [0, 1, 2]}]
    assert [plan.wait for plan in cache.plan(batch)] == [False, True, False]
    live = cache.open([*prompt, 1])
    assert [plan.wait for plan in cache.plan(batch[1:])] == [True, False]
    live.computed(13)
    assert [plan.wait for plan in cache.plan(batch[1:])] == [False, False], "all its full blocks are cached"
    other = cache.open([50, *prompt])
    assert not cache.plan([{"tokens": [51, *prompt]}])[0].wait, "the whole path counts, not the block alone"
    other.abort()


def test_priority_queues_are_a_free_list() -> None:
    cache = make(capacity=6, duplicates="keep", evict_from="anywhere")
    cache.open(range(12), priority=50).abort()
    cache.open([1, 2, 3, 4, 5], priority=20).abort()
    pool: BlockPool = cache._core.pool
    assert list(pool.take(4)) == [4, 3, 2, 1]
    assert len(pool.free_list) == 1


@pytest.mark.parametrize("design", ["naive", "block_trie", "digest_chain"])
def test_lookahead_in_the_key_is_refused_where_keys_do_not_look_ahead(design: str) -> None:
    with pytest.raises(OptionError, match="lookahead_by"):
        PrefixCache(design, block_size=4, capacity=8, lookahead=1, lookahead_by="key")
