"""What is particular to the digest tree: what it hashes and compares, its nodes, its options."""

from __future__ import annotations

from typing import Any

import pytest

from prefixcache import Media, OptionError, PrefixCache, Scope
from prefixcache.designs.digest_chain.design import DigestChainDesign
from prefixcache.designs.digest_chain.node import Node
from prefixcache.designs.digest_chain.tree import DigestTree
from tests.model.setup import Clock

SIZE = 4


def make(preset: str | None = None, *, capacity: int = 1000, block_size: int = SIZE, **options: Any) -> PrefixCache:
    if preset is not None:
        return PrefixCache.preset(preset, block_size=block_size, capacity=capacity, **options)
    return PrefixCache("digest_chain", block_size=block_size, capacity=capacity, **options)


def design_of(cache: PrefixCache) -> DigestChainDesign:
    design = cache._core.design
    assert isinstance(design, DigestChainDesign)
    return design


def run(cache: PrefixCache, tokens: Any, scope: Scope | None = None, *, checked: bool = True, **keywords: Any) -> int:
    request = cache.open(tokens, scope, **keywords)
    request.copied()
    request.computed(request.length)
    request.close()
    if checked:
        cache.check()
    return request.cached


def nodes(cache: PrefixCache) -> list[Node]:
    return list(design_of(cache)._tree.nodes())


def tokens_from(start: int, blocks: int) -> list[int]:
    return list(range(start, start + blocks * SIZE))


# -- hashing and comparing ----------------------------------------------------------------------------------


def test_each_stored_block_is_hashed_once_and_a_walk_hashes_one_block_per_branch() -> None:
    cache = make(events=False)
    chain = design_of(cache)._chain
    shared = tokens_from(1000, 100)
    run(cache, shared)
    assert chain.hashed == 100
    cache.probe([*shared, 1])
    assert chain.hashed == 100, "a path without branches is compared, not hashed"
    for at in range(10, 100, 10):  # nine branches
        run(cache, [*shared[: at * SIZE], *tokens_from(10_000 + at, 1)])
    before = chain.hashed
    assert cache.probe([*shared, 1]).cached == 400
    assert chain.hashed - before == 9
    before = chain.hashed
    run(cache, [*shared, *tokens_from(50_000, 20)])
    assert chain.hashed - before <= 9 + 20


def test_the_best_of_many_children_is_found_without_looking_at_each(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0
    common = DigestTree.common

    def counted(*arguments: Any) -> int:
        nonlocal looks
        looks += 1
        return common(*arguments)

    cache = make()
    for last in range(1000):
        run(cache, [1, 2, 3, 100 + last], checked=False)
    cache.check()
    monkeypatch.setattr(DigestTree, "common", counted)
    assert cache.probe([1, 2, 3, 9, 9]).cached == 3
    assert cache.probe([1, 2, 3, 777, 9]).cached == 4
    assert looks <= 2


def test_a_long_chain_is_one_node_and_a_deep_one_needs_no_recursion() -> None:
    deep = 1100  # more nodes in a row than Python would recurse
    cache = make(capacity=3 * deep, events=False)
    prompt = tokens_from(0, deep)
    run(cache, prompt)
    assert len(nodes(cache)) == 1
    for blocks in range(1, deep):
        run(cache, [*prompt[: blocks * SIZE], 4_000_000 + blocks], checked=False)
    assert len(nodes(cache)) == 2 * deep - 1
    assert cache.probe([*prompt, 1]).cached == len(prompt)
    cache.check()
    assert cache.evict(3 * deep) == 2 * deep - 1
    assert not design_of(cache)._tree.roots
    cache.check()


def test_a_decoding_request_grows_its_own_leaf() -> None:
    cache = make()
    request = cache.open([1, 2, 3, 4])
    request.computed(4)
    for token in range(100):
        request.append(token)
        request.computed(request.length)
    assert len(nodes(cache)) == 1
    request.close()
    cache.check()
    assert cache.probe([1, 2, 3, 4, *range(100), 7]).cached == 104


def test_nodes_carry_nothing_but_their_slots() -> None:
    cache = make()
    run(cache, tokens_from(0, 3))
    (node,) = nodes(cache)
    assert not hasattr(node, "__dict__")
    assert not node.children and node.index is None


# -- tails --------------------------------------------------------------------------------------------------


def test_a_replaced_tail_is_freed_with_its_last_copy() -> None:
    cache = make(capacity=8)
    run(cache, [1, 2, 3, 4, 5, 6])
    (tail,) = (node for node in nodes(cache) if len(node.tokens) < 4 * SIZE)
    copying = cache.open([1, 2, 3, 4, 5, 6, 50])
    assert [copy.source for copy in copying.copies] == tail.blocks.tolist()
    run(cache, [1, 2, 3, 4, 5, 6, 7, 8])
    cache.check()
    assert tail not in nodes(cache)
    assert cache.probe([1, 2, 3, 4, 5, 6, 51]).cached == 6, "the longer block answers for it"
    pinned = cache.books().pinned
    copying.copied()
    cache.check()
    assert cache.books().pinned == pinned - 1
    copying.abort()
    cache.evict(8)
    assert cache.books().free == 8


def test_a_tail_is_never_moved_onto_a_longer_block() -> None:
    cache = make()
    run(cache, [1, 2, 3, 4, 5, 6, 7, 8])
    request = cache.open([1, 2, 3, 4, 5, 6])
    request.copied()
    request.computed(6)
    assert request.take_moves() == ()
    own = request.block_table[1]
    request.close()
    assert all(own not in node.blocks for node in nodes(cache))


def test_without_partial_hits_no_tails_are_stored_and_no_index_is_kept() -> None:
    cache = make(partial="off")
    for last in (7, 8, 9):
        run(cache, [1, 2, 3, 4, 5, 6, last])
        run(cache, [last, 2, 3, 4])
    assert all(len(node.tokens) == len(node.blocks) * SIZE * 4 and node.index is None for node in nodes(cache))
    assert cache.probe([1, 2, 3, 4, 5, 6, 7, 8]).cached == 4


def test_an_unused_leaf_is_extended_in_place() -> None:
    cache = make(partial="take")
    run(cache, [1, 2, 3, 4, 5, 6])
    tail = next(node for node in nodes(cache) if len(node.tokens) < 4 * SIZE)
    request = cache.open([1, 2, 3, 4, 5, 6, 7])
    assert (request.cached, request.copies, request.block_table[1]) == (6, (), tail.blocks[0])
    assert cache.probe([1, 2, 3, 4, 5, 9]).cached == 4, "it has left the index"
    request.computed(7)
    request.close()
    cache.check()


# -- media --------------------------------------------------------------------------------------------------


def picture(digest: str, start: int, length: int) -> Media:
    return Media(digest, start, length)


def test_children_that_differ_in_their_picture_alone_are_told_apart() -> None:
    cache = make()
    for digest in ("a", "b", "c"):
        run(cache, [1, 9, 9, 9, 2], media=[picture(digest, 1, 3)])
    run(cache, [1, 9, 9, 9, 2])
    for digest in ("a", "b", "c"):
        assert cache.probe([1, 9, 9, 9, 2, 3], media=[picture(digest, 1, 3)]).cached == 5
        assert cache.probe([1, 9, 9, 5, 5], media=[picture(digest, 1, 3)]).cached == 3
        assert cache.probe([1, 9, 9, 5, 5], media=[picture(digest, 1, 2)]).cached == 3, "up to where both end"
    assert cache.probe([1, 9, 9, 5, 5]).cached == 3
    assert cache.probe([1, 9, 9, 5, 5], media=[picture("d", 1, 2)]).cached == 1
    assert cache.probe([1, 9, 9, 5, 5], media=[picture("a", 2, 2)]).cached == 2


def test_an_index_of_plain_children_answers_for_the_text_before_a_picture() -> None:
    cache = make()
    run(cache, [1, 2, 3, 4])
    run(cache, [1, 2, 5, 6])
    assert cache.probe([1, 2, 3, 4, 7], media=[picture("a", 1, 3)]).cached == 1
    assert cache.probe([1, 2, 3, 4, 7], media=[picture("a", 3, 1)]).cached == 3
    assert cache.probe([1, 2, 3, 4, 7], media=[picture("a", 0, 1)]).cached == 0


def test_extra_ids_count_like_tokens() -> None:
    cache = make()
    run(cache, [1, 2, 3, 4, 5], extra_ids=[1, 1, 2, 2, 3])
    run(cache, [1, 2, 3, 9, 5], extra_ids=[1, 1, 2, 2, 3])
    assert cache.probe([1, 2, 3, 8, 5], extra_ids=[1, 1, 2, 2, 3]).cached == 3
    assert cache.probe([1, 2, 3, 8, 5], extra_ids=[1, 1, 4, 4, 3]).cached == 2


# -- options ------------------------------------------------------------------------------------------------


def test_a_lost_block_takes_all_that_hangs_on_it_along_in_the_preset_alone() -> None:
    ranges = [(0, 4, 10, None), (4, None, 80, None)]
    freed = {}
    for preset in (None, "trtllm-v2"):
        cache = make(preset)
        run(cache, [1, 2, 3, 4, 5, 6, 7, 8, 9], priority=ranges)
        freed[preset] = cache.evict(1)
        cache.check()
    assert freed == {None: 1, "trtllm-v2": 3}


def test_a_node_has_one_priority_and_one_time_to_live() -> None:
    clock = Clock()
    cache = make(capacity=3, clock=clock)
    run(cache, [1, 2, 3, 4, 5, 6, 7, 8], priority=[(0, 4, 50, 10.0), (4, None, 80, None)])
    assert sorted((node.end, node.priority, node.ttl) for node in nodes(cache)) == [(4, 50, 10.0), (8, 80, None)]
    clock.now += 11
    run(cache, [20, 21, 22, 23])
    assert sorted(node.priority for node in nodes(cache)) == [35, 35, 80]


@pytest.mark.parametrize(("backoff", "cached"), [(0, 15), (1, 15), (4, 12), (5, 11), (16, 0), (99, 0)])
def test_back_off_is_taken_from_the_end_of_what_matches(backoff: int, cached: int) -> None:
    cache = make("trtllm-v2", backoff=backoff)
    run(cache, list(range(16)))
    assert cache.probe(list(range(16))).cached == cached
    assert run(cache, list(range(16))) == cached
    assert cache.probe([*range(16), 99]).cached == 16 - min(backoff, 16)


def test_the_limit_of_children_hides_all_but_exact_tails() -> None:
    cache = make(child_limit=3)
    for last in (101, 102):
        run(cache, [1, 2, 3, last])
    run(cache, [8, 8])
    assert cache.probe([1, 2, 3, 9, 9]).cached == 0
    assert cache.probe([8, 8, 9]).cached == 2, "a tail with exactly these tokens has their digest"
    assert cache.probe([8, 8, 9, 9]).cached == 0
    assert cache.probe([1, 2, 3, 101, 9]).cached == 4
    explained = cache.explain([1, 2, 3, 9, 9])
    assert (explained.reason, explained.agreeing) == ("limit", 3)


@pytest.mark.parametrize("option", [{"hash": "xxh3-128"}, {"duplicates": "keep"}, {"visibility": "step"}])
def test_what_it_cannot_honour_is_an_error(option: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="digest_chain cannot honour"):
        make(**option)
