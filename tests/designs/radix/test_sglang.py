"""The preset `sglang` decides as the original: beside an independent model of its rules, on random histories."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from prefixcache import PrefixCache
from prefixcache.cache.lifecycle import Lifecycle
from prefixcache.designs import Holding
from prefixcache.designs.radix.design import RadixDesign
from prefixcache.designs.radix.node import Node
from prefixcache.designs.radix.standing import Standing
from prefixcache.designs.radix.tree import RadixTree
from tests.designs.radix.histories import Draw, compare_many
from tests.designs.radix.model_sglang import RANKS, SGLang

HISTORIES = 25


def model(draw: Draw) -> SGLang:
    return SGLang(draw.page, draw.capacity, draw.policy, draw.ahead)


@pytest.mark.parametrize("policy", sorted(RANKS))
def test_the_preset_decides_as_the_rules_of_the_original(policy: str, seed: int) -> None:
    compare_many(model, policy, seed, HISTORIES)


Break = Callable[[pytest.MonkeyPatch], None]


def _keep_recency_at_split(patch: pytest.MonkeyPatch) -> None:
    """The unmatched rest of a cut node keeps its recency, and the upper half its age."""
    original = RadixDesign._split

    def split(self: RadixDesign, child: Node, at: int) -> Node:
        access, created = child.last_access, child.created
        upper = original(self, child, at)
        child.last_access = upper.last_access = access
        upper.created = created
        self._idle.rerank(child)
        return upper

    patch.setattr(RadixDesign, "_split", split)


def _no_prompt_cut(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RadixDesign, "_cut_at_prompt", lambda self, holding, end: None)


def _prompt_cut_without_priority(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Standing, "prefer_prompt", lambda self, holding, node: None)


def _count_at_match(patch: pytest.MonkeyPatch) -> None:
    """A hit counts when it is made, even if its request never publishes."""
    original = RadixDesign.claim

    def claim(self: RadixDesign, holding: Holding, match: Any) -> None:
        original(self, holding, match)
        if match.tokens:
            self._standing.mark(holding, match.tokens)

    patch.setattr(RadixDesign, "claim", claim)


def _count_every_time(patch: pytest.MonkeyPatch) -> None:
    """A request counts its nodes anew at each checkpoint."""
    original = Standing.mark

    def mark(self: Standing, holding: Holding, end: int) -> None:
        holding.counted = 0
        original(self, holding, end)

    patch.setattr(Standing, "mark", mark)


def _evict_tails(patch: pytest.MonkeyPatch) -> None:
    original = PrefixCache.preset.__func__  # type: ignore[attr-defined]
    patch.setattr(
        PrefixCache, "preset", classmethod(lambda cls, name, **given: original(cls, name, evict_unit="tail", **given))
    )


def _refresh_always(patch: pytest.MonkeyPatch) -> None:
    """Every end of a request counts as a use, preemption too."""
    original = Lifecycle._publish

    def publish(self: Lifecycle, request: Any, length: int, tail: bool = False) -> None:
        request.holding.used = True
        original(self, request, length, tail)

    patch.setattr(Lifecycle, "_publish", publish)


def _no_touch_in(method: str) -> Break:
    def break_it(patch: pytest.MonkeyPatch) -> None:
        original = getattr(RadixDesign, method)

        def without(self: RadixDesign, *arguments: Any) -> Any:
            self._standing.by_use = False
            done = original(self, *arguments)
            self._standing.by_use = True
            return done

        patch.setattr(RadixDesign, method, without)

    return break_it


def _split_forgets_hits(patch: pytest.MonkeyPatch) -> None:
    original = RadixTree.split

    def split(self: RadixTree, child: Node, at: int) -> Node:
        upper = original(self, child, at)
        upper.hits = 0
        return upper

    patch.setattr(RadixTree, "split", split)


def _split_forgets_priority(patch: pytest.MonkeyPatch) -> None:
    original = RadixTree.split

    def split(self: RadixTree, child: Node, at: int) -> Node:
        upper = original(self, child, at)
        upper.priority = 0
        return upper

    patch.setattr(RadixTree, "split", split)


def _pairs_as_tokens(patch: pytest.MonkeyPatch) -> None:
    """With draft models a token is matched without a look at the one behind it."""
    patch.setattr(RadixDesign, "ahead", property(lambda self: 0, lambda self, value: None), raising=False)


CONTROLS: dict[str, tuple[Break, str]] = {
    "a split refreshes": (_keep_recency_at_split, "lru"),
    "a split refreshes, seen by the latest first": (_keep_recency_at_split, "mru"),
    "a split makes the upper half new": (_keep_recency_at_split, "fifo"),
    "the prompt is cut": (_no_prompt_cut, "lru"),
    "the prompt stays longer": (_prompt_cut_without_priority, "priority"),
    "only publishing counts, for hits": (_count_at_match, "lfu"),
    "only publishing counts, for priorities": (_count_at_match, "priority"),
    "a request counts once": (_count_every_time, "lfu"),
    "whole nodes go": (_evict_tails, "lru"),
    "a preemption is no use": (_refresh_always, "lru"),
    "publishing is a use": (_no_touch_in("publish"), "lru"),
    "an admission is a use": (_no_touch_in("claim"), "lru"),
    "both halves keep the hits": (_split_forgets_hits, "lfu"),
    "both halves keep the priority": (_split_forgets_priority, "priority"),
    "keys look ahead": (_pairs_as_tokens, "lru"),
}


@pytest.mark.parametrize("rule", sorted(CONTROLS))
def test_each_rule_shows_when_it_is_taken_away(rule: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    break_it, policy = CONTROLS[rule]
    break_it(monkeypatch)
    with pytest.raises(AssertionError):
        compare_many(model, policy, seed, 20 * HISTORIES)
