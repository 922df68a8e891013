"""Contract, isolation: what KV depends on besides the tokens keeps prompts apart, and nothing else does."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from prefixcache import Media, Scope, ScopeError
from tests.contract.bench import Bench

SCOPES = [
    None,
    Scope(adapter="x"),
    Scope(salt="x"),
    Scope(model="x"),
    Scope(adapter="x", salt="y"),
    Scope(adapter="xy"),
    Scope(salt="xy"),
    Scope(adapter="y", salt="x"),
    Scope(model="m", adapter="x"),
    Scope(model="mx"),
    Scope(adapter=0),
    Scope(salt=0),
    Scope(adapter=7),
    Scope(adapter="7"),
    Scope(adapter=b"7"),
]


def test_every_difference_of_scope_keeps_prompts_apart(make) -> None:
    bench = make(capacity=64)
    for number, scope in enumerate(SCOPES):
        assert [bench.found([1, 2, 3, 4], other) for other in SCOPES[number:]] == [0] * (len(SCOPES) - number)
        assert bench.run([1, 2, 3, 4, 5], scope) == 0
        assert bench.found([1, 2, 3, 4], scope) == 4


@pytest.mark.parametrize(
    "empty",
    [
        None,
        Scope(),
        Scope(adapter=""),
        Scope(salt=""),
        Scope(model="", adapter="", salt=""),
        Scope(adapter=None),
    ],
)
def test_empty_means_none(bench: Bench, empty: Scope | None) -> None:
    bench.run([1, 2, 3, 4, 5])
    assert bench.found([1, 2, 3, 4], empty) == 4
    bench.run([5, 6, 7, 8, 9], empty)
    assert bench.found([5, 6, 7, 8]) == 4
    assert bench.found([5, 6, 7, 8], Scope(salt="s")) == 0


def test_the_generation_of_none_is_the_current_one(bench: Bench) -> None:
    generation = bench.cache.new_generation()
    bench.run([1, 2, 3, 4, 5])
    assert bench.found([1, 2, 3, 4], Scope(generation=generation)) == 4
    assert bench.open([1, 2, 3, 4, 5]).scope.generation == generation


@pytest.mark.parametrize("field", ["model", "adapter", "salt"])
@pytest.mark.parametrize("wrong", [1.5, True, ["x"]], ids=repr)
def test_a_field_of_the_wrong_type_is_an_error(bench: Bench, field: str, wrong: object) -> None:
    with pytest.raises(ScopeError, match=field):
        bench.open([1, 2, 3], Scope(**{field: wrong}))
    assert bench.books() == (16, 0, 0, 0)


def test_media_belong_to_the_tokens_they_cover(bench: Bench) -> None:
    cat, dog = Media(b"cat", 4, 4), Media(b"dog", 4, 4)
    prompt = [1, 2, 3, 4, 0, 0, 0, 0, 5, 6, 7, 8]
    bench.run(prompt, media=[cat])
    assert bench.found(prompt, media=[cat]) == 12
    assert bench.found(prompt, media=[dog]) == 4
    assert bench.found(prompt) == 4, "the same tokens without a picture"
    assert bench.found(prompt, media=[Media(b"cat", 4, 4, offset=4)]) == 4, "another part of the picture"
    assert bench.run(prompt, media=[dog]) == 4


def test_two_prompts_share_up_to_the_first_picture_that_differs(bench: Bench) -> None:
    prompt = [0] * 12
    bench.run(prompt, media=[Media(b"cat", 0, 4), Media(b"cat", 4, 4), Media(b"dog", 8, 4)])
    assert bench.found(prompt, media=[Media(b"cat", 0, 4), Media(b"cat", 4, 4), Media(b"cow", 8, 4)]) == 8
    assert bench.found(prompt, media=[Media(b"cat", 0, 4), Media(b"cow", 4, 4), Media(b"dog", 8, 4)]) == 4
    assert bench.found(prompt, media=[Media(b"cow", 0, 4), Media(b"cat", 4, 4), Media(b"dog", 8, 4)]) == 0


def test_an_item_may_come_in_several_runs(bench: Bench) -> None:
    prompt = [0] * 8
    bench.run(prompt, media=[Media(b"cat", 0, 8)])
    assert bench.found(prompt, media=[Media(b"cat", 0, 3), Media(b"cat", 3, 5, offset=3)]) == 8
    assert bench.found(prompt, media=[Media(b"cat", 0, 3), Media(b"cat", 3, 5)]) == bench.floor(3)


def test_a_picture_that_begins_inside_a_block_is_part_of_it(bench: Bench) -> None:
    prompt = [1, 2, 3, 0, 0, 0, 0, 0]
    bench.run(prompt, media=[Media(b"cat", 3, 5)])
    assert bench.found(prompt, media=[Media(b"cat", 3, 5)]) == 8
    assert bench.found(prompt, media=[Media(b"dog", 3, 5)]) == bench.floor(3)
    assert bench.found(prompt, media=[Media(b"cat", 4, 4)]) == bench.floor(3)


@pytest.mark.parametrize(
    "media",
    [
        [{"digest": b"cat"}],
        [Media(b"", 0, 2)],
        [Media(b"cat", 0, 9)],
        [Media(b"cat", 1, 3), Media(b"dog", 2, 3)],
        [Media(b"cat", -1, 3)],
        ["cat"],
    ],
    ids=str,
)
def test_unclear_media_make_a_request_uncacheable_never_text_only(bench: Bench, media: list[object]) -> None:
    prompt = [1, 2, 3, 4, 5, 6, 7, 8]
    bench.run(prompt)
    assert bench.cache.probe([*prompt[:6]], media=media).cached == 0
    request = bench.open([*prompt[:6]], media=media)
    assert request.cached == 0
    request.computed(6)
    request.close()
    bench.run([9, 9, 9, 9, 9], media=[])
    assert bench.found([9, 9, 9, 9]) == 4
    assert bench.cache.books().idle == 3 + bench.setup.stores_tails, "it left nothing"


def test_extra_ids_belong_to_the_tokens_too(bench: Bench) -> None:
    prompt = [1, 2, 3, 4, 5, 6, 7, 8, 9]
    bench.run(prompt, extra_ids=[7] * 9)
    assert bench.cache.probe(prompt, extra_ids=[7] * 9).cached == 8
    assert bench.cache.probe(prompt, extra_ids=[7] * 4 + [8] * 5).cached == 4
    assert bench.cache.probe(prompt).cached == 0, "whether extra ids are used is part of it"
    with pytest.raises(ScopeError, match="extra_ids"):
        bench.open(prompt, extra_ids=[7] * 8)


PROGRAM = """
import sys
from prefixcache import Media, PrefixCache, Scope
cache = PrefixCache(sys.argv[1], block_size=2, capacity=64)
for scope in (None, Scope(adapter="x"), Scope(salt="s"), Scope(model="m", adapter="x", salt="s")):
    for media in ([], [Media(b"cat", 1, 2)]):
        request = cache.open([1, 2, 3, 4, 5, 6], scope, media=media)
        request.copied()
        request.computed(6)
        request.close()
for event in cache.take_events()[2]:
    for key in event.keys:
        print(key.hex())
"""


def test_the_same_prompt_has_the_same_key_in_every_process(design: str) -> None:
    outputs = set()
    for hash_seed in ("0", "1", "random"):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, design],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        outputs.add(done.stdout)
    (output,) = outputs
    keys = output.split()
    assert len(keys) == len(set(keys)) == 4 * (3 + 3), "no key stands for two prefixes, no picture for none"
