"""Scopes and extras: typed, length-delimited, prefix-free; equal in every process."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys

import pytest

from prefixcache.errors import ScopeError
from prefixcache.keys import ChainHash, Extras, Media, Scope, as_tokens, common_extras, pack_extra_ids, read_media

FIELDS = [None, 0, 1, -1, "0", "a", "ab", b"a", 2**70]


def test_no_encoding_is_equal_to_or_the_beginning_of_another():
    scopes = {
        Scope(model, generation, adapter, salt)
        for model in ("", "m", 0)
        for generation in (0, 1)
        for adapter, salt in itertools.product(FIELDS, FIELDS)
    }
    encodings = sorted(scope.encode(0, ids) for scope in scopes for ids in (False, True))
    assert len(set(encodings)) == 2 * len(scopes)
    assert not any(b.startswith(a) for a, b in itertools.pairwise(encodings))


def test_a_scope_is_read_back_from_its_encoding():
    for model, adapter, salt in itertools.product(("", "m", 0), FIELDS, FIELDS):
        for ids in (False, True):
            scope = Scope(model, 7, adapter, salt)
            assert Scope.decode(scope.encode(0, ids)) == (scope, ids)


def test_empty_means_none():
    assert Scope(adapter="", salt="") == Scope() == Scope(adapter=None)
    assert Scope(adapter=0) != Scope()
    assert Scope(generation=None).encode(3) == Scope(generation=3).encode(9)


@pytest.mark.parametrize(
    "bad", [{"adapter": 1.5}, {"salt": True}, {"model": []}, {"generation": -1}, {"generation": True}]
)
def test_a_bad_field_is_named(bad):
    with pytest.raises(ScopeError, match=f"scope.{next(iter(bad))}"):
        Scope(**bad)


def test_keys_are_equal_in_every_process():
    program = (
        "from prefixcache.keys import *\n"
        "chain = ChainHash('sha256', 4)\n"
        "for scope in (Scope(), Scope(adapter='x'), Scope(salt='s')):\n"
        "    print([k.hex() for k in chain.blocks(chain.root(scope.encode(0)), as_tokens(range(1, 9)), 0, 2, None)])\n"
    )
    outputs = set()
    for seed in ("0", "1", "random"):
        env = {**os.environ, "PYTHONHASHSEED": seed}
        run = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True)
        outputs.add(run.stdout)
    assert len(outputs) == 1
    assert len(set(outputs.pop().split("\n"))) == 4  # three scopes, three chains, and the end


def test_no_token_list_imitates_a_scope_or_a_picture():
    """Tokens that spell the bytes of another message must not give its key."""
    chain = ChainHash("sha256", 8)
    salted = chain.root(Scope(salt="s").encode(0))
    spelled = as_tokens([int.from_bytes(salted[i : i + 4], "little") for i in range(0, 32, 4)])
    plain = chain.root(Scope().encode(0))
    tokens = as_tokens(range(8))
    assert chain.blocks(plain, spelled + tokens, 0, 2, None)[1] != chain.blocks(salted, tokens, 0, 1, None)[0]
    picture = Extras(((0, 8, b"cat", 0),))
    assert chain.block(plain, tokens, picture) != chain.block(plain, tokens, None)


def test_runs_of_one_item_are_one_run():
    whole = read_media([Media("d", 2, 6)], 10)
    parts = read_media([Media("d", 5, 3, offset=3), Media("d", 2, 3)], 10)
    assert whole == parts == ((2, 8, b"d", 0),)
    assert read_media([Media("d", 2, 3), Media("d", 5, 3)], 10) != whole  # the item begins anew


@pytest.mark.parametrize(
    "bad",
    [
        [{"digest": "d", "start": 1}],
        [Media("", 0, 1)],
        [Media("d", -1, 1)],
        [Media("d", 0, 0)],
        [Media("d", 9, 2)],
        [Media("d", 0, 2), Media("e", 1, 2)],
        [Media("d", 0, 1, offset=-1)],
        [Media(None, 0, 1)],
        ["picture"],
        7,
    ],
)
def test_malformed_media_is_an_error(bad):
    with pytest.raises(ScopeError, match="media"):
        read_media(bad, 10)


def test_common_extras_against_the_definition():
    """Position by position: the (digest, offset) or nothing, and the extra id."""
    cases = [
        (),
        ((0, 4, b"a", 0),),
        ((0, 4, b"a", 1),),
        ((2, 4, b"a", 0),),
        ((2, 6, b"a", 0),),
        ((0, 2, b"a", 0), (2, 4, b"b", 0)),
        ((0, 2, b"a", 0), (3, 4, b"b", 0)),
        ((0, 2, b"a", 0), (2, 4, b"a", 5)),
    ]

    def at(extras, i):
        run = next(((d, o + i - a) for a, b, d, o in extras.runs if a <= i < b), None)
        return run, extras.ids[8 * i : 8 * i + 8]

    for (a, b), ids in itertools.product(itertools.product(cases, cases), [None, 0, 3]):
        mine = Extras(a, pack_extra_ids(range(8), 8) if ids is not None else b"")
        theirs = Extras(b, pack_extra_ids([*range(ids), *([99] * (8 - ids))], 8) if ids is not None else b"")
        expected = next((i for i in range(8) if at(mine, i) != at(theirs, i)), 8)
        assert common_extras(mine, theirs, 8) == expected, (mine, theirs)
        for most in range(9):
            assert common_extras(mine, theirs, most) == min(expected, most)


@pytest.mark.parametrize("bad", [[1, 2], [1, 2, -1], [1, 2, True], [1, 2, 2**64], [1, 2, "x"]])
def test_bad_extra_ids_are_named(bad):
    with pytest.raises(ScopeError, match="extra_ids"):
        pack_extra_ids(bad, 3)
