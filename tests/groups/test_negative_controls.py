"""Every rule of the attention groups broken once: the histories of a `World` must notice each time."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from prefixcache import DESIGNS, PRESETS
from prefixcache.blocks.pool import BlockPool
from prefixcache.designs.groups import Groups
from prefixcache.designs.groups.events import GroupEvents
from prefixcache.designs.groups.kinds import Window
from prefixcache.designs.groups.recurrent import RecurrentSide
from prefixcache.designs.groups.side import NOTHING, Side, Source
from prefixcache.designs.groups.values import Values
from prefixcache.designs.groups.window import WindowSide
from tests.groups.moves import play
from tests.groups.test_histories import make
from tests.groups.world import World

MOST = 400  # histories within which a broken rule must be noticed

Break = Callable[[pytest.MonkeyPatch], None]
RULES: dict[str, Break] = {}


def rule(broken: Break) -> Break:
    RULES[broken.__name__] = broken
    return broken


def patch_safe(patch: pytest.MonkeyPatch, kind: type[Side], safe: Callable[..., Any]) -> None:
    patch.setattr(kind, "safe", safe)
    patch.setattr(kind, "safe_at_the_end", lambda side, tree_blocks: bool(side.safe(tree_blocks)[-1]))


# -- what a hit must bring along ----------------------------------------------------------------------


@rule
def a_window_begins_where_it_does(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Window, "first_read", lambda kind, length: max(0, length + 2 - kind.size))


@rule
def sinks_are_read(patch: pytest.MonkeyPatch) -> None:
    init = WindowSide.__init__

    def without(side: WindowSide, *args: Any) -> None:
        init(side, *args)
        side._sinks = 0

    patch.setattr(WindowSide, "__init__", without)


@rule
def a_missing_anchor_cuts(patch: pytest.MonkeyPatch) -> None:
    def safe(side: WindowSide, tree_blocks: Sequence[int]) -> Any:
        return np.arange(len(tree_blocks) + 1) * side.tree_size % side.block_size == 0

    patch_safe(patch, WindowSide, safe)


@rule
def a_coarse_block_ends_a_hit_where_it_ends(patch: pytest.MonkeyPatch) -> None:
    safe = WindowSide.safe

    def anywhere(side: WindowSide, tree_blocks: Sequence[int]) -> Any:
        found = safe(side, tree_blocks)
        for length in range(1, len(found)):
            found[length] |= bool(found[length - 1]) and length * side.tree_size % side.block_size > 0
        return found

    patch_safe(patch, WindowSide, anywhere)


@rule
def a_missing_state_cuts(patch: pytest.MonkeyPatch) -> None:
    def safe(side: RecurrentSide, tree_blocks: Sequence[int]) -> Any:
        there = side.values.present(tree_blocks)
        found = np.concatenate((np.ones(1, dtype=np.bool_), there))
        found[2:] |= there[:-1]  # "the one before will do"
        return found

    patch_safe(patch, RecurrentSide, safe)
    at = Values.at

    def near(values: Values, tree_block: int, offset: int = 0) -> int:
        found = at(values, tree_block, offset)
        return found if found != NOTHING or not values._idle else next(iter(values._idle))

    patch.setattr(RecurrentSide, "claim_source", _with(near, RecurrentSide.claim_source))
    patch.setattr(RecurrentSide, "reads", lambda side, blocks, source, tokens: [])


def _with(at: Callable[..., int], method: Callable[..., None]) -> Callable[..., None]:
    def patched(side: Side, *args: Any) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Values, "at", at)
            method(side, *args)

    return patched


@rule
def inside_a_block_the_other_groups_are_asked(patch: pytest.MonkeyPatch) -> None:
    def there(side: WindowSide, tree_blocks: Sequence[int], source: int, tokens: int) -> int:
        return tokens if side.values.at(source) != NOTHING else 0

    patch.setattr(WindowSide, "safe_inside", there)


@rule
def inside_a_block_a_state_is_of_one_length(patch: pytest.MonkeyPatch) -> None:
    def there(side: RecurrentSide, tree_blocks: Sequence[int], source: int, tokens: int) -> int:
        return tokens if side.values.at(source) != NOTHING else 0

    patch.setattr(RecurrentSide, "safe_inside", there)


# -- who may touch what -------------------------------------------------------------------------------


@rule
def what_a_claim_reads_is_pinned(patch: pytest.MonkeyPatch) -> None:
    def unpinned(side: WindowSide, table: Any, tree_blocks: Sequence[int], inside: int) -> None:
        claim(side, table, tree_blocks, inside)
        side.values.unpin(block for entry, block in enumerate(table.blocks) if table.owned[entry])

    claim = WindowSide.claim
    patch.setattr(WindowSide, "claim", unpinned)
    unpin = Values.unpin
    patch.setattr(Values, "unpin", lambda values, given: unpin(values, [v for v in given if v in values._pins]))


@rule
def a_state_that_is_kept_is_copied_on(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RecurrentSide, "move_on", lambda side, table, length: [])


@rule
def values_go_with_the_block_that_they_hang_from(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Groups, "_freed", lambda groups, blocks: None)
    patch.setattr(Values, "check", lambda values, tree, private: None)


@rule
def a_block_that_a_fork_copies_is_not_hung_into_the_tree(patch: pytest.MonkeyPatch) -> None:
    for side in (WindowSide, RecurrentSide):
        patch.setattr(side, "store", _blind(side.store))


def _blind(store: Callable[..., Any]) -> Callable[..., Any]:
    def patched(*args: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(BlockPool, "shared", lambda pool, block: False)
            return store(*args)

    return patched


@rule
def what_a_step_in_flight_writes_is_quarantined(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WindowSide, "written_from", lambda side, computed: 2**31)
    patch.setattr(RecurrentSide, "written_from", lambda side, computed: 2**31)


@rule
def a_fork_copies(patch: pytest.MonkeyPatch) -> None:
    for side in (WindowSide, RecurrentSide):
        patch.setattr(side, "fork", _uncopied(side.fork))


def _uncopied(make_copies: Callable[..., Any]) -> Callable[..., Any]:
    def patched(side: Side, *args: Any) -> Any:
        for wanted in make_copies(side, *args):
            side.let_go(wanted.source)
        return []

    return patched


@rule
def what_a_rewind_reads_again_is_pinned_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WindowSide, "_returning", lambda side, table, back: [])


@rule
def a_block_is_given_up_when_nobody_reads_it_any_more(patch: pytest.MonkeyPatch) -> None:
    move_on = WindowSide.move_on
    patch.setattr(WindowSide, "move_on", lambda side, table, length: move_on(side, table, length + side.block_size))


@rule
def a_block_is_given_back_once(patch: pytest.MonkeyPatch) -> None:
    def again(side: WindowSide, table: Any, entries: Sequence[int]) -> None:
        private = [table.blocks[entry] for entry in entries if not table.owned[entry]]
        give_up(side, table, entries)
        side.values.pool.give([block for block in private if block != NOTHING])

    give_up = WindowSide._give_up
    patch.setattr(WindowSide, "_give_up", again)


@rule
def a_copy_holds_its_source_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Side, "_share", lambda side, block: Source(side, block, private=True))


# -- what is told and refused -------------------------------------------------------------------------


@rule
def what_is_found_under_old_weights_is_told_to_be_gone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Values, "retire", lambda values: None)


@rule
def what_is_evicted_is_told(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Values, "_tell", lambda values, gone: [values._keys.pop(value, None) for value in gone] and None)


@rule
def what_is_kept_is_told(patch: pytest.MonkeyPatch) -> None:
    announce = Groups._announce
    patch.setattr(Groups, "_announce", lambda groups, prompt, side, kept: announce(groups, prompt, side, kept[:-1]))


@rule
def what_is_kept_is_told_once(patch: pytest.MonkeyPatch) -> None:
    def twice(groups: Groups, *args: Any) -> None:
        announce(groups, *args)
        announce(groups, *args)

    announce = Groups._announce
    patch.setattr(Groups, "_announce", twice)


@rule
def a_hole_ends_a_run_of_events(patch: pytest.MonkeyPatch) -> None:
    def joined(groups: Groups, prompt: Any, side: Side, kept: Sequence[Any]) -> None:
        size = kept[0].end - kept[0].start
        first = kept[0].start
        closed = [k._replace(start=first + i * size, end=first + (i + 1) * size) for i, k in enumerate(kept)]
        announce(groups, prompt, side, closed)

    announce = Groups._announce
    patch.setattr(Groups, "_announce", joined)


@rule
def what_hangs_where_nothing_can_be_found_is_not_told(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("prefixcache.cache.core.follow_tree", lambda *args: None)


@rule
def what_is_hung_behind_what_is_not_shown_yet_is_held_back(patch: pytest.MonkeyPatch) -> None:
    def at_once(events: GroupEvents, keys: Any, parent: Any, tokens: Any, scope: Any, group: int | None = None) -> None:
        if group is not None:
            events._findable.update(events._home(key, group) for key in keys)
        stored(events, keys, parent, tokens, scope, group)

    stored = GroupEvents.stored
    patch.setattr(GroupEvents, "stored", at_once)


@rule
def what_hangs_behind_a_hole_is_told_to_be_gone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GroupEvents, "removed", _of_the_tree_alone(GroupEvents.removed))


@rule
def what_hangs_behind_a_filled_hole_is_told_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GroupEvents, "stored", _of_the_tree_alone(GroupEvents.stored))


def _of_the_tree_alone(method: Callable[..., None]) -> Callable[..., None]:
    def patched(events: GroupEvents, *args: Any) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(GroupEvents, "_by_group", lambda events, keys: [])  # asked when the tree speaks
            method(events, *args)

    return patched


@rule
def admission_asks_every_group_for_room(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Groups, "require", lambda groups, needs, rooms: None)


@rule
def growth_asks_every_group_for_room(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Groups, "require_more", lambda groups, holding, cover: None)


@rule
def a_fork_asks_every_group_for_room(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Groups, "require_fork", lambda groups, holding, cover: None)


@rule
def what_a_batch_has_claimed_is_no_room(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("prefixcache.designs.groups.groups.SideRoom.left", property(lambda room: room.available))


def noticed(seed: int) -> int:
    """How many histories it took, 0 when none noticed."""
    names = (*DESIGNS, *PRESETS)
    for history in range(MOST):
        rng = random.Random(f"control {seed} {history}")
        world = World(make(names[history % len(names)], rng), rng)
        try:
            play(world, 100)
        except Exception:
            return history + 1
    return 0


def test_with_every_rule_in_force_nothing_is_noticed(seed: int) -> None:
    """Else a control would prove nothing: the same histories are played for all of them."""
    assert not noticed(seed)


@pytest.mark.parametrize("name", RULES)
def test_a_broken_rule_is_noticed(name: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    RULES[name](monkeypatch)
    assert noticed(seed), f"{MOST} histories did not notice"
