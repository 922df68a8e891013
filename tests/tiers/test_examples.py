"""What lies below the device and is loaded, in small exact examples, told by every design; and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from prefixcache import Copy, Full, Moved, OptionError, PrefixCache, Removed, RequestError, Stored, Window
from prefixcache.scenario.oracle import KVOracle
from tests.tiers.bench import LOAD, TIERED, TieredBench, ways


def test_what_lies_below_is_loaded_and_lies_on_the_device_then(bench: TieredBench) -> None:
    bench.lower(range(1, 9))
    assert (bench.where(range(1, 9)), bench.host()) == ((0, 8), (2, 2, 0, 0))
    request = bench.open([*range(1, 9), 9])
    assert (request.cached, bench.host()) == (8, (2, 0, 2, 0)), "pinned while it is read"
    table = request.block_table.tolist()
    assert [(copy.target, copy.tokens, copy.group) for copy in request.copies] == [(b, 4, 0) for b in table[:2]]
    assert ways(request.copies) == [LOAD] * 2
    assert bench.where(range(1, 9)) == (0, 8), "not on the device before it is copied"
    bench.oracle.copy(request.copies)
    request.copied()
    bench.verify(request)
    assert (bench.where(range(1, 9)), bench.host()) == ((8, 0), (4, 0, 0, 0))
    bench.step(request)
    request.close()
    stats = bench.cache.stats()
    assert (stats.spilled_blocks, stats.loaded_blocks, stats.hits) == (2, 2, 8)


def test_the_last_token_is_computed_whatever_lies_below(bench: TieredBench) -> None:
    bench.lower(range(1, 9))
    assert bench.cache.probe(range(1, 9)).tiers == {"device": 0, "host": 4}
    assert bench.cache.probe(range(1, 9)).reason == "last token"


def test_what_is_loaded_finds_room_whatever_is_reserved(bench: TieredBench) -> None:
    bench.lower(range(1, 9))
    request = bench.open([*range(1, 9), 9], reserve=0)
    assert (request.cached, len(request.block_table), ways(request.copies)) == (8, 2, [LOAD] * 2)
    bench.oracle.copy(request.copies)
    request.copied()
    bench.verify(request)
    request.close()


def test_a_load_that_is_cut_is_loaded_as_far_as_it_is_wanted(bench: TieredBench) -> None:
    bench.lower(range(1, 9))
    request = bench.open([*range(1, 9), 9])
    request.rewind(6)
    assert (request.computed_tokens, len(request.block_table)) == (6, 2)
    bench.oracle.copy(request.copies)
    request.copied()
    bench.verify(request)
    assert (bench.where(range(1, 9)), bench.host()) == ((4, 4), (3, 1, 0, 0)), "half of the second block is its own"
    request.append([77, 78, 79])
    bench.step(request).close()
    assert bench.where([1, 2, 3, 4, 5, 6, 77, 78]) == (8, 0)


def test_a_hit_goes_on_below_where_the_device_has_no_more(bench: TieredBench) -> None:
    bench.lower(range(1, 9))
    bench.run(range(1, 6))
    assert bench.where(range(1, 9)) == (4, 4)
    assert bench.run([*range(1, 9), 9]) == 8
    assert bench.where(range(1, 9)) == (8, 0)


def test_a_request_that_stores_nothing_leaves_below_what_it_loads(bench: TieredBench) -> None:
    bench.lower(range(1, 9))
    bench.events()
    for _ in range(2):
        assert bench.run([*range(1, 9), 9], store=False) == 8
        assert (bench.where(range(1, 9)), bench.host()) == ((0, 8), (2, 2, 0, 0))
    assert bench.events() == []


@pytest.mark.parametrize("in_flight", [False, True])
def test_a_load_that_is_given_up_leaves_the_block_below(bench: TieredBench, in_flight: bool) -> None:
    bench.lower(range(1, 9))
    bench.events()
    request = bench.open([*range(1, 9), 9])
    request.abort(in_flight=in_flight)
    assert bench.host() == ((2, 0, 2, 0) if in_flight else (2, 2, 0, 0)), "read until it is settled"
    assert bench.books() == ((3, 0, 0, 3) if in_flight else (6, 0, 0, 0))
    assert not (in_flight and bench.cache.reset())
    request.settled()
    assert (bench.where(range(1, 9)), bench.host(), bench.events()) == ((0, 8), (2, 2, 0, 0), [])
    assert bench.run([*range(1, 9), 9]) == 8
    assert bench.cache.stats().loaded_blocks == 2, "what was given up is not counted"


def test_two_requests_load_the_same_block_and_share_it_then(bench: TieredBench) -> None:
    bench.lower(range(1, 5))
    first, second = bench.open([1, 2, 3, 4, 5]), bench.open([1, 2, 3, 4, 6])
    assert (first.cached, second.cached, bench.host()) == (4, 4, (3, 0, 1, 0))
    assert first.copies[0].source == second.copies[0].source
    own = int(second.block_table[0])
    bench.oracle.copy(first.copies)
    first.copied()
    assert bench.host() == (3, 0, 1, 0), "the other still reads it"
    bench.oracle.copy(second.copies)
    second.copied()
    bench.verify(second)
    assert bench.host() == (4, 0, 0, 0)
    assert second.take_moves() == ((0, own, int(first.block_table[0])),)
    assert second.block_table[0] == first.block_table[0] and bench.cache.stats().loaded_blocks == 2
    bench.step(first).close()
    bench.step(second).close()
    assert bench.where(range(1, 5)) == (4, 0)


def test_a_design_that_keeps_twins_keeps_what_both_loaded() -> None:
    bench = TieredBench("hash_chain", duplicates="keep")
    bench.lower(range(1, 5))
    requests = [bench.open([1, 2, 3, 4, last]) for last in (5, 6)]
    for request in requests:
        bench.step(request)
        assert request.take_moves() == ()
    assert len({int(request.block_table[0]) for request in requests}) == 2
    assert bench.host() == (4, 0, 0, 0)


@pytest.mark.parametrize(
    ("design", "options"),
    [("radix", {"partial": "copy"}), ("block_trie", {}), ("block_trie", {"partial": "take"}), ("digest_chain", {})],
)
def test_a_full_block_below_beats_a_hit_inside_a_block_of_the_device(design: str, options: dict[str, Any]) -> None:
    bench = TieredBench(design, **options)
    bench.lower(range(1, 9))
    assert bench.where([1, 2, 3, 4, 5, 6]) == (0, 4), "only whole blocks are loaded"
    bench.run([1, 2, 3, 4, 5, 6, 77, 78, 79])
    assert bench.where([1, 2, 3, 4, 5, 6]) == (6, 0), "a hit inside a block where no whole one lies below"
    request = bench.open([*range(1, 9), 9])
    assert (request.cached, ways(request.copies)) == (8, [LOAD])
    bench.step(request).close()
    assert bench.where(range(1, 9)) == (8, 0)


def test_a_block_that_is_computed_again_leaves_the_tier(bench: TieredBench) -> None:
    bench.lower(range(1, 9))
    told = bench.events()
    keys = [key for event in told if isinstance(event, Stored) for key in event.keys]
    request = bench.step(bench.open([1, 2, 3, 4, 9], read=False))
    assert (request.cached, bench.host()) == (0, (3, 1, 0, 0))
    assert bench.where(range(1, 9)) == (4, 4), "what lies below behind it stays"
    assert Moved((keys[0],), "device") in bench.events()
    request.close()


def test_what_is_computed_again_while_it_is_loaded_keeps_its_slot_until_then(bench: TieredBench) -> None:
    bench.lower(range(1, 5))
    loading = bench.open([1, 2, 3, 4, 5])
    bench.run([1, 2, 3, 4, 6], read=False)
    assert (bench.where(range(1, 5)), bench.host()) == ((4, 0), (3, 0, 1, 0))
    bench.step(loading).close()
    assert bench.host() == (4, 0, 0, 0)


# -- the whole --------------------------------------------------------------------------------------------


def test_new_weights_empty_the_tier(bench: TieredBench) -> None:
    bench.lower(range(1, 9))
    bench.run([21, 22, 23, 24])
    bench.cache.evict(1)
    spills = bench.cache.spill()
    bench.oracle.copy(spills.copies)
    loading = bench.open([*range(1, 9), 9])
    bench.events()
    bench.cache.new_generation()
    assert (bench.host(), bench.where(range(1, 9))) == ((1, 0, 2, 1), (0, 0)), "what is read and written stays"
    assert sum(len(event.keys) for event in bench.events() if isinstance(event, Removed)) == 3
    spills.copied()
    bench.step(loading).close()
    assert (bench.host(), bench.where(range(1, 9)), bench.events()) == ((4, 0, 0, 0), (0, 0), [])
    bench.cache.check()


def test_a_reset_waits_for_a_spill_and_for_a_load(bench: TieredBench) -> None:
    bench.lower(range(1, 5))
    loading = bench.open([1, 2, 3, 4, 5])
    assert not bench.cache.reset()
    bench.step(loading).close()
    bench.cache.evict(6)
    spills = bench.cache.spill()
    assert not bench.cache.reset()
    spills.abort()
    assert bench.cache.reset()
    assert (bench.books(), bench.host()) == ((6, 0, 0, 0), (4, 0, 0, 0))


def test_a_reset_calls_off_what_waits(bench: TieredBench) -> None:
    bench.run(range(1, 9))
    bench.cache.evict(2)
    assert bench.cache.reset()
    assert bench.cache.spill().copies == ()
    assert bench.open(range(21, 29)).copies == ()


def test_a_kept_place_of_an_evicted_block_is_no_block_of_the_device() -> None:
    """The preset evicts by priority wherever a block stands, and what hung from it is out of reach until it is back."""
    cache = PrefixCache.preset("trtllm", block_size=4, capacity=6, tiers={"host": 4})
    oracle = KVOracle(4)
    request = cache.open(range(1, 10), priority=[(0, 4, 10, None), (4, 9, 90, None)])
    oracle.write(request, 0, 9)
    request.computed(9)
    request.close()
    cache.evict(1)
    spills = cache.spill()
    oracle.copy(spills.copies)
    spills.copied()
    assert len(cache.check()) == 1, "one cached block is out of reach"
    assert cache.probe([*range(1, 10), 10]).tiers == {"device": 0, "host": 4}
    again = cache.open([*range(1, 10), 10])
    oracle.copy(again.copies)
    again.copied()
    oracle.verify(again, 4)
    assert cache.check() == ()
    assert cache.probe([*range(1, 10), 10]).tiers == {"device": 8, "host": 0}, "it is back, and so is the next one"
    again.close()


# -- bad arguments ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tiers", "says"),
    [
        ({"disk": 1}, "tiers names 'disk': expected 'host'"),
        ({"host": 4, "disk": 1}, "tiers names 'disk': expected 'host'"),
        ({"host": 0}, r"tiers\['host'\] is 0"),
        ({"host": -1}, r"tiers\['host'\] is -1"),
        ({"host": True}, r"tiers\['host'\] is True"),
        ({"host": 1.5}, r"tiers\['host'\] is 1\.5"),
        ({"host": "4"}, r"tiers\['host'\] is '4'"),
        ({"host": 2**31}, r"tiers\['host'\] is 2147483648"),
        ("host", r"tiers is 'host': expected the blocks of each tier, such as \{'host': 1024\}"),
        (["host"], r"tiers is \['host'\]"),
        (4, "tiers is 4"),
    ],
)
@pytest.mark.parametrize("design", TIERED)
def test_bad_tiers(design: str, tiers: Any, says: str) -> None:
    with pytest.raises(OptionError, match=says):
        PrefixCache(design, block_size=4, capacity=8, tiers=tiers)


@pytest.mark.parametrize("tiers", [None, {}])
@pytest.mark.parametrize("design", TIERED)
def test_without_a_tier(design: str, tiers: Any) -> None:
    cache = PrefixCache(design, block_size=4, capacity=8, tiers=tiers)
    assert cache.probe([1, 2]).tiers == {"device": 0}
    with pytest.raises(OptionError, match=r"no tier to spill to: build the cache with tiers=\{'host': blocks\}"):
        cache.spill()
    with pytest.raises(OptionError, match="tier is 'host': expected 'device'"):
        cache.books(tier="host")


def test_books_of_a_tier_that_does_not_exist(bench: TieredBench) -> None:
    assert bench.cache.books(tier="device") == bench.cache.books()
    with pytest.raises(OptionError, match="tier is 'nope': expected 'device' or 'host'"):
        bench.cache.books(tier="nope")


@pytest.mark.parametrize(
    ("design", "options", "says"),
    [
        ("radix", {"groups": [Full(), Window(8)]}, "windows and recurrent states are not kept below the device"),
        ("hash_chain", {"hash": "xxh3-128"}, "hash='xxh3-128'.*expected a hash that resists collisions.*'sha256'"),
        ("hash_chain", {"hash": lambda message: 1}, "expected a hash that resists collisions"),
        ("token_trie", {"block_size": 1}, "token_trie has no tiers below the device: expected another design"),
    ],
)
def test_what_goes_with_no_tier(design: str, options: dict[str, Any], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        PrefixCache(design, **{"block_size": 4, "capacity": 8, "tiers": {"host": 4}, **options})


def test_a_copy_lies_on_the_device_unless_it_says_otherwise() -> None:
    copy = Copy(1, 2, 4)
    assert (copy.source_tier, copy.target_tier) == ("device", "device")


def test_media_that_a_key_does_not_prove_stay_out_of_the_tier() -> None:
    """vLLM's keys do not say where a media item ends: what lies before it goes down, it and what follows do not."""
    cache = PrefixCache.preset("vllm-1", block_size=4, capacity=6, tiers={"host": 4})
    media = [{"digest": b"picture", "start": 6, "length": 3}]
    request = cache.open(range(1, 14), media=media)
    request.computed(13)
    request.close()
    cache.evict(6)
    spills = cache.spill()
    assert len(spills.copies) == 1, "the block before the picture"
    spills.copied()
    for given in ((), media):
        assert cache.probe([*range(1, 14), 99], media=given).tiers == {"device": 0, "host": 4}
    cache.check()
    ids = cache.open(range(1, 10), extra_ids=[7] * 9)
    ids.copied()
    ids.computed(9)
    ids.close()
    cache.evict(6)
    assert cache.spill().copies == ()


@pytest.mark.parametrize("draft", [{"lookahead": 1}, {"backoff": 1}])
@pytest.mark.parametrize("design", ["radix", "block_trie", "digest_chain"])
def test_a_draft_model_gets_its_token_of_a_hit_that_is_found_elsewhere(design: str, draft: dict[str, int]) -> None:
    """The block below cannot be loaded in part, and the sibling on the device parts where the prompt does."""
    options = draft | ({"partial": "copy", "lookahead_by": "drop"} if design == "radix" else {})
    cache = PrefixCache(design, block_size=4, capacity=8, tiers={"host": 4}, **options)

    def put(tokens: list[int]) -> None:
        request = cache.open(tokens)
        request.copied()
        request.computed(len(tokens) - 1)
        request.close()

    put([1, 1, 0, 0, 9])
    cache.evict(8)
    cache.spill().copied()
    put([1, 0, 0, 0, 9])
    assert cache.probe([1, 1, 0, 0, 5, 5]).cached == 0, "token 0 of the sibling was written for another next token"
    put([1, 1, 0, 7, 9])
    assert cache.probe([1, 1, 0, 0, 5, 5]).cached == 2, "of three tokens that agree"


def test_more_blocks_are_refused_while_copies_are_being_made(bench: TieredBench) -> None:
    """Else a second look at the copies would show some that were made, and `copied` say some that were not."""
    bench.lower(range(1, 9))
    request = bench.open([*range(1, 9), 9])
    table, copies = request.block_table.tolist(), request.copies
    for call in (lambda: request.append([5] * 4), lambda: request.reserve(13)):
        with pytest.raises(RequestError, match="2 copies are pending; do them, then copied"):
            call()
    assert (request.block_table.tolist(), request.copies, request.length) == (table, copies, 9)
    request.append(5)  # there is room in its last block
    bench.oracle.copy(copies)
    request.copied()
    request.append([5] * 4)
    bench.verify(request)


def test_a_hit_below_never_causes_a_refusal() -> None:
    cache = PrefixCache("radix", block_size=4, capacity=6, tiers={"host": 8})
    request = cache.open(range(24))
    request.computed(24)
    request.close()
    cache.evict(6)
    cache.spill().copied()
    other = cache.open(range(100, 116))
    assert cache.probe(range(24)).tiers == {"device": 0, "host": 20}
    assert cache.plan([{"tokens": range(24), "reserve": 4}])[0].cached == 8
    request = cache.open(range(24), reserve=4)
    assert (request.cached, len(request.copies)) == (8, 2), "as far as there is room"
    request.abort()
    other.close()
    assert cache.open(range(24), reserve=4).cached == 20


def test_what_is_loaded_was_used_now() -> None:
    cache = PrefixCache("radix", block_size=4, capacity=4, tiers={"host": 2})
    for first in (10, 20):
        request = cache.open(range(first, first + 4))
        request.computed(4)
        request.close()
    cache.evict(4)
    cache.spill().copied()
    for _ in range(2):
        reader = cache.open([10, 11, 12, 13, 1], store=False)
        assert reader.cached == 4
        reader.copied()
        reader.close()
    request = cache.open(range(30, 34))
    request.computed(4)
    request.close()
    cache.evict(4)
    cache.spill().copied()
    assert cache.probe([10, 11, 12, 13, 1]).cached == 4, "it was read twice"
    assert cache.probe([20, 21, 22, 23, 1]).cached == 0


@pytest.mark.parametrize("group", [0, 3, "x"])
def test_a_tier_below_has_no_groups(group: Any) -> None:
    cache = PrefixCache("radix", block_size=4, capacity=4, tiers={"host": 2})
    with pytest.raises(OptionError, match="a tier below the device has no groups"):
        cache.books(group, tier="host")


def test_a_block_below_hangs_from_its_own_parent_where_copies_are_kept() -> None:
    """The second request keeps its copy of the first block; both of its blocks leave, the other copy stays."""
    cache = PrefixCache("hash_chain", block_size=4, capacity=4, duplicates="keep", tiers={"host": 4})
    first, second = cache.open([1, 2, 3, 4]), cache.open(range(1, 9))
    first.computed(4)
    second.computed(8)
    second.close()
    first.close()
    _, _, events = cache.take_events()
    keys = [key for event in events if isinstance(event, Stored) for key in event.keys]
    cache.evict(2)
    cache.spill().copied()
    assert cache.probe([*range(1, 9), 9]).tiers == {"device": 4, "host": 4}
    assert cache._core.tiers is not None
    assert [(entry.key, entry.parent) for entry in cache._core.tiers.tier] == [(keys[1], keys[0])]


@pytest.mark.parametrize("design", ["radix", "hash_chain", "block_trie", "digest_chain", "naive"])
def test_explain_says_that_a_block_is_on_its_way(design: str) -> None:
    cache = PrefixCache(design, block_size=4, capacity=4, tiers={"host": 2})
    request = cache.open(range(8))
    request.computed(8)
    request.close()
    cache.evict(1)
    assert (cache.explain([*range(8), 9]).cached, cache.explain([*range(8), 9]).reason) == (4, "spilled")
    spills = cache.spill()
    assert cache.explain([*range(8), 9]).reason == "spilled"
    spills.copied()
    assert cache.explain([*range(8), 9]).reason == "complete"
