"""Single rules of the preset `sglang` that random histories meet too seldom, and where it goes its own way."""

from __future__ import annotations

from typing import Any

import pytest

from prefixcache import OptionError, PrefixCache, Scope, slru
from prefixcache.designs.radix.design import RadixDesign
from tests.designs.radix.model_sglang import SGLang


def make(eviction: str = "lru", page: int = 1, capacity: int = 64) -> PrefixCache:
    return PrefixCache.preset("sglang", block_size=page, capacity=capacity, eviction=eviction)


def run(cache: PrefixCache, tokens: list[int], priority: int | None = None) -> None:
    request = cache.open(tokens, priority=priority)
    request.computed(len(tokens))
    request.close()
    cache.check()


def found(cache: PrefixCache, tokens: list[int]) -> int:
    return cache.probe([*tokens, 99]).cached


def cut_by_a_publish(eviction: str) -> tuple[int, int]:
    """What stays of two prompts with one beginning, published side by side, when one node is evicted."""
    cache, model = make(eviction), SGLang(1, 64, eviction)
    first, second = cache.open([1, 2, 3, 4]), cache.open([1, 2, 9, 9])
    model.open(1, "", [1, 2, 3, 4], 0)
    model.open(2, "", [1, 2, 9, 9], 0)
    first.computed(4)
    first.close()
    second.computed(4)  # cuts [1 2 3 4] behind 2
    second.preempt()
    model.computed(1, 4)
    model.end(1, "close")
    model.computed(2, 4)
    model.end(2, "preempt")
    assert cache.evict(1) == model.evict(1) == 2
    left = found(cache, [1, 2, 3, 4]), found(cache, [1, 2, 9, 9])
    assert left == (model.probe("", [1, 2, 3, 4, 99]), model.probe("", [1, 2, 9, 9, 99]))
    return left


def test_what_a_publish_cuts_off_is_older_than_what_it_adds() -> None:
    assert cut_by_a_publish("lru") == (2, 4)
    assert cut_by_a_publish("mru") == (4, 2)


def test_one_stamp_for_both_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    publish = RadixDesign.publish

    def one_stamp(self: RadixDesign, *arguments: Any) -> Any:
        moves = publish(self, *arguments)
        for node in self._tree.nodes():
            node.last_access = self._standing.tick
            self._idle.rerank(node)
        return moves

    monkeypatch.setattr(RadixDesign, "publish", one_stamp)
    with pytest.raises(AssertionError):
        cut_by_a_publish("mru")


def test_under_mru_the_rest_of_a_node_that_an_admission_cuts_goes_first() -> None:
    cache = make("mru", capacity=10)
    run(cache, [1, 2, 3, 4])
    run(cache, [5, 6, 7, 8])
    request = cache.open([1, 2, 70, 71, 72, 73])
    assert request.cached == 2
    assert (found(cache, [1, 2, 3, 4]), found(cache, [5, 6, 7, 8])) == (2, 4)


def test_a_whole_leaf_goes_and_then_its_parent() -> None:
    cache = make(capacity=16)
    run(cache, [1, 2, 3, 4, 5, 6])
    run(cache, [1, 2, 3, 9])
    assert cache.evict(1) == 3
    assert found(cache, [1, 2, 3, 4]) == 3
    assert cache.evict(2) == 4  # the leaf [9], then [1 2 3]


def test_the_answer_leaves_before_its_prompt_at_equal_priority() -> None:
    cache = make("priority")
    request = cache.open([1, 2, 3])
    request.computed(3)
    for token in (4, 5):
        request.append(token)
    request.computed(5)
    request.close()
    run(cache, [7, 8, 9])
    assert cache.evict(1) == 2
    assert found(cache, [1, 2, 3, 4, 5]) == 3


def test_any_integer_is_a_priority_and_none_is_0() -> None:
    cache = make("priority")
    run(cache, [1, 1, 1], priority=-5)
    run(cache, [2, 2, 2])
    run(cache, [3, 3, 3], priority=10**9)
    assert [cache.evict(1) and (found(cache, [t] * 3)) for t in (1, 2, 3)] == [0, 0, 0]
    with pytest.raises(OptionError):
        PrefixCache("radix", block_size=1, capacity=8).open([1], priority=101)


def test_a_refused_admission_leaves_no_trace_although_the_original_has_cut_and_touched() -> None:
    cache = make(capacity=8)
    run(cache, [1, 2, 3, 4])
    held = cache.open([5, 6, 7, 8])
    before = cache.books()
    with pytest.raises(Exception, match="needs"):
        cache.open([1, 2, 60, 61, 62, 63, 64])
    assert cache.books() == before
    held.abort()
    assert cache.evict(1) == 4, "nothing was cut"


def test_no_name_is_a_namespace_of_its_own_there_and_none_here() -> None:
    cache = make()
    run(cache, [1, 2, 3, 4])
    assert cache.probe([1, 2, 3, 4, 9], Scope(adapter="", salt="")).cached == 4
    assert cache.probe([1, 2, 3, 4, 9], Scope(adapter="a")).cached == 0


def test_a_policy_with_settings_may_be_given() -> None:
    cache = PrefixCache.preset("sglang", block_size=1, capacity=64, eviction=slru(3))
    for _ in range(2):
        run(cache, [1, 1])
    run(cache, [2, 2])
    assert cache.evict(1) == 1
    assert found(cache, [2, 2]) == 2, "two hits protect nothing under slru(3)"
