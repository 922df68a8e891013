"""One sentence on the life of a request with attention groups per test, in every design."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

import pytest

from prefixcache import DESIGNS, Full, NoSpace, PrefixCache, Recurrent, RequestError, Stored, Window
from tests.groups.test_cascade import compute

PROMPT = list(range(1, 25))  # 24 tokens: six blocks of 4

designs = pytest.mark.parametrize("design", DESIGNS)


def make(design: str, *groups: Any, capacity: Any = 64, **options: Any) -> PrefixCache:
    return PrefixCache(design, block_size=4, capacity=capacity, groups=[Full(), *groups], **options)


@designs
def test_blocks_that_leave_a_window_are_given_back_while_the_request_runs_and_stay_findable(design: str) -> None:
    cache = make(design, Window(8))
    request = cache.open(PROMPT)
    request.computed(24)
    # Position 24 reads 17 .. 23: the blocks of 16 .. 19 and 20 .. 23 are in use, no others.
    assert [block >= 0 for block in request.tables[1].tolist()] == [False] * 4 + [True] * 2
    assert (cache.books(1).pinned, cache.books(1).idle) == (2, 4)
    assert (cache.books(0).pinned, cache.books(0).idle) == (6, 0)
    assert cache.probe([*PROMPT[:8], 99]).cached == 8


@designs
def test_the_lock_of_a_window_reaches_only_as_far_as_the_window(design: str) -> None:
    cache = make(design, Window(8))
    compute(cache.open(PROMPT)).close()
    request = cache.open([*PROMPT, 99])
    assert request.cached == 24
    assert cache.books(1).pinned == 2 + 1  # what position 24 reads, and the block it is written to
    assert cache.evict(100, group=1) == 4
    cache.check()


@designs
def test_sinks_are_kept_however_far_away(design: str) -> None:
    cache = make(design, Window(4, sinks=2))
    request = cache.open(PROMPT)
    request.computed(24)
    assert [block >= 0 for block in request.tables[1].tolist()] == [True, False, False, False, False, True]


@designs
def test_a_missing_anchor_cuts_the_hit_and_says_so(design: str) -> None:
    cache = make(design, Window(8))
    compute(cache.open(PROMPT)).close()
    cache.evict(6, group=1)
    hit = cache.probe([*PROMPT, 99])
    assert (hit.cached, hit.reason) == (0, "anchor missing")
    cache.open([*PROMPT, 99])
    assert cache.stats().anchor_missing_tokens == 24


@designs
def test_a_window_of_coarser_blocks_ends_hits_at_its_own_ends(design: str) -> None:
    cache = make(design, Window(8, block_size=8))
    compute(cache.open(PROMPT)).close()
    assert cache.probe([*PROMPT[:20], 99]).cached == 16
    assert cache.probe([*PROMPT, 99]).cached == 24


@designs
def test_a_window_of_finer_blocks_gives_them_back_one_by_one(design: str) -> None:
    cache = make(design, Window(3, block_size=2))
    request = cache.open(PROMPT)
    request.computed(24)
    assert [at for at, block in enumerate(request.tables[1].tolist()) if block >= 0] == [11]  # reads 22 and 23
    assert cache.probe([*PROMPT[:12], 99]).cached == 12


@designs
def test_a_state_is_kept_at_the_last_full_block_of_a_prompt(design: str) -> None:
    cache = make(design, Recurrent())
    request = cache.open([*PROMPT, 50])
    assert request.checkpoints == (24,)
    compute(request)
    hit = cache.probe([*PROMPT[:20], 99])
    assert (hit.cached, hit.reason) == (0, "no checkpoint")
    assert cache.probe([*PROMPT, 99]).cached == 24
    assert cache.open([*PROMPT[:20], 99]).cached == 0
    assert cache.stats().no_checkpoint_tokens == 20


@designs
def test_a_state_is_kept_where_prompts_part(design: str) -> None:
    cache = make(design, Recurrent())
    compute(cache.open([*PROMPT, 50])).close()
    second = cache.open([*PROMPT[:12], *range(60, 70)])
    assert second.cached == 0
    assert second.checkpoints == (12, 20)
    compute(second)
    assert cache.open([*PROMPT[:12], *range(80, 90)]).cached == 12


@designs
def test_a_state_is_kept_every_interval(design: str) -> None:
    cache = make(design, Recurrent(8))
    request = cache.open([*PROMPT, 50])
    assert request.checkpoints == (8, 16, 24)
    compute(request)
    assert cache.probe([*PROMPT[:23], 99]).cached == 16


@designs
def test_a_state_is_kept_at_the_end_of_a_request(design: str) -> None:
    cache = make(design, Recurrent())
    request = cache.open(PROMPT[:10])
    compute(request)
    request.append(PROMPT[10:24])
    request.computed(24)
    request.close()
    assert cache.probe([*PROMPT, 99]).cached == 24


@pytest.mark.parametrize("design", ["block_trie", "digest_chain"])
def test_where_hits_end_inside_blocks_the_end_need_not_fill_one(design: str) -> None:
    cache = make(design, Recurrent())
    compute(cache.open(PROMPT[:22])).close()
    hit = cache.open([*PROMPT[:22], 99])
    assert hit.cached == 22
    assert {copy.group for copy in hit.copies} == {0, 1}


@designs
def test_a_state_in_use_by_a_step_in_flight_is_not_kept(design: str) -> None:
    cache = make(design, Recurrent(4), capacity=[64, 2])
    other = cache.open(range(100, 105))
    request = cache.open(PROMPT[:9])
    request.computed(4)  # no room to go on with another state: none is kept
    other.abort()
    request.close(in_flight=True)
    assert cache.books(1).quarantined == 1
    assert cache.probe(PROMPT[:9]).cached == 0
    request.settled()
    assert cache.books(1).free == 2
    cache.check()


@designs
def test_no_space_names_the_group_and_leaves_no_trace(design: str) -> None:
    cache = make(design, Window(8), capacity=[64, 3])
    with pytest.raises(NoSpace, match="group 1"):
        cache.open(PROMPT)
    assert [cache.books(group).free for group in (0, 1)] == [64, 3]
    assert cache.stats().queries == 0


@designs
def test_a_prompt_longer_than_the_pool_of_its_window_runs_in_chunks(design: str) -> None:
    cache = make(design, Window(8), capacity=[64, 4])
    request = cache.open(PROMPT, reserve=8)
    for end in range(8, 25, 4):
        request.reserve(end)
        request.computed(end)
    assert request.computed_tokens == 24
    assert cache.books(1).pinned == 2
    cache.check()


@designs
def test_a_preempted_prompt_comes_back_through_a_small_window_in_chunks(design: str) -> None:
    cache = make(design, Window(8), capacity=[64, 6])
    request = cache.open(range(100), reserve=8)
    for end in range(8, 57, 8):
        request.reserve(end)
        request.copied()
        request.computed(end)
    request.preempt()
    with pytest.raises(NoSpace, match=r"there are 6 in all: reserve fewer tokens at a time"):
        request.resume()
    assert request.resume(reserve=60).cached == 56
    request.copied()
    request.reserve(64)
    request.computed(64)
    request.close()
    cache.check()


@designs
def test_a_fork_shares_what_is_cached_and_copies_the_rest(design: str) -> None:
    cache = make(design, Window(8), Recurrent())
    request = cache.open(PROMPT[:22])
    compute(request)
    request.copied()
    child = request.fork()
    assert sorted((copy.group, copy.tokens) for copy in child.copies) == [(0, 2), (1, 2), (2, 1)]
    assert child.tables[1][4] == request.tables[1][4]
    assert child.tables[1][5] != request.tables[1][5]


@designs
def test_going_back_behind_what_a_group_still_has_is_refused(design: str) -> None:
    cache = make(design, Window(4), capacity=[64, 64])
    request = cache.open(PROMPT)
    request.computed(24)
    cache.evict(100, group=1)
    with pytest.raises(RequestError, match=r"group 1 \(window of 4\)"):
        request.rewind(12)
    assert request.length == 24
    request.preempt()
    # Position 20 reads what is gone; position 23 only the last block, which the request itself kept.
    assert request.resume().cached == (23 if cache.options.partial == "copy" else 0)


@designs
def test_a_run_with_a_hole_makes_two_events_with_their_own_parents(design: str) -> None:
    cache = make(design, Window(4))
    compute(cache.open(PROMPT)).close()
    cache.open([*PROMPT[:12], 99]).abort()  # its window was the third block: the latest used of all now
    assert cache.evict(5, group=1) == 5
    cache.take_events()
    cache.open(PROMPT, read=False).computed(24)
    first, second = (event for event in cache.take_events()[2] if isinstance(event, Stored) and event.group == 1)
    assert (first.tokens, second.tokens) == (tuple(PROMPT[:8]), tuple(PROMPT[12:]))
    assert (len(first.keys), len(second.keys)) == (2, 3)
    assert first.parent is None
    assert second.parent not in (None, *first.keys)


@designs
def test_new_weights_and_a_reset_hold_for_every_group(design: str) -> None:
    cache = make(design, Window(8), Recurrent())
    compute(cache.open(PROMPT)).close()
    cache.new_generation()
    assert cache.probe([*PROMPT, 99]).cached == 0
    cache.check()
    assert cache.reset()
    assert all(cache.books(group).free == 64 for group in range(3))


@designs
def test_a_tree_without_memory_of_its_own_stays_in_bounds(design: str) -> None:
    cache = PrefixCache(design, block_size=4, capacity=8, groups=[Window(8)], events=False)
    for turn in range(600):
        compute(cache.open([turn + 1, *range(2, 24)])).close()
    cache.check()
    assert sum(1 for _ in cache._core.design.blocks()) <= 4 * 8 + 1024 + 8


@pytest.mark.parametrize("design", ["radix", "block_trie", "digest_chain"])
def test_a_withheld_token_does_not_cost_the_states_of_a_prompt(design: str) -> None:
    cache = PrefixCache(design, block_size=4, capacity=32, groups=[Full(), Recurrent(4)], store_last=False)
    request = cache.open(range(25))
    assert request.checkpoints == (4, 8, 12, 16, 20, 24)
    for end in (*request.checkpoints, 25):
        request.computed(end)
        request.copied()
    request.close()
    assert cache.books(1).idle == 6
    assert [cache.probe([*range(length), 99]).cached for length in (25, 14, 8)] == [24, 12, 8]
    cache.check()


@pytest.mark.parametrize(
    ("groups", "says"),
    [
        ([Full(), Full()], "twice"),
        ([], "expected a list"),
        ("full", "expected a list"),
        ([Recurrent(6)], "interval"),
        ([Window(8, block_size=3)], "block_size"),
        ([3], r"groups\[0\]"),
        ([{"window": {"sise": 3}}], r"groups\[0\]"),
        ([{"window": 0}], "size"),
        ([{"window": True}], "size"),
        ([{"full": 3}], r"groups\[0\]"),
        ([{"recurrent": -4}], "interval"),
        ([{"window": "8"}], "size"),
    ],
)
def test_groups_that_cannot_be_are_refused_with_what_is_wrong(groups: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        PrefixCache("radix", block_size=4, capacity=8, groups=groups)


@pytest.mark.parametrize("capacity", [[8], [8, 8, 8], [8, 0], [8, -1], [8, True], [8, "8"], "8", None, {}, [8, 2.5]])
def test_a_capacity_that_fits_no_groups_is_refused(capacity: Any) -> None:
    with pytest.raises(ValueError, match="capacity"):
        make("radix", Window(8), capacity=capacity)


def test_states_that_a_radix_tree_could_never_hang_are_refused() -> None:
    with pytest.raises(ValueError, match="lookahead_by='drop'"):
        PrefixCache("radix", block_size=4, capacity=8, groups=[Full(), Recurrent()], lookahead=1)


@pytest.mark.parametrize("design", ["radix", "hash_chain", "block_trie", "digest_chain", "naive"])
@pytest.mark.parametrize("options", [{"lookahead": 1, "lookahead_by": "drop"}, {"backoff": 3}])
def test_a_state_is_kept_where_a_draft_model_lets_the_hit_end(design: str, options: dict[str, Any]) -> None:
    cache = PrefixCache(design, block_size=4, capacity=32, groups=[Full(), Recurrent()], **options)
    compute(cache.open(range(23))).close()
    assert cache.probe(range(23)).cached >= 16  # more where an unfilled end is kept, with its state


@pytest.mark.parametrize("design", ["radix", "hash_chain", "block_trie", "digest_chain", "naive"])
def test_states_are_kept_where_coarser_windows_let_hits_end(design: str) -> None:
    groups = [Full(), Window(16, block_size=16), Recurrent(4)]
    cache = PrefixCache(design, block_size=4, capacity=32, groups=groups)
    request = cache.open(range(39))
    assert request.checkpoints == (16, 32)
    compute(request).close()
    assert cache.probe(range(39)).cached == 32


def runs_through(window: Window, chunk: int, blocks: int, length: int, must_fit: bool = False) -> bool:
    """Whether a prompt gets through a window's pool of so many blocks in steps of so many tokens.

    With `must_fit` it is said at the beginning if it does not.
    """
    cache = PrefixCache("radix", block_size=4, capacity=[64, blocks], groups=[Full(), window])
    with suppress(NoSpace):
        request = cache.open(range(length), reserve=chunk, must_fit=must_fit)
        if must_fit:
            return True
        for end in (*range(chunk, length, chunk), length):
            request.reserve(end)
            request.computed(end)
        return True
    return False


@pytest.mark.parametrize("sinks", [0, 1, 5])
@pytest.mark.parametrize("own", [1, 2, 4, 8])
@pytest.mark.parametrize("size", [1, 2, 7, 8, 9, 17])
@pytest.mark.parametrize("chunk", [1, 3, 7, 8, 16])
def test_a_window_of_which_a_step_reads_so_many_blocks_needs_no_more(
    size: int, own: int, chunk: int, sinks: int
) -> None:
    window, behind, larger = Window(size, sinks=sinks, block_size=own), -(-sinks // own), max(own, 4)
    least = next(blocks for blocks in range(1, 64) if runs_through(window, chunk, blocks, 96))
    assert least <= -(-(size - 2 + chunk + larger) // own) + behind
    asked = next(blocks for blocks in range(1, 64) if runs_through(window, chunk, blocks, 96, must_fit=True))
    assert least <= asked <= least + -(-(2 * larger - 2) // own)
    if chunk % larger == 0:  # all steps begin and end with a block
        assert least == chunk // own + -(-(size - 1) // own) + behind
    if math.gcd(chunk, larger) == 1:  # some step ends with the first token of a block
        assert least == -(-(size - 2 + chunk + larger) // own) + behind


@pytest.mark.parametrize("preset", ["vllm-1", "trtllm"])
@pytest.mark.parametrize("sinks", [0, 9])
def test_what_must_fit_needs_of_a_window_only_what_it_holds_at_a_time(preset: str, sinks: int) -> None:
    cache = PrefixCache.preset(
        preset, block_size=8, capacity=[60, 6 + 4 + 1 + -(-sinks // 8)], groups=[Full(), Window(32, sinks=sinks)]
    )
    with pytest.raises(NoSpace, match="group 1"):
        cache.open(range(400), reserve=56, must_fit=True)
    request = cache.open(range(400), reserve=48, must_fit=True)
    for end in (*range(48, 400, 48), 400):
        request.reserve(end)
        request.computed(end)
    cache.check()
    request.close()
    with pytest.raises(NoSpace, match="group 1"):
        cache.open(range(1000, 1400), must_fit=True)


@designs
def test_who_asks_whether_it_may_write_keeps_its_state(design: str) -> None:
    cache = make(design, Recurrent())
    compute(cache.open(PROMPT)).close()
    request = cache.open([*PROMPT[:20], 98, 99])
    assert request.cached == 20
    request.copied()
    cache.evict(64, group=1)  # the state of the hit is gone, and that of the request would take its place
    state = request.tables[1].tolist()
    request.computed(20)  # the question of docs/threads.md, asked behind the copies: no other may follow
    assert (request.copies, request.tables[1].tolist()) == ((), state)
    request.computed(22)


@pytest.mark.parametrize("ended", [False, True])
def test_what_hung_from_an_evicted_copy_hangs_from_the_block_of_who_uses_it_once_that_is_found(ended: bool) -> None:
    groups = [Full(), Window(8)]
    cache = PrefixCache.preset("trtllm", block_size=4, capacity=40, groups=groups)
    first, second = cache.open(range(9)), cache.open(range(9))
    first.computed(9)
    first.close()
    cache.evict(40, group=1)
    second.computed(9)  # its window blocks hang from the blocks of the first, its own copies of which nobody finds
    assert cache.evict(40) == 2
    assert cache.probe([*range(8), 99]).cached == 0
    cache.take_events()
    if ended:
        second.close()
    else:
        second.computed(9)
    assert cache.probe([*range(8), 99]).cached == 8
    told = [event for event in cache.take_events()[2] if isinstance(event, Stored)]
    assert [event.tokens[:8] for event in told] == [tuple(range(8)), tuple(range(8))]
    assert [event.group for event in told] == [0, 1]
    cache.check()
    second.close()
    assert (cache.evict(40), cache.books(1).free) == (2, 40)


@designs
@pytest.mark.parametrize("window", [Window(8), Window(8, block_size=2), Window(8, block_size=8)])
def test_a_fork_gets_room_for_all_known_tokens_in_a_window_and_not_for_what_is_reserved(
    design: str, window: Window
) -> None:
    cache = make(design, window, capacity=[64, 24])
    request = compute(cache.open(PROMPT[:10]))
    request.reserve(40)
    alone = cache.books(1).pinned
    child = request.fork()
    size = window.block_size or 4
    assert len(child.tables[0]) == 3  # 10 known tokens
    assert len(child.tables[1]) == -(-12 // size)
    child.copied()
    child.close()
    assert cache.books(1).pinned == alone
    cache.check()
