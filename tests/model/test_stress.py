"""Eight threads on one cache of every design and preset, over KV that is really copied: see `stress`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any

import pytest

from prefixcache import PRESETS, PrefixCache
from tests.interleavings.controls import a_batch_claims_one_by_one, written_before_others_copied
from tests.model.stress import ROUNDS, THREADS, Early, Memory, Stress, attempts_until_seen
from tests.registration import DESIGNS

_ATTEMPTS = 100  # to see that a rule is missing: one in three or four does, one in ten on a busy machine
_TURNS = 100_000
_LEAST = 8  # hits, copies and evictions of a run, or it showed nothing
_OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    **{design: (design, {}) for design in DESIGNS},
    "radix, copy": ("radix", {"partial": "copy"}),
    "radix, node": ("radix", {"partial": "copy", "evict_unit": "node"}),
    "block_trie, take": ("block_trie", {"partial": "take"}),
    "digest_chain, take": ("digest_chain", {"partial": "take"}),
}
_CASES = (*_OPTIONS, *(f"preset {name}" for name in PRESETS))


def _make(case: str) -> PrefixCache:
    """Room for about half of what eight threads would like to keep."""
    if case.startswith("preset "):
        return PrefixCache.preset(case.removeprefix("preset "), block_size=4, capacity=40)
    design, options = _OPTIONS[case]
    size = 4 if 4 in DESIGNS[design].block_sizes else 1
    return PrefixCache(design, block_size=size, capacity=160 // size, **options)


@pytest.mark.parametrize("case", _CASES)
def test_eight_threads_with_late_copies_lose_nothing_and_read_no_wrong_kv(case: str, seed: int) -> None:
    stress = Stress(_make(case), f"{seed} {case}")
    stress.run()
    done = stress.cache.stats()
    assert done.requests > THREADS * ROUNDS // 2
    assert min(done.hits, done.evicted_blocks) >= _LEAST, done
    if stress.cache.block_size > 1:
        assert done.copied_blocks >= _LEAST, done


@pytest.mark.parametrize("case", ["block_trie", "digest_chain, take", "preset trtllm"])
def test_a_copy_called_done_too_early_is_seen(case: str, seed: int) -> None:
    attempts_until_seen(lambda attempt: Stress(_make(case), attempt, memory=Early), seed)


def test_a_cache_without_a_lock_is_seen(seed: int) -> None:
    def unlocked(attempt: str) -> Stress:
        cache = _make("hash_chain")
        cache._core.lock = nullcontext()
        return Stress(cache, attempt)

    attempts_until_seen(unlocked, seed)


class _Slow:
    """Takes a few milliseconds for a copy, in which others go on."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory

    def copy(self, copies: Iterable[Any]) -> None:
        for _ in range(_TURNS):
            pass
        self.memory.copy(copies)


@pytest.mark.parametrize(
    ("broken", "case"),
    [
        (written_before_others_copied, "digest_chain, take"),
        (a_batch_claims_one_by_one, "block_trie"),
        (a_batch_claims_one_by_one, "preset trtllm"),
    ],
)
def test_a_claim_without_its_rules_is_seen(
    broken: Callable[[pytest.MonkeyPatch], None], case: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch)
    for attempt in range(_ATTEMPTS):
        try:
            Stress(_make(case), f"{seed} {attempt}", memory=_Slow).run()
        except AssertionError:  # wrong KV, or an invariant
            return
        except LookupError:  # broken books made it stumble, which proves too little
            continue
    raise AssertionError(f"not seen in {_ATTEMPTS} attempts")
