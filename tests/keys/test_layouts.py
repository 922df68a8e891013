"""vLLM's layouts: its published vectors, its order of extra keys, and canonical CBOR."""

from __future__ import annotations

import subprocess
import sys
import warnings

import numpy as np
import pytest

from prefixcache import PrefixCache, Scope
from prefixcache.errors import OptionError, ScopeError
from prefixcache.keys import Extras, Media, as_tokens, read_media
from prefixcache.keys.cbor import CborChain, _encode_tokens, encode, extra_keys
from prefixcache.keys.extras import prompt_embeds
from prefixcache.keys.layouts import make_chain

NONE_HASH = "9bd96a485ad84efdafb72ee48a1d7a69bcead0f8f0433173941b276b9581eef0"
BLOCKS = [
    "58d0879dff3800f65f8c5fd449d73048c0f7699dd238a03b84b146b151d55111",
    "e1bc29393a2da9fd798f35ff04d215f846aee6df4b803ce3d43b57df56b58fb1",
]
SALTED = "01466aa533549120b1e6803a48ef19676640af7ee5c524ca9679178595884d02"
_PLAIN = Scope()
SEED_42 = "0a99040f25d8a5f22275b867f403918da98c9d140eaea10f5319d4d1d84429df"


@pytest.fixture(autouse=True)
def no_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)


def keys(scope: Scope = _PLAIN, media: tuple[Media, ...] = (), lookahead: int = 0) -> list[str]:
    """Keys of the tokens 1..8 (9 with a lookahead) in blocks of 4."""
    chain = CborChain(4, lookahead)
    runs = read_media(media, 8)
    extras = Extras(runs) if runs else None
    tokens = as_tokens(range(1, 9 + lookahead))
    return [key.hex() for key in chain.blocks(chain.root(b""), tokens, 0, 2, extras, scope)]


def test_the_vectors_of_vllm() -> None:
    assert CborChain(4).root(b"any scope").hex() == NONE_HASH
    assert keys() == BLOCKS
    assert keys(Scope(salt="s"))[0] == SALTED
    low_64_bits = [int.from_bytes(bytes.fromhex(key)[-8:], "big") for key in BLOCKS]
    assert low_64_bits == [9561501211280363793, 15292913576410714033]


def test_the_seed_of_the_environment_is_the_seed_of_the_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "42")
    assert keys()[0] == SEED_42


@pytest.mark.parametrize("hash", ["sha256", "xxh3-128", "sha256_cbor"])
def test_equal_in_every_process(hash: str) -> None:
    program = (
        "from prefixcache.keys import as_tokens, Scope; from prefixcache.keys.layouts import make_chain\n"
        f"c = make_chain({hash!r}, 4); s = Scope(adapter='a=b', salt='s', generation=0)\n"
        "print(c.blocks(c.root(s.encode(0)), as_tokens(range(8)), 0, 2, None, s)[-1].hex())"
    )
    told = {subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout}
    chain, scope = make_chain(hash, 4), Scope(adapter="a=b", salt="s", generation=0)
    own = chain.blocks(chain.root(scope.encode(0)), as_tokens(range(8)), 0, 2, None, scope)[-1].hex()
    assert told == {own + "\n"}


def test_extra_keys_are_tagged_and_in_vllms_order() -> None:
    embeds = prompt_embeds([b"D"], 4, [False, False, False, True])
    runs = read_media([Media(b"pic", 1, 2, offset=3), *embeds], 4)
    scope = Scope(adapter="name=/path", salt="s", model="m", generation=2)
    found = extra_keys(scope, Extras(runs, bytes(32)), first=True, adapter=(("lora", "name", "/path"),))
    assert found == (
        ("lora", "name", "/path"),
        ("mm", "pic", -2),
        ("cache_salt", "s"),
        ("prompt_embeds", b"D", 3, 4, 3),
        ("model", "m"),
        ("generation", 2),
        ("extra_ids", bytes(32)),
    )
    later = extra_keys(scope, None, first=False, adapter=(("lora", "name", "/path"),))
    assert later == (("lora", "name", "/path"),)


def test_a_picture_counts_in_every_block_it_touches() -> None:
    plain, inside, from_one = keys(), keys(media=(Media("a", 5, 2),)), keys(media=(Media("a", 3, 2),))
    assert inside[0] == plain[0]
    assert inside[1] != plain[1]
    assert from_one[0] != plain[0]
    assert len({*plain, *inside, *from_one}) == 5


def test_prompts_that_differ_in_what_is_an_embedding_have_other_keys() -> None:
    masks = ([True, True, True, True], [True, True, True, False], [False, True, True, True], [True, False, True, True])
    found = {keys(media=prompt_embeds([b"D"], 4, mask))[0] for mask in masks}
    assert len(found) == len(masks)
    chain = make_chain("sha256", 4)
    extras = [Extras(read_media(prompt_embeds([b"D"], 4, mask), 4)) for mask in masks]
    assert len({chain.blocks(b"", as_tokens([0] * 4), 0, 1, extra)[0] for extra in extras}) == len(masks)


def test_an_embedding_without_a_digest_is_an_error() -> None:
    with pytest.raises(ScopeError, match=r"is_embedding\[5\]"):
        prompt_embeds([b"D"], 4, [False] * 5 + [True])


def test_embeddings_are_cut_at_blocks() -> None:
    media = prompt_embeds([b"a", b"b"], 4, [False, True, True, True, True, False])
    assert [(m.start, m.length, m.offset) for m in media] == [(1, 3, 1), (4, 1, 0)]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "f6"),
        (0, "00"),
        (23, "17"),
        (24, "1818"),
        (255, "18ff"),
        (256, "190100"),
        (65535, "19ffff"),
        (65536, "1a00010000"),
        (2**32 - 1, "1affffffff"),
        (2**32, "1b0000000100000000"),
        (2**64, "c249010000000000000000"),
        (-1, "20"),
        (-25, "3818"),
        (-(2**64) - 1, "c349010000000000000000"),
        ("", "60"),
        ("ü", "62c3bc"),
        (b"\x00\xff", "4200ff"),
        ((), "80"),
        ((1, ("a", None)), "8201826161f6"),
        (tuple(range(24)), "9818" + "".join(f"{i:02x}" for i in range(24))),
    ],
)
def test_canonical_cbor(value: object, expected: str) -> None:
    assert encode(value).hex() == expected  # type: ignore[arg-type]


def test_many_tokens_are_encoded_as_few_are() -> None:
    edges = [0, 23, 24, 255, 256, 65535, 65536, 2**32 - 1]
    tokens = np.random.default_rng(5).choice(edges, 4096).astype("<u4")
    bodies = list(_encode_tokens(tokens.tobytes(), 0, 4096, 16))
    assert bodies == [b"".join(map(encode, block.tolist())) for block in tokens.reshape(-1, 16)]


def test_the_study_hash_is_pythons_own() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        chain = make_chain("builtin", 4)
    first, second = chain.blocks(chain.root(b""), as_tokens(range(8)), 0, 2, None, Scope(generation=0))
    h0 = hash((True, hash("None"), 0, 1, 2, 3, None))
    h1 = hash((False, h0, 4, 5, 6, 7, None))
    assert [int.from_bytes(key, "big", signed=True) for key in (first, second)] == [h0, h1]
    assert chain.blocks(chain.root(b""), as_tokens(range(8)), 0, 2, None, Scope(salt="s"))[0] != first


def test_an_unknown_name_is_told_what_there_is() -> None:
    with pytest.raises(OptionError, match="sha256, xxh3-128, sha256_cbor, builtin"):
        make_chain("md5", 4)


@pytest.mark.parametrize("value", ["text", 3.5, None, bytearray(b"key")])
def test_a_function_that_gives_no_hash_is_named(value: object) -> None:
    with pytest.raises(OptionError, match=r"hash gives .*: expected a function from bytes to bytes or int"):
        PrefixCache("hash_chain", block_size=4, capacity=8, hash=lambda message: value)


def test_a_function_that_fails_is_refused_before_anything_rests_on_it() -> None:
    with pytest.raises(OptionError, match="hash fails on bytes: ZeroDivisionError"):
        PrefixCache("hash_chain", block_size=4, capacity=8, hash=lambda message: 1 // 0)


@pytest.mark.parametrize("value", [0, -1, 2**127, -(2**127) - 1, 2**512, np.int64(-3)])
def test_a_function_may_give_any_integer(value: int) -> None:
    chain = make_chain(lambda message: value, 4)
    assert int.from_bytes(chain.root(b""), "little", signed=True) == value
    assert len(chain.root(b"")) >= 16
