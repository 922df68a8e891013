"""With one rule of the tiers broken the random histories must fail, or they prove nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from prefixcache.blocks.tier import State, Tier
from prefixcache.cache.admission import Admission
from prefixcache.cache.lifecycle import Lifecycle
from prefixcache.cache.tiers import Tiers
from tests.model.soak import soak

Mutation = Callable[[pytest.MonkeyPatch], None]


def load_without_a_pin(patch: pytest.MonkeyPatch) -> None:
    """What a request is going to load may leave the tier before it is loaded."""
    over = Tiers.over
    patch.setattr(Tiers, "claim", lambda self, match: None)
    patch.setattr(
        Tiers, "over", lambda self, entry, done: over(self, entry, done) if entry.state is State.FILLING else None
    )


def found_before_it_is_there(patch: pytest.MonkeyPatch) -> None:
    """A block is loaded from while it is on its way down."""
    patch.setattr(Tier, "find", Tier.get)


def never_spilled(patch: pytest.MonkeyPatch) -> None:
    """Whoever is given the device block writes to it, and the tier takes the copy for made."""

    def take_spills(self: Any, blocks: Any) -> list[Any]:
        for block in blocks:
            if block in self._waiting:
                self.tier.finish(self._waiting.pop(block))
        return []

    patch.setattr(Tiers, "take_spills", take_spills)


def spilled_last(patch: pytest.MonkeyPatch) -> None:
    """A request loads into a block before it has copied out what is to be kept of it."""
    settle = Admission.settle

    def settle_and_sort(self: Any, request: Any, *arguments: Any) -> None:
        settle(self, request, *arguments)
        request.pending.sort(key=lambda pending: pending[0].target_tier != "device")

    patch.setattr(Admission, "settle", settle_and_sort)


def what_lies_behind_stays(patch: pytest.MonkeyPatch) -> None:
    """A block below outlives its parent."""
    patch.setattr(Tier, "drop_behind", lambda self, key: [])


def a_failed_spill_is_kept(patch: pytest.MonkeyPatch) -> None:
    """A copy that was called off counts as made."""
    over = Tiers.over
    patch.setattr(Tiers, "over", lambda self, entry, done: over(self, entry, True))


def kept_in_both(patch: pytest.MonkeyPatch) -> None:
    """What the device has again stays below as well."""

    def stored(self: Any, keys: Any, parent: Any, tokens: Any, scope: Any, group: Any = None) -> None:
        self._journal.stored(keys, parent, tokens, scope)

    patch.setattr(Tiers, "stored", stored)


def loaded_for_oneself(patch: pytest.MonkeyPatch) -> None:
    """What is loaded does not become findable on the device when it is there."""
    publish = Lifecycle._publish

    def publish_unless_loading(self: Any, request: Any, length: int, tail: bool = False) -> None:
        if length > request.cached or tail or request.holding.held * request.block_size >= length:
            publish(self, request, length, tail)

    patch.setattr(Lifecycle, "_publish", publish_unless_loading)


def old_weights_stay(patch: pytest.MonkeyPatch) -> None:
    """A weight update leaves the tier as it was."""
    patch.setattr(Tiers, "retire", lambda self: None)
    patch.setattr(Tier, "drop_behind", lambda self, key: [])


def a_busy_slot_is_taken(patch: pytest.MonkeyPatch) -> None:
    """A slot is given to another block while it is read or written."""
    patch.setattr("prefixcache.blocks.tier.Entry.busy", property(lambda self: False))


def a_silent_move(patch: pytest.MonkeyPatch) -> None:
    """What arrives below is not said to be there, and its removal is said all the same."""

    def over(self: Any, entry: Any, done: bool) -> None:
        if entry.state is not State.FILLING:
            self.tier.unpin(entry)
        elif done:
            entry.reported = False
            self.tier.finish(entry)
            entry.reported = True
        else:
            self._left(self.tier.undo(entry))

    patch.setattr(Tiers, "over", over)


def waits_for_a_lent_block(patch: pytest.MonkeyPatch) -> None:
    """A spill that was taken up goes on waiting, and is made a second time."""

    def take_spills(self: Any, blocks: Any) -> list[Any]:
        return [self._begun(self._waiting[block]) for block in blocks if block in self._waiting]

    patch.setattr(Tiers, "take_spills", take_spills)


MUTATIONS: dict[str, Mutation] = {
    mutation.__name__: mutation
    for mutation in (
        load_without_a_pin,
        found_before_it_is_there,
        never_spilled,
        spilled_last,
        what_lies_behind_stays,
        a_failed_spill_is_kept,
        kept_in_both,
        loaded_for_oneself,
        old_weights_stay,
        a_busy_slot_is_taken,
        a_silent_move,
        waits_for_a_lent_block,
    )
}


@pytest.mark.parametrize("mutation", sorted(MUTATIONS))
@pytest.mark.parametrize("design", ["radix", "hash_chain", "block_trie", "digest_chain"])
def test_a_broken_rule_is_found(design: str, mutation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert State.READY  # the histories look at the states, which no mutation may touch
    MUTATIONS[mutation](monkeypatch)
    monkeypatch.setattr("tests.model.soak.shrink", lambda setup, log: log[-1:])  # the first failure is enough
    with pytest.raises(AssertionError):
        for number in range(40):
            soak(design, number, 500, tiered=True)
