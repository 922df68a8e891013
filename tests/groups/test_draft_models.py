"""What a draft model costs of a hit where groups cut it too: nothing, if the tree goes on behind the cut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from prefixcache import Full, PrefixCache, Recurrent, Request, Window
from prefixcache.designs.groups import Kind

DESIGNS = ["radix", "hash_chain", "block_trie", "digest_chain", "naive"]
DRAFTS = [{"lookahead": 1, "lookahead_by": "drop"}, {"backoff": 3}]


def make(design: str, groups: Sequence[Kind], options: dict[str, Any]) -> PrefixCache:
    return PrefixCache(design, block_size=4, capacity=64, groups=[Full(), *groups], **options)


def run(request: Request, *ends: int) -> None:
    """Compute it in steps that end there, and close it."""
    for end in (*ends, request.length):
        request.computed(end)
        request.copied()
    request.close()


@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize("options", DRAFTS)
def test_a_state_in_front_of_what_is_left_to_the_draft_model_ends_the_hit(design: str, options: dict[str, Any]) -> None:
    cache = make(design, [Recurrent(8)], options)
    run(cache.open(range(23)), 8)
    assert cache.probe([*range(12), 99]).cached == 8  # the tokens behind it are known to be the same
    assert cache.probe([*range(8), 99]).cached == 0


@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize("options", DRAFTS)
def test_a_hit_that_a_coarser_window_ends_loses_no_block_of_its(design: str, options: dict[str, Any]) -> None:
    cache = make(design, [Window(8, block_size=8)], options)
    run(cache.open(range(32)))
    assert cache.probe([*range(20), 99]).cached == 16
    assert cache.probe([*range(16), 99]).cached == 8


@pytest.mark.parametrize("options", DRAFTS[:1])
def test_the_last_token_of_a_prompt_tells_the_draft_model_what_follows(options: dict[str, Any]) -> None:
    cache = PrefixCache.preset("vllm-1", block_size=4, capacity=64, groups=[Full(), Window(4)], **options)
    run(cache.open(range(16)))
    assert [cache.probe(range(length)).cached for length in (13, 15, 16)] == [8, 8, 12]
    assert cache.probe([*range(16), 99]).cached == 12
    assert (cache.open(range(16)).cached, cache.stats().lookahead_tokens) == (12, 0)  # no more without one


def test_what_a_rule_of_the_design_hides_is_not_counted_as_less_than_nothing() -> None:
    groups = [Full(), Window(1)]
    cache = PrefixCache.preset("trtllm", block_size=4, capacity=64, groups=groups, backoff=2, child_limit=1)
    for length in (7, 9):  # leaves an unfilled block of 2 tokens, and the same block with all 4
        request = cache.open(range(length))
        request.copied()
        request.computed(length)
        request.close()
    before = cache.stats().lookahead_tokens
    request = cache.open(range(8))
    assert (request.cached, cache.stats().lookahead_tokens) == (6, before)


def test_what_is_left_to_a_draft_model_is_told_apart_from_what_a_group_cuts() -> None:
    cache = make("hash_chain", [Recurrent(8)], DRAFTS[0])
    run(cache.open(range(23)), 8)
    assert cache.probe([*range(12), 99]).reason == "lookahead"
    request = cache.open([*range(16), 99])  # of 16 tokens 4 are left to the draft model, and no state was kept after 12
    assert (request.cached, cache.stats().lookahead_tokens, cache.stats().no_checkpoint_tokens) == (8, 4, 4)


@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize(
    ("groups", "length", "backoff", "expected"),
    [
        ([Recurrent()], 16, 5, (8, 12)),  # the tree has all 16 tokens when the prompt comes again
        ([Recurrent(), Window(8, block_size=8)], 22, 9, (8, 16)),  # and 20 of 22, though no hit ends there
    ],
)
def test_a_state_is_kept_where_the_hit_of_the_same_prompt_ends(
    design: str, groups: list[Kind], length: int, backoff: int, expected: tuple[int, ...]
) -> None:
    cache = make(design, groups, {"backoff": backoff})
    request = cache.open(range(length))
    assert request.checkpoints == expected
    run(request, *expected)
    assert cache.probe(range(length)).cached == 8


@pytest.mark.parametrize("design", ["block_trie", "digest_chain"])
def test_where_unfilled_ends_are_found_a_draft_model_leaves_the_last_tokens_of_them(design: str) -> None:
    cache = make(design, [Recurrent()], {"backoff": 5})
    run(cache.open(range(15)), 8, 12)
    assert cache.probe(range(15)).cached == 8


@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize("options", DRAFTS)
@pytest.mark.parametrize("kept", [0, 8])
def test_who_lacks_what_a_window_has_lost_waits_for_the_next_block(
    design: str, options: dict[str, Any], kept: int
) -> None:
    cache = make(design, [Window(4)], options)
    run(cache.open(range(35)))
    cache.evict(64, group=1)
    if kept:
        run(cache.open(range(kept)))
    running = cache.open(range(35))
    (planned,) = cache.plan([{"tokens": range(35)}])
    assert (planned.cached, planned.wait) == (kept, True)
    running.computed(kept + 4)
    assert cache.probe(range(35)).cached == kept + 4
