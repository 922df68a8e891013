"""Events of groups where a block of the tree can be cached and not be found: behind a hole, and before a step ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest

from prefixcache import Full, PrefixCache, Recurrent, Request, Window
from prefixcache.designs.groups.events import GroupEvents
from prefixcache.events import Cleared, Removed, Stored

PROMPT = range(17)


def compute(request: Request) -> Request:
    """Step by step, so that every state is kept."""
    for end in (*request.checkpoints, request.length):
        request.copied()
        request.computed(end)
    return request


def told(cache: PrefixCache) -> Counter[tuple[str, int]]:
    """How many keys are told since the last time, by kind of event and group."""
    keys: Counter[tuple[str, int]] = Counter()
    for event in cache.take_events()[2]:
        assert isinstance(event, Stored | Removed)
        keys[type(event).__name__, event.group] += len(event.keys)
    return keys


def with_a_hole(*groups: Any) -> PrefixCache:
    """Four blocks, of which the first goes first."""
    cache = PrefixCache.preset("trtllm", block_size=4, capacity=20, groups=groups)
    compute(cache.open(PROMPT, priority=[(0, 4, 1, None), (4, None, 90, None)])).close()
    return cache


@pytest.mark.parametrize(
    ("group", "keys"),
    [(Window(8), 4), (Window(8, block_size=2), 8), (Window(8, block_size=8), 2), (Recurrent(4), 4)],
)
def test_what_hangs_behind_a_hole_is_gone_until_it_is_filled(group: Any, keys: int) -> None:
    cache = with_a_hole(Full(), group)
    stored = [event for event in cache.take_events()[2] if isinstance(event, Stored) and event.group == 1]
    assert sum(len(event.keys) for event in stored) == keys
    cache.evict(1)
    assert told(cache) == {("Removed", 0): 4, ("Removed", 1): keys}
    assert cache.probe(PROMPT).cached == 0
    compute(cache.open(PROMPT)).close()
    again = [event for event in cache.take_events()[2] if isinstance(event, Stored)]
    for index in (0, 1):
        assert sum(len(event.keys) for event in again if event.group == index) == (4, keys)[index]
    assert {key for event in again if event.group == 1 for key in event.keys} == {k for e in stored for k in e.keys}
    assert sorted(token for event in again if event.group == 1 for token in event.tokens) == list(range(16))
    assert cache.probe(PROMPT).cached == 16


def test_what_is_evicted_behind_a_hole_is_not_told_again() -> None:
    cache = with_a_hole(Full(), Window(8))
    cache.evict(1)
    told(cache)
    assert cache.evict(1, group=1) == 1
    assert not told(cache)
    compute(cache.open(PROMPT)).close()
    assert told(cache) == {("Stored", 0): 4, ("Stored", 1): 4}  # computed once more, and hung where it was missing


@pytest.mark.parametrize("groups", [[Full(), Window(8)], [Window(8), Recurrent(4)], [Full(), Window(6, block_size=2)]])
def test_nothing_is_told_before_the_step_ends(groups: Sequence[Any]) -> None:
    cache = PrefixCache.preset("vllm-0.8.5", block_size=4, capacity=20, groups=groups)
    request = compute(cache.open(PROMPT))
    assert cache.probe(PROMPT).cached == 0
    assert not told(cache)
    cache.end_step()
    assert cache.probe(PROMPT).cached == 16
    sizes = [getattr(kind, "block_size", None) or 4 for kind in groups]
    assert told(cache) == {("Stored", group): 16 // size for group, size in enumerate(sizes)}
    cache.end_step()
    request.close()
    assert not told(cache)


@pytest.mark.parametrize("duplicates", ["give_back", "keep"])
def test_what_two_requests_compute_in_one_step_hangs_there_once(duplicates: str) -> None:
    cache = PrefixCache(
        "hash_chain",
        block_size=4,
        capacity=20,
        groups=[Full(), Window(8)],
        visibility="step",
        duplicates=duplicates,
    )
    requests = [cache.open(PROMPT), cache.open(PROMPT)]
    for request in requests:
        request.computed(17)
    assert not told(cache)
    cache.end_step()
    assert told(cache) == {("Stored", 0): 4, ("Stored", 1): 4}
    assert cache.probe(PROMPT).cached == 16
    for request in requests:
        request.close()
    cache.check()


def test_what_goes_before_the_step_ends_is_never_told() -> None:
    cache = PrefixCache.preset("vllm-0.8.5", block_size=4, capacity=20, groups=[Full(), Window(4)])
    compute(cache.open(PROMPT))  # the first blocks have left the window: they are idle
    assert cache.evict(2, group=1) == 2
    assert not told(cache)
    cache.end_step()
    assert told(cache) == {("Stored", 0): 4, ("Stored", 1): 2}


def test_new_weights_before_the_step_ends_leave_nothing_to_tell() -> None:
    cache = PrefixCache.preset("vllm-0.8.5", block_size=4, capacity=20, groups=[Full(), Window(8)])
    request = compute(cache.open(PROMPT))
    cache.new_generation()
    cache.end_step()
    request.close()
    assert not told(cache)


def told_before_and_after_a_reset(preset: str, groups: Sequence[Any]) -> list[Counter[tuple[str, int]]]:
    """The same prompt twice, and a reset between."""
    cache = PrefixCache.preset(preset, block_size=4, capacity=20, groups=groups)
    compute(cache.open(PROMPT)).close()
    first = told(cache)
    assert cache.reset()
    assert cache.take_events()[2] == [Cleared()]
    compute(cache.open(PROMPT)).close()
    return [first, told(cache)]


RESETS = pytest.mark.parametrize(
    ("preset", "groups"), list(product(("vllm-0.8.5", "trtllm"), ([Full(), Window(8)], [Window(8), Recurrent(4)])))
)


@RESETS
def test_a_reset_is_told_once_and_what_comes_again_is_new(preset: str, groups: Sequence[Any]) -> None:
    first, second = told_before_and_after_a_reset(preset, groups)
    assert first == second
    assert set(first.values()) == {4}


@RESETS
def test_a_reset_that_the_groups_do_not_hear_of_is_seen(
    preset: str, groups: Sequence[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GroupEvents, "clear", lambda events: None)
    first, second = told_before_and_after_a_reset(preset, groups)
    assert first != second


def with_a_tail_replaced() -> Counter[tuple[str, int]]:
    """A tail has yet to be copied by one request when another stores the whole block that begins like it."""
    cache = PrefixCache("digest_chain", block_size=4, capacity=20, groups=[Full(), Window(8)])
    compute(cache.open(range(6))).close()
    assert told(cache) == {("Stored", 0): 2, ("Stored", 1): 2}
    reader = cache.open([*range(6), 99])
    assert reader.cached == 6
    writer = cache.open(range(9), read=False)
    writer.computed(9)
    found = told(cache)
    compute(reader).close()
    cache.check()
    return found


def test_what_hangs_from_a_tail_that_is_replaced_while_it_is_copied_is_gone_with_it() -> None:
    assert with_a_tail_replaced() == {("Removed", 0): 1, ("Removed", 1): 1, ("Stored", 0): 1, ("Stored", 1): 1}


@pytest.mark.parametrize("preset", ["vllm-0.8.5", "sglang"])
@pytest.mark.parametrize(("own", "width"), [(512, 0), (256, 1), (2, 1), (1, 2)])
def test_a_place_among_many_takes_as_many_bytes_as_it_needs(preset: str, own: int, width: int) -> None:
    groups = [Full(), Window(8, block_size=own)]
    cache = PrefixCache.preset(preset, block_size=512, capacity=[4, 2000], groups=groups)
    compute(cache.open(range(600))).close()
    home, finer = (event.keys for event in cache.take_events()[2] if isinstance(event, Stored))
    assert finer == tuple(home[0] + place.to_bytes(width, "big") for place in range(512 // own))


@pytest.mark.parametrize("name", ["hash_chain", "vllm-1", "block_trie", "radix", "trtllm-v2"])
def test_elsewhere_nothing_stands_between_a_cache_and_its_journal(name: str) -> None:
    build = PrefixCache.preset if name in ("vllm-1", "trtllm-v2") else PrefixCache
    core = build(name, block_size=4, capacity=20, groups=[Full(), Window(8)])._core
    assert core.design.events is core.journal
