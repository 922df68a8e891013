"""Contract, events: what they say, in what order, and that they say all."""

from __future__ import annotations

import pytest

from prefixcache import OptionError, Scope
from prefixcache.events import Cleared, Removed, Stored
from tests.contract.bench import Bench


def stored(bench: Bench) -> list[Stored]:
    events = bench.cache.take_events()[2]
    assert all(isinstance(event, Stored) for event in events), events
    return list(events)


def test_stored_tells_keys_parent_tokens_and_scope(bench: Bench) -> None:
    request = bench.step(bench.open([7] * 12 + [8], Scope(salt="s")))
    events = stored(bench)
    keys = [key for event in events for key in event.keys]
    assert len(set(keys)) == 3
    assert [token for event in events for token in event.tokens] == [7] * 12
    parent = None
    for event in events:
        assert event.parent == parent
        assert (event.scope.model, event.scope.adapter or "", event.scope.salt) == ("", "", "s")
        assert event.scope.generation == request.scope.generation
        parent = event.keys[-1]


def test_only_what_is_new_is_stored_behind_its_parent(bench: Bench) -> None:
    bench.run([1, 2, 3, 4, 5, 6, 7, 8])
    known = [key for event in stored(bench) for key in event.keys]
    bench.run([1, 2, 3, 4, 9, 9, 9, 9])
    (event,) = stored(bench)
    assert (event.parent, len(event.keys), event.tokens) == (known[0], 1, (9, 9, 9, 9))


def test_a_key_is_stored_once_however_many_compute_it(bench: Bench) -> None:
    first, second = bench.open(range(1, 9)), bench.open(range(1, 9))
    bench.step(first)
    assert sum(len(event.keys) for event in stored(bench)) == 2
    bench.step(second)
    second.close()
    first.close()
    assert stored(bench) == []


def test_a_key_is_removed_once_when_it_is_no_longer_findable(bench: Bench) -> None:
    bench.run([1, 2, 3, 4, 5, 6, 7, 8])
    keys = [key for event in stored(bench) for key in event.keys]
    bench.cache.evict(1)
    assert bench.cache.take_events()[2] == [Removed((keys[1],))]
    bench.cache.evict(1)
    assert bench.cache.take_events()[2] == [Removed((keys[0],))]


def test_the_same_prefix_has_the_same_key_again(bench: Bench) -> None:
    bench.run([1, 2, 3, 4])
    (first,) = stored(bench)
    bench.cache.evict(1)
    bench.cache.take_events()
    bench.run([1, 2, 3, 4])
    assert stored(bench) == [first]


def test_a_reset_emits_cleared_alone(bench: Bench) -> None:
    bench.run(range(1, 13))
    bench.cache.take_events()
    bench.cache.reset()
    assert bench.cache.take_events()[2] == [Cleared()]


def test_new_weights_remove_all_keys(bench: Bench) -> None:
    bench.run(range(1, 13))
    keys = {key for event in stored(bench) for key in event.keys}
    bench.cache.new_generation()
    removed = bench.cache.take_events()[2]
    assert all(isinstance(event, Removed) for event in removed)
    assert sorted(key for event in removed for key in event.keys) == sorted(keys)
    bench.drain()
    assert bench.cache.take_events()[2] == [], "removed once, not again when their blocks go"


def test_events_are_numbered_without_gaps(bench: Bench) -> None:
    epoch, first, events = bench.cache.take_events()
    position = first + len(events)
    for start in (1, 20, 40):
        bench.run(range(start, start + 9))
        bench.cache.evict(1)
        again, first, events = bench.cache.take_events()
        assert (again, first) == (epoch, position)
        position += len(events)
        assert bench.cache.take_events() == (epoch, position, [])


def test_a_cache_without_events_says_so_when_asked_for_them(make) -> None:
    bench = make(events=False)
    bench.run(range(1, 13))
    assert bench.cache.evict(3) == 3
    with pytest.raises(OptionError, match="events"):
        bench.cache.take_events()


@pytest.mark.parametrize("length", [1, 3, 4, 5, 8])
def test_token_lists_and_key_lists_agree(bench: Bench, length: int) -> None:
    bench.run(range(length))
    for event in stored(bench):
        full = len(event.keys) * 4
        assert full - 4 < len(event.tokens) <= full
        assert len(event.tokens) == full or bench.setup.stores_tails


def test_all_that_was_stored_is_removed_in_the_end(bench: Bench) -> None:
    for tail in (5, 6, 7):
        bench.run([1, 2, 3, 4, tail, tail, tail, tail, tail])
    bench.drain()
    held: set[bytes] = set()
    for event in bench.cache.take_events()[2]:
        if isinstance(event, Stored):
            assert not held & set(event.keys)
            held |= set(event.keys)
        else:
            assert held >= set(event.keys)
            held -= set(event.keys)
    assert held == set()
