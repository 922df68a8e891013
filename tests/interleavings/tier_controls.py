"""The rules of the tier below the device, each taken away on purpose, and what that must do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from prefixcache import InvariantError, Request
from prefixcache.blocks.tier import Entry, State, Tier
from prefixcache.cache.admission import Admission
from prefixcache.cache.books import Copy
from prefixcache.cache.tiers import Tiers
from prefixcache.scenario.oracle import OracleError
from tests.interleavings.controls import Control


def hits_below_not_pinned_before_room_is_made(patch: pytest.MonkeyPatch) -> None:
    """What lies below is pinned when its copy is listed, and not when it is matched."""
    original = Tiers.loads

    def loads(self: Tiers, match: Any, targets: Sequence[int]) -> list[tuple[Copy, Any]]:
        for entry in match.loads:
            self.tier.pin(entry)
        return original(self, match, targets)

    patch.setattr(Tiers, "claim", lambda self, match: None)
    patch.setattr(Tiers, "loads", loads)


def source_of_a_load_not_pinned(patch: pytest.MonkeyPatch) -> None:
    """What is being loaded may leave the tier meanwhile, and its slot be filled with something else."""
    patch.setattr(Tier, "pin", lambda self, entry: None)
    patch.setattr(Tier, "unpin", lambda self, entry: None)


def slot_free_while_it_is_read(patch: pytest.MonkeyPatch) -> None:
    """What leaves the tier gives its slot up at once, whoever is reading it."""

    def settle(self: Tier, entry: Entry) -> None:
        if not entry.gone:
            self._queue(entry)
        elif entry in self._leaving:
            self._leaving.discard(entry)
            self._free.append(entry.slot)

    patch.setattr(Tier, "_settle", settle)


def found_before_it_is_copied(patch: pytest.MonkeyPatch) -> None:
    """A spill can be loaded from as soon as somebody is going to make it; its slot is kept for that long."""

    def start(self: Tier, entry: Entry) -> None:
        entry.state = State.READY
        self.pin(entry)

    def undo(self: Tier, entry: Entry) -> list[Entry]:
        gone = entry.gone
        self.unpin(entry)
        return [] if gone else self.drop_with_all_behind(entry)

    patch.setattr(Tier, "start", start)
    patch.setattr(Tier, "finish", Tier.unpin)
    patch.setattr(Tier, "undo", undo)


def spill_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Whoever is given the device block does not copy first what is to be kept of it."""
    original = Tiers.take_spills

    def take_spills(self: Tiers, blocks: Sequence[int]) -> list[Any]:
        for _, entry in original(self, blocks):
            self.over(entry, True)
        return []

    patch.setattr(Tiers, "take_spills", take_spills)


def spills_after_loads(patch: pytest.MonkeyPatch) -> None:
    """A request makes all of its other copies before it copies away what its new blocks held."""
    original = Admission.settle

    def settle(self: Admission, request: Request, *arguments: Any) -> None:
        original(self, request, *arguments)
        request.pending.sort(key=lambda pending: pending[0].target_tier != "device")

    patch.setattr(Admission, "settle", settle)


def given_up_spill_kept(patch: pytest.MonkeyPatch) -> None:
    """A spill that was given up is taken for made."""
    original = Tiers.over
    patch.setattr(Tiers, "over", lambda self, entry, done: original(self, entry, done or entry.state is State.FILLING))


def published_before_it_is_loaded(patch: pytest.MonkeyPatch) -> None:
    """What is going to be loaded can be found on the device before the load is made."""
    original = Admission.settle

    def settle(self: Admission, request: Request, *arguments: Any) -> None:
        original(self, request, *arguments)
        request._life._publish(request, request.computed_tokens)

    patch.setattr(Admission, "settle", settle)


_ALL = ("radix, copy", "hash_chain", "block_trie, take", "digest_chain", "trtllm", "vllm-1")
_WRONG_KV = r"expected the KV of .* found the KV of"
_NEVER_WRITTEN = r"source slot \d+ was never written"
_SLOTS = "slots of the host tier are lost, or owned twice"

TIER_CONTROLS = (
    # The room of the first request is made of the slot of the second one's hit, which is then free twice.
    Control(hits_below_not_pinned_before_room_is_made, "a batch of hits below", _ALL[:-1], InvariantError, _SLOTS),
    Control(source_of_a_load_not_pinned, "a batch of hits below", _ALL[:-1], OracleError, _WRONG_KV),
    Control(
        source_of_a_load_not_pinned,
        "a load under pressure",
        ("hash_chain", "block_trie, take", "trtllm"),
        OracleError,
        _WRONG_KV,
    ),
    Control(slot_free_while_it_is_read, "the same load twice", ("vllm-1",), OracleError, _WRONG_KV),
    Control(slot_free_while_it_is_read, "computed again while it is loaded", ("trtllm",), OracleError, _WRONG_KV),
    Control(found_before_it_is_copied, "asked for while it is spilled", _ALL, OracleError, _NEVER_WRITTEN),
    Control(spill_forgotten, "a load onto what is spilled", _ALL, OracleError, _NEVER_WRITTEN),
    Control(spill_forgotten, "a request that grows", _ALL, OracleError, _NEVER_WRITTEN),
    Control(
        spills_after_loads,
        "a load onto what is spilled",
        ("radix, copy", "block_trie, take", "digest_chain"),
        OracleError,
        _WRONG_KV,
    ),
    Control(spills_after_loads, "spills and loads that fail", ("hash_chain", "vllm-1"), OracleError, _WRONG_KV),
    Control(
        given_up_spill_kept,
        "a spill that is given up",
        ("hash_chain", "block_trie, take", "trtllm"),
        OracleError,
        _NEVER_WRITTEN,
    ),
    Control(published_before_it_is_loaded, "spills and loads that fail", _ALL, OracleError, _WRONG_KV),
)
