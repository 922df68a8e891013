"""Hits inside a block are as long as is safe for every group, whichever block they are copied from."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import pytest

from prefixcache import Full, Media, PrefixCache, Recurrent, Window
from prefixcache.designs.block_trie import BlockTrieDesign
from prefixcache.designs.digest_chain import DigestChainDesign
from prefixcache.designs.groups import lookup
from prefixcache.designs.groups.lookup import Lookup
from prefixcache.designs.groups.side import Side
from prefixcache.designs.groups.window import WindowSide
from prefixcache.designs.radix import RadixDesign
from tests.groups.test_cascade import ALL, compute
from tests.groups.world import World

# -- examples -----------------------------------------------------------------------------------------

designs = pytest.mark.parametrize("design", ["radix", "block_trie", "digest_chain"])


def cache_of(design: str, *beside: Any, **options: Any) -> PrefixCache:
    if design == "radix":
        options["partial"] = "copy"
    return PrefixCache(design, block_size=4, capacity=40, groups=[Full(), *beside], **options)


def keep_only(cache: PrefixCache, *prompts: list[int]) -> None:
    """Evict what hangs beside full attention, but for what a hit of these prompts reads."""
    pins = [cache.pin(prompt) for prompt in prompts]
    cache.evict(ALL, group=1)
    for pin in pins:
        pin.release()


def hit(cache: PrefixCache, tokens: list[int]) -> tuple[int, str]:
    """Length and reason of a probe; `plan` and `open` give the same, and what is copied is as long."""
    probed, (planned,) = cache.probe(tokens), cache.plan([{"tokens": tokens}])
    request = cache.open(tokens)
    assert probed.cached == planned.cached == request.cached
    inside = request.cached % cache.block_size
    assert {copy.tokens for copy in request.copies if copy.group == 0} == ({inside} if inside else set())
    request.copied()
    request.abort()
    cache.check()
    return probed.cached, probed.reason


@designs
def test_a_block_that_shares_less_and_has_its_window_is_copied(design: str) -> None:
    cache = cache_of(design, Window(4))
    for ends in ([12, 13], [20, 21]):
        compute(cache.open([0, 1, 2, 3, 10, 11, *ends, 99])).close()
    keep_only(cache, [0, 1, 2, 3, 10, 11, 20, 21], [0, 1, 2, 3])
    assert hit(cache, [0, 1, 2, 3, 10, 11, 12, 50, 51]) == (6, "anchor missing")  # 7 in the block that lacks it


@designs
def test_a_block_that_parts_before_the_end_of_the_match_is_copied(design: str) -> None:
    cache = cache_of(design, Window(4))
    compute(cache.open([0, 1, 2, 3, 10, 11, 12, 13, 14, 15, 16, 17, 99])).close()
    compute(cache.open([0, 1, 2, 3, 10, 11, 20, 21, 99])).close()
    keep_only(cache, [0, 1, 2, 3, 10, 11, 20, 21], [0, 1, 2, 3])
    assert hit(cache, [*range(4), *range(10, 18), 50]) == (6, "anchor missing")


def finer(design: str) -> PrefixCache:
    """A window of 3 with blocks of 2: of all tokens 4 and 5 alone have theirs. No lookup has cut a run yet."""
    cache = cache_of(design, Window(3, block_size=2))
    request = compute(cache.open([*range(8), 99]))
    block = int(request.tables[0][1])
    request.close()
    values = cache._core.groups.sides[0].values
    values.pin([values.at(block, 0)])
    cache.evict(ALL, group=1)
    values.unpin([values.at(block, 0)])
    return cache


@designs
def test_the_beginning_of_a_block_is_copied_when_its_end_lacks_a_finer_window_block(design: str) -> None:
    assert hit(finer(design), [*range(7), 50, 51]) == (6, "anchor missing")  # of 7 tokens inside the block
    assert hit(finer(design), [*range(8), 50, 51]) == (6, "anchor missing")  # of the whole block


@designs
def test_of_a_block_that_is_copied_a_window_needs_what_is_read(design: str) -> None:
    cache = cache_of(design, Window(2, block_size=1))
    compute(cache.open([*range(8), 99])).close()
    request = cache.open([*range(7), 99])
    cache.evict(ALL, group=1)  # but for position 6
    request.copied()
    request.abort()
    assert hit(cache, [*range(7), 50]) == (7, "complete")
    again = cache.open([*range(7), 50, 51])
    assert [(copy.group, copy.tokens) for copy in again.copies] == [(0, 3), (1, 1)]
    assert again.tables[1].tolist()[:6] == [-1] * 6


@pytest.mark.parametrize("ends", [(5, 7), (7, 5)])
def test_another_end_with_a_state_is_tried(ends: tuple[int, int]) -> None:
    cache = cache_of("block_trie", Recurrent(), tails="all")
    for end in ends:
        compute(cache.open(range(end))).close()
    assert hit(cache, [*range(6), 50, 51]) == (5, "no checkpoint")  # 6 tokens of the other end, whose state is of 7


def test_an_end_beside_the_match_is_tried() -> None:
    cache = cache_of("block_trie", Recurrent(), tails="all")
    compute(cache.open([*range(8), 99])).close()
    assert cache.evict(2, group=1) == 2  # the states after 8 and after 9 tokens
    compute(cache.open(range(6))).close()
    assert hit(cache, [*range(8), 50]) == (6, "no checkpoint")


@designs
def test_the_group_that_cuts_most_is_named(design: str) -> None:
    cache = cache_of(design, Window(5, block_size=2), Recurrent())
    compute(cache.open([*range(8), 99])).close()
    cache.open([*range(8), 98]).abort()
    cache.evict(ALL, group=2)
    compute(cache.open(range(5))).close()
    cache.open([*range(4), 98]).abort()
    assert cache.evict(1 if design == "radix" else 2, group=1)  # what holds 6 and 7, and in some designs the 99
    # Of whole blocks the window alone would leave 4 as well. Inside the second one it would leave 6.
    assert hit(cache, [*range(8), 50]) == (4, "no checkpoint")
    assert "group 2" in cache.explain([*range(8), 50]).detail
    cache.evict(ALL, group=1)
    assert hit(cache, [*range(8), 50]) == (0, "anchor missing")


@designs
def test_a_lookup_does_not_try_all_blocks_that_share_a_token(design: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = cache_of(design, Window(4))
    for own in range(8):
        compute(cache.open([0, 1, 2, 3, 10, 20 + own, 30, 31, 99])).close()
    keep_only(cache, [0, 1, 2, 3], [0, 1, 2, 3, 10, 27, 30, 31])
    assert hit(cache, [0, 1, 2, 3, 10, 50, 51]) == (5, "boundary")  # by the last of eight
    monkeypatch.setattr(lookup, "_MOST_TRIED", 5)
    assert hit(cache, [0, 1, 2, 3, 10, 50, 51]) == (4, "anchor missing")


@pytest.mark.parametrize(("media", "cut"), [("token", 6), ("block", 4)])
def test_a_block_with_media_is_not_cut_where_it_is_matched_whole_or_not_at_all(media: str, cut: int) -> None:
    cache = cache_of("block_trie", Window(5, block_size=2), media=media)
    image = [Media("image", 4, 1)]
    compute(cache.open([*range(8), 99], media=image)).close()
    for shared in (8, 4):  # the window of 4 tokens is evicted last, that of 8 from its end on
        cache.open([*range(shared), 99], media=image[: shared // 8]).abort()
    while cache.probe([*range(8), 99], media=image).cached == 8:
        assert cache.evict(1, group=1)
    assert cache.probe([*range(8), 99], media=image).cached == cut


@designs
def test_no_hit_inside_a_block_where_the_design_has_none(design: str) -> None:
    cache = PrefixCache(design, block_size=4, capacity=40, groups=[Full(), Window(3, block_size=2)], partial="off")
    compute(cache.open([*range(8), 99])).close()
    assert hit(cache, [*range(7), 50, 51]) == (4, "not found")


# -- histories ----------------------------------------------------------------------------------------

SETS: list[list[Any]] = [
    [Window(4)],
    [Window(9)],
    [Window(3, block_size=2)],
    [Window(2, block_size=1)],
    [Window(7, block_size=1)],
    [Window(5, sinks=3, block_size=2)],
    [Window(1)],
    [Recurrent()],
    [Window(3, block_size=2), Recurrent()],
    [Window(5), Window(3, block_size=1)],
    [Window(4, block_size=8)],
]
DESIGNS: list[tuple[str, dict[str, Any]]] = [
    ("radix", {"partial": "copy"}),
    ("block_trie", {}),
    ("block_trie", {"tails": "all"}),
    ("digest_chain", {}),
]


def play(rng: random.Random, steps: int) -> World:
    """Prompts of two tokens, which part everywhere, groups that lose blocks, and probes held to the events."""
    design, options = rng.choice(DESIGNS)
    beside = rng.choice(SETS)
    cache = PrefixCache(design, block_size=4, capacity=120, groups=[Full(), *beside], **options)
    world = World(cache, rng)
    known = [[0]]
    for _ in range(steps):
        if rng.random() < 0.6:
            world.live.append(cache.open(drawn(known, rng)))
            known.append(world.live[0].tokens.tolist())
            for end in (*world.live[0].checkpoints, world.live[0].length):
                world.compute(world.live[0], end)
            world.copy(world.live[0])
            world.live.pop().close()
        else:
            cache.evict(rng.randrange(1, 12), group=rng.randrange(1, 1 + len(beside)))
        world.check()
        for _ in range(4):
            tokens = drawn(known, rng)
            world.compare(tokens, None, cache.probe(tokens).cached)
    world.finish()
    return world


def drawn(known: list[list[int]], rng: random.Random) -> list[int]:
    """A prompt that begins like an earlier one."""
    one = rng.choice(known)
    return [*one[: rng.randrange(len(one) + 1)], *(rng.randrange(2) for _ in range(rng.randrange(1, 7)))][:20]


@pytest.mark.parametrize("history", range(60))
def test_a_hit_is_the_longest_that_is_safe(history: int, seed: int) -> None:
    play(random.Random(f"inside {seed} {history}"), 30)


def test_the_histories_meet_hits_inside_a_block(seed: int) -> None:
    assert sum(play(random.Random(f"inside {seed} {history}"), 30).inside for history in range(10)) > 50


# -- what removes a rule must be seen -------------------------------------------------------------------

Break = Callable[[pytest.MonkeyPatch], None]
RULES: dict[str, Break] = {}


def rule(broken: Break) -> Break:
    RULES[broken.__name__] = broken
    return broken


@rule
def blocks_that_part_from_the_match_are_tried(patch: pytest.MonkeyPatch) -> None:
    for design in (RadixDesign, BlockTrieDesign, DigestChainDesign):
        patch.setattr(design, "beside", lambda *args, **options: iter(()))


@rule
def all_blocks_that_part_from_the_match_are_tried(patch: pytest.MonkeyPatch) -> None:
    for design in (RadixDesign, BlockTrieDesign, DigestChainDesign):
        patch.setattr(design, "beside", _the_first(design.beside))


def _the_first(beside: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **options: ((at, islice(found, 1)) for at, found in beside(*args, **options))


@rule
def blocks_that_part_from_the_match_early_are_tried(patch: pytest.MonkeyPatch) -> None:
    for design in (RadixDesign, BlockTrieDesign, DigestChainDesign):
        patch.setattr(design, "beside", _behind(design.beside))


def _behind(beside: Callable[..., Any]) -> Callable[..., Any]:
    def patched(design: Any, prompt: Any, limit: int, least: int, ends: bool) -> Any:
        return beside(design, prompt, limit, limit - limit % design.block_size, ends)

    return patched


@rule
def other_ends_with_a_state_are_tried(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("prefixcache.designs.block_trie.inside._tails", lambda *args: iter(()))


@rule
def less_of_a_block_is_tried(patch: pytest.MonkeyPatch) -> None:
    def all_or_nothing(sides: Sequence[Side], before: Sequence[int], partial: Any) -> int:
        tokens: int = agreed(sides, before, partial)
        return tokens if tokens == partial.tokens else 0

    agreed = lookup._agreed
    patch.setattr(lookup, "_agreed", all_or_nothing)


@rule
def blocks_of_the_match_are_tried_in_part(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Lookup, "_of_the_match", lambda *args: iter(()))


@rule
def of_a_block_only_what_is_read_is_needed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WindowSide, "_offsets", lambda side, whole, tokens: list(range(-(-tokens // side.block_size))))


def noticed(seed: int) -> int:
    """How many histories it took, 0 when none noticed."""
    for history in range(150):
        try:
            play(random.Random(f"inside {seed} {history}"), 30)
        except Exception:
            return history + 1
    return 0


@pytest.mark.parametrize("name", RULES)
def test_a_broken_rule_is_noticed(name: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    RULES[name](monkeypatch)
    assert noticed(seed)


def test_a_prompt_too_long_for_a_window_keeps_its_hit_inside_a_block() -> None:
    """It is refused in any case if it asks for room for all of it; with `reserve` it runs through the window."""
    cache = PrefixCache("block_trie", block_size=4, capacity=[60, 6], groups=[Full(), Window(6)])
    request = cache.open([1, 2, 3, 4, 5, 6, 7, 8])
    request.computed(8)
    request.close()
    tokens = [1, 2, 3, 4, 5, 6, *[9] * 20]
    assert cache.probe(tokens).cached == 6
    assert [planned.cached for planned in cache.plan([{"tokens": tokens}, {"tokens": tokens, "reserve": 0}])] == [6, 6]
    assert cache.open(tokens, reserve=0).cached == 6


def test_a_hit_that_is_given_up_for_want_of_room_is_no_fault_of_a_group() -> None:
    cache = PrefixCache("block_trie", block_size=4, capacity=[60, 3], groups=[Full(), Recurrent()])
    request = cache.open([1, 2, 3, 4, 5, 6])
    request.computed(6)
    request.copied()
    request.close()
    tokens = [1, 2, 3, 4, 5, 6, 9, 9, 9]
    assert cache.probe(tokens).cached == 6
    others = [cache.open([70 + number] * 3) for number in range(2)]
    assert (cache.probe(tokens).cached, cache.probe(tokens).reason) == (0, "not found")
    assert cache.explain(tokens).reason == "no room"
    others[0].close()
    others[1].close()
    assert cache.stats().no_checkpoint_tokens == 0


def test_a_picture_forbids_parts_of_its_block_whatever_else_is_cached() -> None:
    picture = [Media(b"a" * 32, 6, 1)]
    groups = [Full(), Recurrent()]
    cache = PrefixCache("block_trie", block_size=4, capacity=40, media="block", tails="all", groups=groups)
    request = cache.open([1, 2, 3, 4, 5, 6])
    request.computed(6)
    request.copied()
    request.close()
    assert cache.probe([*range(1, 11)], media=picture).cached == 0
    request = cache.open(range(1, 13), media=picture, read=False)
    request.computed(12)
    request.copied()
    request.abort()
    assert cache.probe([*range(1, 9), 77, 78], media=picture).cached == 0


def test_a_tail_with_a_picture_is_reused_whole_or_not_at_all() -> None:
    picture = [Media(b"a" * 32, 2, 1)]
    groups = [Full(), Window(4, block_size=2)]
    cache = PrefixCache("block_trie", block_size=4, capacity=40, media="block", tails="all", groups=groups)
    request = cache.open([1, 2, 3], media=picture)
    request.computed(3)
    request.close()
    prompt = [1, 2, 3, 9, 9, 9]
    assert cache.probe(prompt, media=picture).cached == 0, "the picture lies in the block of the prompt"
    assert cache.probe([1, 2, 3, 9], media=picture).cached == 3, "the whole of the tail is the whole that can be reused"
    assert cache.evict(1, group=1) == 1, "the window's block of its last token"
    assert cache.probe([1, 2, 3, 9], media=picture).cached == 0
