"""The rules of the claim, each taken away on purpose, and what that must do to the threads of a story."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from prefixcache import InvariantError
from prefixcache.blocks import transfers
from prefixcache.cache.admission import Admission
from prefixcache.cache.core import Core
from prefixcache.cache.lifecycle import Lifecycle
from prefixcache.designs.radix import RadixDesign
from prefixcache.scenario.oracle import OracleError
from tests.interleavings.scheduler import Deadlock
from tests.interleavings.story import TAKE, WHOLE, RuleBroken

Break = Callable[[pytest.MonkeyPatch], None]


def no_pin_before_allocation(patch: pytest.MonkeyPatch) -> None:
    """Room is made before the match is pinned, and may be made of it."""
    original = Admission.claim

    def claim(self: Any, request: Any, ask: Any, plan: Any) -> None:
        if (short := plan.new - self.core.pool.free) > 0:
            self.core.design.evict(short)
        original(self, request, ask, plan)

    patch.setattr(Admission, "claim", claim)


def a_batch_claims_one_by_one(patch: pytest.MonkeyPatch) -> None:
    """All of a batch are matched, but each is given its blocks before the next one has pinned what it matched."""

    def admit_batch(self: Any, requests: Any, asks: Any) -> list[None]:
        room, plans = self.room(), []
        for ask in asks:
            plans.append(plan := self.plan(ask, room))
            self.require_room(plan, ask, room)
            room.admit(plan, self.core.design.idle_blocks(plan.match))
        copiers: dict[int, list[Any]] = {}
        for request, ask, plan in zip(requests, asks, plans, strict=True):
            self.claim(request, ask, plan)
            source = plan.partial.source if plan.partial is not None else -1
            self.settle(request, ask, plan, copiers.get(source, []), False)
            if plan.partial is not None and not plan.take:
                copiers.setdefault(source, []).append((request, plan))
        return [None] * len(plans)

    patch.setattr(Admission, "admit_batch", admit_batch)


def a_batch_is_a_loop(patch: pytest.MonkeyPatch) -> None:
    """Each request of a batch is matched and given its blocks before the next one is looked at."""
    original = Lifecycle.open_batch
    patch.setattr(Lifecycle, "open_batch", lambda self, asks, claim: original(self, asks, False))


def first_wins(patch: pytest.MonkeyPatch) -> None:
    """Of the requests that match one leaf the first takes it over and the others copy."""
    original = Admission._fit

    def fit(self: Any, match: Any, reserve: int, room: Any) -> Any:
        plan = original(self, match, reserve, room)
        earlier = room.takers.get(plan.partial.source) if plan.partial is not None else None
        if plan.take and earlier is not None:
            plan.take, plan.new = False, plan.new + 1
            plan.overruled = [other for other in plan.overruled if other is not earlier]
        return plan

    patch.setattr(Admission, "_fit", fit)


def source_released_early(patch: pytest.MonkeyPatch) -> None:
    """A source is let go of when the admission is over, before anybody has copied it."""
    settle, drop_source = Admission.settle, Core.drop_source

    def settle_and_let_go(self: Any, request: Any, *arguments: Any) -> None:
        settle(self, request, *arguments)
        for copy, handle in request.pending:
            drop_source(self.core, copy, handle)

    patch.setattr(Admission, "settle", settle_and_let_go)
    patch.setattr(Core, "drop_source", lambda self, copy, handle, done=False: None)


def match_outside_the_lock(patch: pytest.MonkeyPatch) -> None:
    """The lock is free for a moment between the match and the claim."""
    original = Admission.plan

    def plan(self: Any, ask: Any, room: Any) -> Any:
        found = original(self, ask, room)
        if hasattr(self.core.lock, "let_go"):
            with self.core.lock.let_go("claim"):
                pass
        return found

    patch.setattr(Admission, "plan", plan)


def twin_freed_under_a_running_table(patch: pytest.MonkeyPatch) -> None:
    """A request goes on using its own block, which was given back when it moved onto an equal one."""
    original = RadixDesign.publish

    def publish(self: Any, holding: Any, length: int, tail: bool = False) -> Any:
        moves = original(self, holding, length, tail)
        for index, old, _ in moves:
            holding.table[index] = old
        return moves

    patch.setattr(RadixDesign, "publish", publish)


def written_before_others_copied(patch: pytest.MonkeyPatch) -> None:
    """Nobody asks whether another request has yet to copy out of the table."""
    patch.setattr(Lifecycle, "_require_copied", lambda self, holding, n: None)


def unwritten_target_published(patch: pytest.MonkeyPatch) -> None:
    """A copy that failed is taken for done when its request is aborted."""

    def carry_out(memory: Any, request: Any, cancelled: Any) -> None:
        try:
            memory.copy(request.copies)
        except OSError:
            with request._life.core.lock:  # in one step: nobody sees the request itself in between
                request.copied()
                request.abort()
            raise
        request.copied()

    patch.setattr(transfers, "carry_out", carry_out)


@dataclass(frozen=True)
class Control:
    """A rule taken away, and what the first schedule of a story that fails must then end in.

    Attributes:
        broken: takes the rule away.
        case, setups: the story, and the caches with which it must notice.
        error, says: the error of a schedule, and a regular expression that is in its message.
    """

    broken: Break
    case: str
    setups: tuple[str, ...]
    error: type[Exception]
    says: str


_WRONG_KV = r"expected the KV of .* found the KV of"
_NEVER_WRITTEN = r"expected the KV of .* found nothing \(never written\)"

CONTROLS = (
    Control(
        no_pin_before_allocation,
        "a hit under pressure",
        ("hash_chain", "block_trie", "block_trie, take", "digest_chain", "digest_chain, take", "vllm-1"),
        OracleError,
        _WRONG_KV,
    ),
    Control(no_pin_before_allocation, "a hit under pressure", ("radix", "radix, copy"), InvariantError, "blocks lost"),
    Control(a_batch_claims_one_by_one, "a tight batch", WHOLE, OracleError, _WRONG_KV),
    Control(
        a_batch_claims_one_by_one,
        "a tight batch, last tokens withheld",
        ("trtllm",),
        InvariantError,
        r"block \d+ is in 2 tables, its count says one",
    ),
    Control(a_batch_is_a_loop, "a tight batch", WHOLE, RuleBroken, "it was there when the batch came"),
    Control(
        a_batch_is_a_loop,
        "a tight batch, last tokens withheld",
        ("trtllm",),
        RuleBroken,
        "it was there when the batch came",
    ),
    Control(first_wins, "a batch served in order", TAKE, Deadlock, "nobody can go on: batch at wait for a copy"),
    Control(
        source_released_early,
        "one leaf, evictions, and room needed",
        ("radix, copy", "block_trie", "digest_chain"),
        OracleError,
        _WRONG_KV,
    ),
    Control(match_outside_the_lock, "one leaf, evictions, and room needed", ("block_trie",), OracleError, _WRONG_KV),
    Control(twin_freed_under_a_running_table, "twins", ("radix", "radix, copy"), OracleError, _WRONG_KV),
    Control(written_before_others_copied, "the taker shares less", TAKE, OracleError, _WRONG_KV),
    Control(
        written_before_others_copied,
        "the taker is served elsewhere",
        ("block_trie, take", "digest_chain, take"),
        InvariantError,
        "blocks owned twice",
    ),
    # "trtllm" keeps no last token, which is all that this copy would have made.
    Control(
        unwritten_target_published,
        "a batch whose copy fails",
        ("block_trie, take", "digest_chain, take"),
        OracleError,
        _NEVER_WRITTEN,
    ),
)
