"""The preset `trtllm` makes the decisions of the original's rules; with any rule broken this is noticed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from pytest import MonkeyPatch

from prefixcache.blocks.retention import DEFAULT_PRIORITY
from prefixcache.cache.admission import Admission
from prefixcache.cache.lifecycle import Lifecycle
from prefixcache.cache.plans import Room
from prefixcache.designs.block_trie import queues
from prefixcache.designs.block_trie.design import BlockTrieDesign
from prefixcache.designs.block_trie.kept import KeptTables
from prefixcache.designs.block_trie.queues import QUEUES, PriorityQueues
from prefixcache.designs.block_trie.run import Family
from prefixcache.designs.block_trie.store import Store
from prefixcache.designs.block_trie.tree import Trie
from prefixcache.designs.block_trie.uses import Uses
from tests.designs.block_trie.against_model import play

_BUDGET = 600  # histories in which a broken rule must show


@pytest.mark.parametrize("part", range(8))
def test_random_histories_agree_with_the_rules(part: int, seed: int) -> None:
    for number in range(25):
        play(seed + 1000 * part + number, 60)


def _first_wins(patch: MonkeyPatch) -> None:
    """Of the requests that match one unused leaf the first keeps it."""
    original = Admission._fit

    def fit(self: Admission, match: Any, reserve: int, room: Room) -> Any:
        plan = original(self, match, reserve, room)
        if plan.take and plan.partial is not None and room.takers.get(plan.partial.source) is not None:
            return replace(plan, take=False, new=plan.new + 1, overruled=())
        return plan

    patch.setattr(Admission, "_fit", fit)


def _partial_beats_full(patch: MonkeyPatch) -> None:
    """A leaf that one request of the batch matches whole may be taken over by another."""
    original = Room.admit

    def admit(self: Room, plan: Any, idle_blocks: Any) -> None:
        plan.overruled = [other for other in plan.overruled if other.partial.source not in plan.match.blocks]
        original(self, plan, idle_blocks)

    patch.setattr(Room, "admit", admit)


def _siblings_of_a_hole_are_tried(patch: MonkeyPatch) -> None:
    """Where the exact block was evicted, the best other child is reused in part."""
    original = BlockTrieDesign.match

    def match(self: BlockTrieDesign, prompt: Any, limit: int) -> Any:
        found = original(self, prompt, limit)
        if found.anchor is not None and found.partial is None and found.tokens < limit:
            found.partial = self._best_partial(prompt, found, limit)
        return found

    patch.setattr(BlockTrieDesign, "match", match)


def _longest_beats_exact(patch: MonkeyPatch) -> None:
    """A longer child is preferred to a tail of exactly these tokens."""
    original = Trie.partial

    def partial(self: Trie, run: Any, at: int, tokens: bytes, extras: Any) -> Any:
        found = self.family.best(run, tokens, extras) if run.end == at and run.children else None
        if found is not None and found[0].length == self.block_tokens and found[1] * 4 == len(tokens):
            return found[0], at + self.block_tokens, found[1]
        return original(self, run, at, tokens, extras)

    patch.setattr(Trie, "partial", partial)


def _media_by_token(patch: MonkeyPatch) -> None:
    """A block that a picture touches is matched token by token."""
    patch.setattr(Family, "matchable", lambda self, child: bool(child.blocks))
    patch.setattr(Family, "_may_match", lambda self, child: True)
    patch.setattr("prefixcache.designs.block_trie.run.carries_media", lambda extras: False)
    patch.setattr("prefixcache.designs.block_trie.tree.carries_media", lambda extras: False)


def _claims_keep_priorities(patch: MonkeyPatch) -> None:
    """A full match leaves the priority of a block as it was."""
    patch.setattr(BlockTrieDesign, "_overwrite", staticmethod(lambda run, priority, ttl: setattr(run, "ttl", ttl)))


def _claims_keep_times(patch: MonkeyPatch) -> None:
    """A claim without a time to live leaves the old one."""
    original = BlockTrieDesign._overwrite

    def overwrite(run: Any, priority: int | None, ttl: float | None) -> None:
        original(run, priority, run.ttl if ttl is None else ttl)

    patch.setattr(BlockTrieDesign, "_overwrite", staticmethod(overwrite))


def _sources_are_not_claimed(patch: MonkeyPatch) -> None:
    """The unused source of a partial hit keeps its terms."""
    patch.setattr(BlockTrieDesign, "claim_source", lambda self, holding, partial: self.hold(partial.handle))


def _copies_ask_for_themselves(patch: MonkeyPatch) -> None:
    """A copy has the terms of its request, not those of its source."""
    patch.setattr(BlockTrieDesign, "inherit", lambda self, partial, block: None)


def _nothing_expires(patch: MonkeyPatch) -> None:
    patch.setattr(Uses, "expire", lambda self: None)


def _expired_keep_their_place(patch: MonkeyPatch) -> None:
    """What expires falls to the default priority with its old recency."""

    def expire(self: Uses) -> None:
        for item in self._deadlines.due(self._clock()):
            item.priority = DEFAULT_PRIORITY
            self.items.rerank(item)

    patch.setattr(Uses, "expire", expire)


def _expired_in_order_of_release(patch: MonkeyPatch) -> None:
    """Not the earlier deadline, but the earlier release falls first."""

    def expire(self: Uses) -> None:
        for item in sorted(self._deadlines.due(self._clock()), key=lambda item: item.last_access):
            self.tick += 1
            item.priority, item.last_access = DEFAULT_PRIORITY, self.tick
            self.items.rerank(item)

    patch.setattr(Uses, "expire", expire)


def _head_first(patch: MonkeyPatch) -> None:
    """Of what was let go of together, the beginning of the prompt leaves first."""
    backwards = replace(QUEUES, rank=lambda facts: (facts.priority, facts.last_access, facts.depth))
    patch.setattr("prefixcache.designs.block_trie.uses.QUEUES", backwards)


def _no_priorities(patch: MonkeyPatch) -> None:
    patch.setattr(
        "prefixcache.designs.block_trie.uses.QUEUES",
        replace(QUEUES, rank=lambda facts: (0, facts.last_access, -facts.depth)),
    )


def _empty_first(patch: MonkeyPatch) -> None:
    """Empty blocks do not wait: they are used before anything is evicted."""
    original = PriorityQueues.draw

    def draw(self: PriorityQueues, n: int) -> Any:
        first = self.take(min(n, len(self)))
        rest, evicted = original(self, n - len(first))
        return first + rest, evicted

    patch.setattr(PriorityQueues, "draw", draw)


def _evicted_go_to_the_end(patch: MonkeyPatch) -> None:
    """What `evict` empties loses its place."""
    original = queues.Empty.__init__

    def init(self: Any, blocks: Any, priority: int, ttl: Any, since: float, last_access: int, end: int) -> None:
        original(self, blocks, priority, ttl, since, last_access + 10**6, end)

    patch.setattr(queues.Empty, "__init__", init)


def _leaves_only(patch: MonkeyPatch) -> None:
    """What has something behind it waits until that is gone."""
    original = Uses.wait

    def wait(self: Uses, item: Any) -> None:
        original(self, item)
        if not isinstance(item, queues.Empty) and item.children:
            item.last_access += 10**6
            self.items.rerank(item)

    patch.setattr(Uses, "wait", wait)


def _source_waits_at_its_copy(patch: MonkeyPatch) -> None:
    """The source of a copy is let go of when it is copied, not when it is claimed."""

    def drop(self: BlockTrieDesign, handle: Any) -> None:
        self._uses.begin()
        self._uses.unpin(handle.run)

    patch.setattr(BlockTrieDesign, "drop", drop)


def _own_copies_fill_no_hole(patch: MonkeyPatch) -> None:
    """An own copy does not take the place of the evicted block that it is a copy of."""
    original = KeptTables._pass

    def passed(self: KeptTables, holding: Any, end: int) -> Any:
        root, prompt = self._trie.roots.get(holding.prompt.root), holding.prompt
        path = self._trie.walk(root, prompt.tokens, prompt.extras, 0, end)[0] if root is not None else []
        if any(not run.blocks and run.end <= holding.held * self._trie.block_tokens for run in path):
            return None, 0, 0
        return original(self, holding, end)

    patch.setattr(KeptTables, "_pass", passed)


def _own_copies_wait_last(patch: MonkeyPatch) -> None:
    """Own copies are released behind the blocks they stand between."""
    original = PriorityQueues.free

    def free(self: PriorityQueues, holding: Any, indices: list[int]) -> None:
        self._uses.begin()
        original(self, holding, indices)

    patch.setattr(PriorityQueues, "free", free)


def _last_token_is_stored(patch: MonkeyPatch) -> None:
    patch.setattr(Lifecycle, "_publishable", lambda self, request, n: n)


def _unfinished_prompts_store_all(patch: MonkeyPatch) -> None:
    patch.setattr(Lifecycle, "_publishable", lambda self, request, n: min(n, request.length - 1))


def _no_tails(patch: MonkeyPatch) -> None:
    patch.setattr(Store, "append_tail", lambda self, holding, node, start, end: None)


RULES: dict[str, Callable[[MonkeyPatch], None]] = {
    broken.__name__.lstrip("_"): broken
    for broken in (
        _first_wins, _partial_beats_full, _siblings_of_a_hole_are_tried, _longest_beats_exact, _media_by_token,
        _claims_keep_priorities, _claims_keep_times, _sources_are_not_claimed, _copies_ask_for_themselves,
        _nothing_expires, _expired_keep_their_place, _expired_in_order_of_release, _head_first, _no_priorities,
        _empty_first, _evicted_go_to_the_end, _leaves_only, _source_waits_at_its_copy, _own_copies_fill_no_hole,
        _own_copies_wait_last, _last_token_is_stored, _unfinished_prompts_store_all, _no_tails,
    )
}  # fmt: skip


@pytest.mark.parametrize("rule", sorted(RULES))
def test_a_broken_rule_is_noticed(rule: str, monkeypatch: MonkeyPatch) -> None:
    RULES[rule](monkeypatch)
    with pytest.raises(AssertionError):
        for number in range(_BUDGET):
            play(number, 60)
