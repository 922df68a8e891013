"""`outline()`: the index as an operator sees it, of one meaning in every design."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from prefixcache import OutlineNode, PrefixCache, Removed, Scope, Stored
from tests.contract.bench import Bench
from tests.registration import AT_ANY_BLOCK_SIZE


def _paths(outline: list[OutlineNode]) -> list[tuple[int, ...]]:
    """The tokens from the beginning of the prompt to the end of each node."""
    paths: list[tuple[int, ...]] = []
    for place, node in enumerate(outline):
        assert -1 <= node.parent < place, "parents come before children"
        paths.append((paths[node.parent] if node.parent >= 0 else ()) + node.tokens)
    return paths


def _announced(cache: PrefixCache) -> set[bytes]:
    keys: set[bytes] = set()
    for event in cache.take_events()[2]:
        if isinstance(event, Stored):
            keys.update(event.keys)
        elif isinstance(event, Removed):
            keys.difference_update(event.keys)
    return keys


def _busy(bench: Bench) -> Any:
    """Two prompts that part after a block, one that is alone, one in another scope, one that is still running."""
    bench.run(range(1, 13))
    bench.run([1, 2, 3, 4, 50, 51, 52, 53])
    bench.run([9, 9, 9, 9])
    bench.run([9, 9, 9, 9], Scope(salt="s"))
    return bench.step(bench.open([1, 2, 3, 4, 50, 51, 52, 53, 54]))


def test_an_empty_cache_has_no_nodes(bench: Bench) -> None:
    assert bench.cache.outline() == []


def test_every_block_of_the_index_is_in_it_once(bench: Bench) -> None:
    request = _busy(bench)
    outline = bench.cache.outline()
    blocks = [block for node in outline for block in node.blocks]
    books = bench.cache.books()
    assert len(blocks) == len(set(blocks)) == 6
    assert set(request.block_table.tolist()[:2]) < set(blocks)
    pinned = sum(len(node.blocks) for node in outline if node.pins)
    assert (pinned, books.idle) == (2, 4)


def test_its_tokens_are_the_prompts(bench: Bench, design: str) -> None:
    _busy(bench)
    paths = _paths(bench.cache.outline())
    if design == "hash_chain":  # it keeps none
        assert set(paths) == {()}
        return
    leaves = Counter(path for path in paths if not any(other[: len(path)] == path != other for other in paths))
    assert leaves == {
        (*range(1, 13),): 1,
        (1, 2, 3, 4, 50, 51, 52, 53): 1,
        (9, 9, 9, 9): 2,
    }


def test_its_keys_are_those_of_the_events(bench: Bench) -> None:
    _busy(bench)
    bench.cache.evict(2)
    outline = bench.cache.outline()
    keys = [key for node in outline for key in node.keys]
    assert len(keys) == len(set(keys)) == sum(len(node.blocks) for node in outline) == 4
    assert set(keys) == _announced(bench.cache)


def test_looking_changes_nothing(bench: Bench) -> None:
    _busy(bench)
    before = bench.cache.outline(), bench.cache.books(), bench.cache.stats()
    assert (bench.cache.outline(), bench.cache.books(), bench.cache.stats()) == before
    bench.cache.check()


@pytest.mark.parametrize("preset", ["vllm-1", "trtllm"])
def test_copies_of_one_key_are_one_node_or_private(preset: str) -> None:
    cache = PrefixCache.preset(preset, block_size=4, capacity=16)
    both = [cache.open(range(9)) for _ in range(2)]
    for request in both:
        request.computed(9)
    shown = [node.blocks for node in cache.outline()]
    first, second = (tuple(request.block_table.tolist()[:2]) for request in both)
    if preset == "vllm-1":  # the index owns both
        assert shown == list(zip(first, second, strict=True))
    else:
        assert shown == [first]


def test_the_partial_tail_is_a_node_where_it_is_stored(bench: Bench, design: str) -> None:
    bench.run(range(1, 7))
    tokens = sum(len(node.tokens) for node in bench.cache.outline())
    expected = 6 if AT_ANY_BLOCK_SIZE[design].tails else 4
    assert tokens == (0 if design == "hash_chain" else expected)
