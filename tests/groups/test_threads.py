"""Eight threads on one cache with attention groups, over memory of every group that is really copied: see `stress`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest

from prefixcache import DESIGNS, PRESETS, Full, PrefixCache, Recurrent, Removed, Stored, Window
from prefixcache.designs.groups import Groups, Side, Source, Wanted
from tests.groups.test_negative_controls import RULES
from tests.model.stress import THREADS, Early, Stress, attempts_until_seen

_ROUNDS = 20
_SIZE, _BASE = 4, 26  # tokens per block of the tree, and of the prompts that others begin with
_LEAST = 8  # hits, and losses in every group, or a run showed nothing
_LEAST_COPIES = 3  # in every group: a third or less of what the slowest of schedules makes
# Blocks for about half of what eight threads would like to keep; states for most of their requests.
_FULL, _WINDOW, _STATES = 56, 36, 20
_SETS: dict[str, tuple[list[Any], list[int]]] = {
    "a window": ([Full(), Window(6)], [_FULL, _WINDOW]),
    "two windows": ([Full(), Window(9), Window(4)], [_FULL, _WINDOW, _WINDOW]),
    "states": ([Full(), Recurrent(8)], [_FULL, _STATES]),
    "nothing but a window": ([Window(7)], [_WINDOW]),
    "a window with sinks, and states": ([Full(), Window(5, sinks=3), Recurrent(4)], [_FULL, _WINDOW, _STATES]),
    "finer and coarser blocks": (
        [Full(), Window(6, block_size=2), Window(9, block_size=8)],
        [_FULL, 2 * _WINDOW, _WINDOW],
    ),
}
_OPTIONS: dict[str, dict[str, Any]] = {"radix": {"partial": "copy"}}


def _make(name: str, kinds: str) -> PrefixCache:
    """A design or a preset with these groups."""
    groups, capacity = _SETS[kinds]
    if name in PRESETS:
        return PrefixCache.preset(name, block_size=_SIZE, capacity=capacity, groups=groups)
    return PrefixCache(name, block_size=_SIZE, capacity=capacity, groups=groups, **_OPTIONS.get(name, {}))


def _stress(name: str, kinds: str, seed: str, **changes: Any) -> Stress:
    return Stress(_make(name, kinds), seed, base_tokens=_BASE, rounds=_ROUNDS, **changes)


def _told(cache: PrefixCache, there: set[tuple[int, bytes]]) -> Counter[int]:
    """Keep (group, key) of all that is there as the events since the last call have it; how many went, by group."""
    lost: Counter[int] = Counter()
    for event in cache.take_events()[2]:
        assert isinstance(event, Stored | Removed)
        own = {(event.group, key) for key in event.keys}
        if isinstance(event, Stored):
            assert not own & there, "stored twice"
            there |= own
        else:
            assert own <= there, "removed, and was not stored"
            there -= own
            lost[event.group] += len(own)
    return lost


@pytest.mark.parametrize("kinds", _SETS)
@pytest.mark.parametrize("name", [*DESIGNS, *PRESETS])
def test_eight_threads_lose_nothing_and_read_what_their_prefix_computed(name: str, kinds: str, seed: int) -> None:
    stress = _stress(name, kinds, f"{seed} {name} {kinds}")
    stress.play()
    there: set[tuple[int, bytes]] = set()
    done, lost, made = stress.cache.stats(), _told(stress.cache, there), Counter(stress.memory.made)
    stress.finish()
    _told(stress.cache, there)
    assert not there, "everything was evicted, and this was not said"
    assert done.requests > THREADS * _ROUNDS // 2
    assert done.hits >= _LEAST, done
    for group, kind in enumerate(stress.cache.groups):
        assert made[group] >= _LEAST_COPIES, f"copies in each group: {made}"
        assert lost[group] >= _LEAST, f"losses in each group: {lost}"
        cut = done.no_checkpoint_tokens if isinstance(kind, Recurrent) else done.anchor_missing_tokens
        assert isinstance(kind, Full) or cut >= _LEAST, f"hits that {kind} cut: {done}"


# -- what removes a rule must be seen -------------------------------------------------------------------

_BROKEN = {
    "what_a_claim_reads_is_pinned": "a window",
    "a_block_is_given_up_when_nobody_reads_it_any_more": "two windows",
    "what_a_rewind_reads_again_is_pinned_again": "nothing but a window",
    "values_go_with_the_block_that_they_hang_from": "finer and coarser blocks",
    "what_a_step_in_flight_writes_is_quarantined": "a window with sinks, and states",
    "a_state_that_is_kept_is_copied_on": "states",
    "a_fork_copies": "states",
    "a_copy_holds_its_source_once": "a window",
}


@pytest.mark.parametrize("rule", _BROKEN)
def test_a_broken_rule_of_the_groups_is_seen(rule: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    RULES[rule](monkeypatch)
    attempts_until_seen(lambda attempt: _stress("digest_chain", _BROKEN[rule], attempt), seed)


@pytest.mark.parametrize("kinds", ["a window", "states"])
def test_a_source_that_is_let_go_of_before_it_is_copied_is_seen(
    kinds: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def at_once(copies: Callable[..., Iterator[tuple[int, Wanted]]]) -> Callable[..., Iterator[tuple[int, Wanted]]]:
        def patched(*args: Any) -> Iterator[tuple[int, Wanted]]:
            for group, wanted in copies(*args):
                let_go(wanted.source.side, wanted.source)
                yield group, wanted._replace(source=_LetGo(*wanted.source))

        return patched

    let_go = Side.let_go
    monkeypatch.setattr(Groups, "open", at_once(Groups.open))
    monkeypatch.setattr(Groups, "move_on", at_once(Groups.move_on))
    monkeypatch.setattr(
        Side, "let_go", lambda side, source: None if isinstance(source, _LetGo) else let_go(side, source)
    )
    attempts_until_seen(lambda attempt: _stress("digest_chain", kinds, attempt), seed)


class _LetGo(Source):
    """A source that nobody holds."""


@pytest.mark.parametrize("kinds", ["nothing but a window", "states"])
def test_a_copy_called_done_too_early_is_seen(kinds: str, seed: int) -> None:
    attempts_until_seen(lambda attempt: _stress("block_trie", kinds, attempt, memory=Early), seed)


def test_a_cache_without_a_lock_is_seen(seed: int) -> None:
    def unlocked(attempt: str) -> Stress:
        stress = _stress("hash_chain", "a window with sinks, and states", attempt)
        stress.cache._core.lock = nullcontext()
        return stress

    attempts_until_seen(unlocked, seed)
