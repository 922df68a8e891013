"""Contract, "Signatures": the names that other programs are written against."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import prefixcache
from prefixcache import Media, OptionError, PrefixCache, Request, Scope, ScopeError, TokenError
from prefixcache.events import Cleared, Moved, Removed, Stored

CACHE = {
    "probe": ["tokens", "scope", "media", "extra_ids"],
    "open": [
        *("tokens", "scope", "media", "extra_ids", "priority", "ttl", "decode_priority", "decode_ttl"),
        *("read", "store", "reserve", "must_fit"),
    ],
    "open_batch": ["requests"],
    "pin": ["tokens", "scope"],
    "evict": ["n_blocks"],
    "reset": [],
    "new_generation": [],
    "end_step": [],
    "books": [],
    "stats": [],
    "check": [],
    "explain": ["tokens", "scope"],
    "take_events": [],
    "outline": [],
}
REQUEST = {
    "take_moves": [],
    "copied": [],
    "computed": ["n"],
    "append": ["tokens", "extra_ids"],
    "rewind": ["length"],
    "fork": [],
    "reserve": ["n"],
    "close": ["in_flight"],
    "abort": ["in_flight"],
    "preempt": ["in_flight"],
    "settled": [],
    "resume": ["append"],
}
ATTRIBUTES = ["cached", "tokens", "length", "state", "block_table", "tables", "copies", "computed_tokens"]
VALUES = {
    prefixcache.Copy: ["source", "target", "tokens", "group"],
    prefixcache.Books: ["free", "idle", "pinned", "quarantined"],
    prefixcache.Hit: ["cached", "need", "tiers", "reason"],
    Scope: ["model", "generation", "adapter", "salt"],
    Media: ["digest", "start", "length", "offset"],
    Stored: ["keys", "parent", "tokens", "scope"],
    Removed: ["keys"],
    Moved: ["keys", "tier"],
    Cleared: [],
    prefixcache.OutlineNode: ["parent", "tokens", "blocks", "pins", "keys"],
}


@pytest.mark.parametrize(("owner", "name"), [(PrefixCache, n) for n in CACHE] + [(Request, n) for n in REQUEST])
def test_a_call_takes_these_arguments_first(owner: type, name: str) -> None:
    expected = (CACHE if owner is PrefixCache else REQUEST)[name]
    given = list(inspect.signature(getattr(owner, name)).parameters)[1:]
    assert given[: len(expected)] == expected


@pytest.mark.parametrize("kind", VALUES, ids=lambda kind: kind.__name__)
def test_a_value_has_these_fields_first(kind: type) -> None:
    names = list(inspect.signature(kind).parameters)
    assert names[: len(VALUES[kind])] == VALUES[kind]


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_a_request_has_these_attributes(name: str) -> None:
    assert isinstance(getattr(Request, name), property)


def test_a_cache_is_made_of_a_design_and_named_options() -> None:
    parameters = inspect.signature(PrefixCache).parameters
    assert list(parameters)[:5] == ["design", "block_size", "capacity", "eviction", "clock"]
    named = [p.name for p in parameters.values() if p.kind is inspect.Parameter.KEYWORD_ONLY]
    assert named[:4] == ["block_size", "capacity", "eviction", "clock"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"design": "raddix"}, "radix"),
        ({"block_size": 0}, "block_size"),
        ({"block_size": True}, "block_size"),
        ({"capacity": 0}, "capacity"),
        ({"capacity": 1.5}, "capacity"),
        ({"eviction": "random"}, "lru"),
        ({"partial": "perhaps"}, "partial"),
        ({"evict_unit": "leaf"}, "evict_unit"),
        ({"colour": "red"}, "partial"),
        ({"clock": 7}, "clock"),
        ({"design": ["radix"]}, "radix"),
        ({"block_size": int}, "block_size"),
        ({"capacity": np.array([1, 2])}, "capacity"),
        ({"eviction": ""}, "eviction"),
        ({"eviction": ["lru"]}, "eviction"),
        ({"hash": ["sha256"]}, "hash"),
        ({"design": "hash_chain", "hash": ["sha256"]}, "sha256_cbor"),
        ({"child_hash": 7}, "child_hash"),
        ({"backoff": None}, "backoff"),
        ({"event_buffer": "many"}, "event_buffer"),
    ],
    ids=str,
)
def test_what_does_not_exist_is_an_error_that_says_what_does(arguments: dict[str, object], told: str) -> None:
    given = {"design": "radix", "block_size": 4, "capacity": 4} | arguments
    with pytest.raises(OptionError, match=told):
        PrefixCache(given.pop("design"), **given)


def test_an_unknown_preset_is_an_error_that_lists_the_presets() -> None:
    for name in ("vlllm", ["vllm-1"]):
        with pytest.raises(OptionError, match="expected one of sglang"):
            PrefixCache.preset(name, block_size=4, capacity=4)


@pytest.mark.parametrize(
    "arguments",
    [
        *({"priority": 101}, {"priority": -1}, {"priority": 1.5}, {"priority": [(4, 2, 50, None)]}, {"ttl": -1}),
        *({"reserve": -1}, {"reserve": int}, {"read": "no"}, {"store": 1}, {"must_fit": None}),
    ],
    ids=str,
)
def test_a_bad_argument_of_open_is_an_error_and_changes_nothing(bench, arguments: dict[str, object]) -> None:
    with pytest.raises(OptionError, match=next(iter(arguments))):
        bench.open([1, 2, 3], **arguments)
    assert bench.books() == (16, 0, 0, 0)


@pytest.mark.parametrize("extra_ids", [5, [1, 2], [1, 2, -3]], ids=str)
def test_bad_extra_ids_are_an_error_and_change_nothing(bench, extra_ids: object) -> None:
    with pytest.raises(ScopeError, match="extra_ids"):
        bench.open([1, 2, 3], extra_ids=extra_ids)
    assert bench.books() == (16, 0, 0, 0)


@pytest.mark.parametrize("media", [5, np.array([1, 2]), [Media("\ud800", 0, 9)]], ids=repr)
def test_media_of_any_kind_leave_a_request_served(bench, media: object) -> None:
    bench.open([1, 2, 3], media=media).abort()
    bench.drain()


@pytest.mark.parametrize("requests", [None, 5, np.array(3), [5], [{"tokens": [1], "colour": "red"}]], ids=str)
def test_a_batch_of_something_else_is_an_error_and_changes_nothing(bench, requests: object) -> None:
    for call in (bench.cache.open_batch, bench.cache.plan):
        with pytest.raises(OptionError, match="request"):
            call(requests)
    assert bench.books() == (16, 0, 0, 0)


@pytest.mark.parametrize(
    ("arguments", "error", "told"),
    [
        ({"tokens": [1, -1]}, TokenError, r"request 1 of the batch: tokens\[1\] is -1"),
        ({"tokens": []}, TokenError, "request 1 of the batch: the prompt is empty"),
        ({"tokens": [1], "scope": "mine"}, ScopeError, "request 1 of the batch: scope is 'mine'"),
        ({"tokens": [1], "ttl": -1}, OptionError, "request 1 of the batch: ttl is -1"),
        ({"tokens": [1], "colour": "red"}, OptionError, r"request 1 of the batch: open\(\) got .* 'colour'"),
        ({}, OptionError, r"request 1 of the batch: open\(\) missing .* 'tokens'"),
    ],
)
def test_an_error_in_a_batch_names_the_request(bench, arguments: dict[str, Any], error: type, told: str) -> None:
    for call in (bench.cache.open_batch, bench.cache.plan):
        with pytest.raises(error, match=told):
            call([{"tokens": [1, 2, 3]}, arguments])
    assert bench.books() == (16, 0, 0, 0)
