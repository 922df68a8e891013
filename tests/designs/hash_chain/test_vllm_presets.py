"""The presets vllm-0.8.5 and vllm-1 decide as the rules of these releases say, and each rule can be missed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pytest import MonkeyPatch

from prefixcache import Policy
from prefixcache.designs.hash_chain.design import HashChainDesign
from prefixcache.designs.hash_chain.index import Index
from prefixcache.designs.hash_chain.leaf_ranks import LeafRanks
from prefixcache.designs.hash_chain.run import Path, Run
from tests.designs.hash_chain.histories import MODELS, play


@pytest.mark.parametrize("preset", MODELS)
def test_every_answer_table_and_book_is_that_of_the_rules(preset: str, seed: int) -> None:
    play(preset, seed, histories=600)


def policy(rank: Callable[[Any], tuple[int, ...]]) -> Policy:
    return Policy("broken", rank)


BROKEN_OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "0.8.5: order of release instead of steps": ("vllm-0.8.5", {"eviction": "lru"}),
    "0.8.5: no deepest first": ("vllm-0.8.5", {"eviction": policy(lambda f: (f.step, f.block))}),
    "0.8.5: the larger id first": ("vllm-0.8.5", {"eviction": policy(lambda f: (f.step, -f.depth, -f.block))}),
    "0.8.5: seen at once": ("vllm-0.8.5", {"visibility": "computed"}),
    "0.8.5: copies are kept": ("vllm-0.8.5", {"duplicates": "keep"}),
    "v1: equal blocks become one": ("vllm-1", {"duplicates": "give_back"}),
    "v1: no gate for the whole prompt": ("vllm-1", {"must_fit": False}),
    "v1: the most recently used first": ("vllm-1", {"eviction": "mru"}),
}


@pytest.mark.parametrize("rule", BROKEN_OPTIONS)
def test_a_broken_option_is_noticed(rule: str, seed: int) -> None:
    preset, changes = BROKEN_OPTIONS[rule]
    with pytest.raises(AssertionError):
        play(preset, seed, histories=1500, **changes)


def the_first_to_let_go_decides(patch: MonkeyPatch) -> None:
    """The most recent stamp of all who let go of a block counts, not that of the last one."""
    original = LeafRanks.released

    def released(self: LeafRanks, runs: list[Run], step: int) -> None:
        before = [(run.use, run.use.step) for run in runs if run.use is not None]
        original(self, runs, step)
        for use, earlier in before:
            use.step = max(earlier, step)

    patch.setattr(LeafRanks, "released", released)


def a_release_does_not_end_the_step(patch: MonkeyPatch) -> None:
    patch.setattr(HashChainDesign, "_let_go", HashChainDesign._leave)


def only_the_first_steps_count(patch: MonkeyPatch) -> None:
    """Blocks carry the step of the admission."""
    original = HashChainDesign.release

    def release(self: HashChainDesign, holding: Any) -> None:
        holding.step = min(holding.step, 1)
        original(self, holding)

    patch.setattr(HashChainDesign, "release", release)


def the_newest_copy_is_hit(patch: MonkeyPatch) -> None:
    original = Index.add

    def add(self: Index, run: Run, first: int, known: int) -> None:
        original(self, run, first, known)
        for key in run.keys[first : first + known]:
            self.copies[key].reverse()
            self.oldest[key] = self.copies[key][0]

    patch.setattr(Index, "add", add)


def head_first(patch: MonkeyPatch) -> None:
    original = HashChainDesign._leave

    def leave(self: HashChainDesign, path: Path, first: int, step: int) -> None:
        path.runs[first:] = reversed(path.runs[first:])
        original(self, path, first, step)

    patch.setattr(HashChainDesign, "_leave", leave)


def hits_cost_nothing(patch: MonkeyPatch) -> None:
    """The arithmetic of admission forgets that idle hits leave the free blocks."""
    original = HashChainDesign.match

    def match(self: HashChainDesign, prompt: Any, limit: int) -> Any:
        found = original(self, prompt, limit)
        found.idle = 0
        return found

    patch.setattr(HashChainDesign, "match", match)


BROKEN_CODE: list[tuple[str, Callable[[MonkeyPatch], None]]] = [
    ("vllm-0.8.5", the_first_to_let_go_decides),
    ("vllm-0.8.5", a_release_does_not_end_the_step),
    ("vllm-0.8.5", only_the_first_steps_count),
    ("vllm-1", the_newest_copy_is_hit),
    ("vllm-1", head_first),
    ("vllm-1", hits_cost_nothing),
]


@pytest.mark.parametrize(("preset", "breaks"), BROKEN_CODE, ids=[breaks.__name__ for _, breaks in BROKEN_CODE])
def test_broken_code_is_noticed(
    preset: str, breaks: Callable[[MonkeyPatch], None], seed: int, monkeypatch: MonkeyPatch
) -> None:
    breaks(monkeypatch)
    with pytest.raises(AssertionError):
        play(preset, seed, histories=1500)
