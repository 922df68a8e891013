"""Events are values: they compare, copy and travel, and do not change."""

from __future__ import annotations

import copy
import pickle
from dataclasses import FrozenInstanceError

import pytest

from prefixcache import DESIGNS, PrefixCache, Scope, Stored, TokenError


@pytest.mark.parametrize("design", DESIGNS)
def test_an_event_of_the_cache_equals_one_made_of_the_same_parts(design: str) -> None:
    cache = PrefixCache(design, block_size=2, capacity=8)
    request = cache.open([7, 0, 2**32 - 1, 1])
    request.computed(4)
    request.close()
    stored = [event for event in cache.take_events()[2] if isinstance(event, Stored)]
    assert [token for event in stored for token in event.tokens] == [7, 0, 2**32 - 1, 1]
    for event in stored:
        same = Stored(event.keys, event.parent, list(event.tokens), event.scope, event.group)
        assert same == event and hash(same) == hash(event)
        for other in (copy.copy(event), copy.deepcopy(event), pickle.loads(pickle.dumps(event))):
            assert other == event and other.tokens == event.tokens


def test_events_differ_in_any_of_their_parts() -> None:
    event = Stored((b"a",), None, (1, 2), Scope())
    others = [
        Stored((b"b",), None, (1, 2), Scope()),
        Stored((b"a",), b"a", (1, 2), Scope()),
        Stored((b"a",), None, (1, 3), Scope()),
        Stored((b"a",), None, (1, 2), Scope(salt="s")),
        Stored((b"a",), None, (1, 2), Scope(), 1),
    ]
    assert len({event, *others}) == 6
    assert event != ((b"a",), None, (1, 2), Scope(), 0)


def test_an_event_does_not_change_and_says_what_it_is() -> None:
    event = Stored((b"a",), None, (1, 2), Scope())
    for name in ("keys", "tokens", "anything"):
        with pytest.raises(FrozenInstanceError, match=name):
            setattr(event, name, ())
    assert "tokens=(1, 2)" in repr(event)
    match event:
        case Stored(keys, parent, tokens):
            assert (keys, parent, tokens) == ((b"a",), None, (1, 2))


def test_a_broken_buffer_is_refused_and_nothing_is_deleted() -> None:
    with pytest.raises(TokenError, match="3 bytes"):
        Stored((b"a",), None, b"abc", Scope())
    event = Stored((b"a",), None, (1, 2), Scope())
    with pytest.raises(FrozenInstanceError):
        del event.keys
    assert event.keys == (b"a",)


@pytest.mark.parametrize("design", sorted(DESIGNS))
def test_a_full_buffer_drops_the_oldest_events_and_the_numbers_say_so(design: str) -> None:
    cache = PrefixCache(design, block_size=4, capacity=8, event_buffer=1)
    for first in (10, 20, 30):
        request = cache.open(range(first, first + 5))
        request.computed(5)
        request.close()
    _, sequence, events = cache.take_events()
    assert len(events) == 1, "the newest one is kept"
    assert sequence >= 2, "the gap shows in the number"
    assert isinstance(events[0], Stored) and events[0].tokens[0] in (30, 34)
    assert cache.take_events()[1:] == (sequence + 1, [])
