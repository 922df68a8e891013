"""Claims C17 to C21 and C26 to C28: TensorRT-LLM's block keys, partial matching and digests (sections 4 and 5)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np

from prefixcache.article.claim import CONDITION, HOLDS, WRONG, Finding, Row, claim, microseconds
from prefixcache.article.serving import LIMITLESS, serve
from prefixcache.cache import PrefixCache
from prefixcache.designs.groups import Full, Recurrent, Window
from prefixcache.events import Stored
from prefixcache.keys import Media, Scope


@claim("C17", "4.1", "BlockKey: any differing dimension means 0 matching tokens")
def dimensions() -> Finding:
    tokens = list(range(1, 10))
    picture, other_picture = [Media(b"cat", 0, 4)], [Media(b"dog", 0, 4)]
    cases: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
        ("adapter", {"scope": Scope(adapter=1)}, {"scope": Scope(adapter=2)}),
        ("salt", {"scope": Scope(salt="a")}, {"scope": Scope(salt="b")}),
        ("picture over the first block", {"media": picture}, {"media": other_picture}),
        ("extra ids", {"extra_ids": [0] * 9}, {"extra_ids": [1] * 9}),
        ("whether extra ids are used", {"extra_ids": [0] * 9}, {}),
    ]
    rows: list[Row] = [("dimension", "cached when equal", "cached when different")]
    for name, mine, other in cases:
        cache = PrefixCache.preset("trtllm", block_size=4, capacity=64)
        serve(cache, tokens, **mine)
        rows.append((name, cache.probe(tokens, **mine).cached, cache.probe(tokens, **other).cached))
    return Finding(
        HOLDS,
        "of 9 tokens 8 are reusable (the last one is computed), and none if anything else differs. The source has a "
        "fifth dimension: whether extra ids are used at all",
        table=tuple(rows),
    )


@claim("C18", "4.1", "one tree serves full, window and recurrent attention, recurrent under -1")
def one_tree() -> Finding:
    cache = PrefixCache("block_trie", block_size=4, capacity=64, groups=[Full(), Window(8), Recurrent(8)])
    request = cache.open(range(24))
    for end in (*request.checkpoints, 24):
        request.computed(end)
        request.copied()
    request.close()
    cached = [cache.books(group).idle for group in range(3)]
    return Finding(
        HOLDS,
        "a node of the source holds one value per window size and one for recurrent state under a sentinel: -1 in the "
        "tree's header, 0x80000001 in the manager's",
        (
            ("0x80000001 as a signed 32-bit number", int(np.uint32(0x80000001).astype(np.int32))),
            ("here, 24 tokens in blocks of 4 in one tree: full blocks, window blocks, states kept every 8", cached),
            ("cached of the same 24 tokens and one more", cache.probe([*range(24), 99]).cached),
            ("cached of a prompt that parts from them at the 19th", cache.probe([*range(18), 99]).cached),
        ),
        source_read=True,
    )


def partial_costs() -> tuple[Row, ...]:
    """CPU microseconds of a probe that ends in a partial match, by number of children; and of a plain scan."""
    rows: list[Row] = [("children", "block_trie, us", "digest_chain, us", "scan of all children, us")]
    for children in (1, 31, 32, 1024):
        row: list[Any] = [children]
        blocks = [[*range(16), *range(1000 + 16 * child, 1016 + 16 * child)] for child in range(children)]
        query = [*range(16), 7, 7, 7]
        for name in ("block_trie", "digest_chain"):
            cache = PrefixCache(name, block_size=32, capacity=LIMITLESS, events=False)
            for block in blocks:
                serve(cache, [*block, 1])
            row.append(microseconds(lambda cache=cache, query=query: cache.probe(query), 7))  # type: ignore[misc]
        row.append(microseconds(lambda blocks=blocks, query=query: _scan(blocks, query), 7))  # type: ignore[misc]
        rows.append(tuple(row))
    return tuple(rows)


def _scan(blocks: list[list[int]], query: list[int]) -> tuple[int, list[int]]:
    """The longest common beginning over all children, as the originals look for it."""
    best, longest = 0, blocks[0]
    for block in blocks:
        common = 0
        for ours, theirs in zip(query, block, strict=False):
            if ours != theirs:
                break
            common += 1
        if common > best:
            best, longest = common, block
    return best, longest


@claim("C19", "4.2", "exact matching is O(1), partial matching O(C), sorted by length")
def partial_cost() -> Finding:
    return Finding(
        CONDITION,
        "of the original, which scans all children and sorts them, equal ones in no fixed order. It need not be so: in "
        "token order the longest common beginning is at a neighbour, so an index of the children costs the same for "
        "any number of them; of equal ones the first inserted is taken",
        table=partial_costs(),
    )


@claim("C20", "4.2", "only the last block of a prompt can match partially")
def any_block() -> Finding:
    prompt = [1, 2, 3, 4, 5, 6, *range(99, 89, -1)]
    figures = []
    for name in ("block_trie", "digest_chain"):
        cache = PrefixCache(name, block_size=4, capacity=64)
        serve(cache, range(1, 33))
        figures.append((f"{name} at 4, cached of 16 tokens that part at the seventh", cache.probe(prompt).cached))
    return Finding(
        WRONG,
        "the first block without an exact node can, wherever it is: here the second of four, of which 2 tokens match",
        tuple(figures),
    )


def anchors(block_size: int, window: int, blocks: int) -> tuple[list[int], list[int]]:
    """Which missing block a later token would read, and which one truncates the match by the source's rule."""
    end = block_size * blocks
    read, truncating = [], []
    for block in range(1, blocks + 1):
        positions = range((block - 1) * block_size, block * block_size)
        if any(position > query - window for query in (end, end + 1) for position in positions):
            read.append(block)
        if end < block * block_size + window:
            truncating.append(block)
    return read, truncating


@claim("C21", "4.2", "a missing anchor block truncates the match")
def anchor() -> Finding:
    read, truncating = anchors(block_size=4, window=8, blocks=8)
    cache = PrefixCache("block_trie", block_size=4, capacity=64, groups=[Full(), Window(8)])
    serve(cache, range(32))
    cached = []
    for more in (6, 1):  # those that left the window first go first
        cache.evict(more, group=1)
        cached.append(cache.probe([*range(32), 99]).cached)
    return Finding(
        CONDITION,
        "only if it ends less than a window before the end of the match. What lies further back no layer of that "
        "window reads any more, and the source passes over it",
        (
            ("match of 8 blocks of 4, window 8: missing blocks that a later token reads", read),
            ("missing blocks that truncate the match in the source", truncating),
            ("here, cached of these 32 tokens with blocks 1 to 6 of the window missing, and with one more", cached),
        ),
        source_read=True,
    )


@claim("C26", "5", "a SHA-256 chain from a root with the LoRA id")
def digest_root() -> Finding:
    scopes = [Scope(), Scope(adapter=0), Scope(salt=0), Scope(adapter=0, salt=0), Scope(adapter=7, salt=11)]
    keys: set[bytes] = set()
    for scope in scopes:
        cache = PrefixCache("digest_chain", block_size=4, capacity=64)
        serve(cache, range(4), scope=scope)
        keys.update(key for event in cache.take_events()[2] if isinstance(event, Stored) for key in event.keys)
    return Finding(
        HOLDS,
        "and the salt is in the root too. No id is not the id 0",
        (("scopes", len(scopes)), ("different keys of one block of tokens in them", len(keys))),
    )


def _by_type(tokens: list[Any]) -> bytes:
    digest = hashlib.sha256()
    for token in tokens:
        digest.update(token.to_bytes(4, "little") if type(token) is int else token)
    return digest.digest()


def _by_isinstance(tokens: list[Any]) -> bytes:
    digest = hashlib.sha256()
    for token in tokens:
        digest.update(token.to_bytes(4, "little") if isinstance(token, int) else token)
    return digest.digest()


def _packed(tokens: list[Any]) -> bytes:
    return hashlib.sha256(np.array(tokens, dtype="<u4").tobytes()).digest()


@claim("C27", "5", "type() tests make the hashing fast path")
def type_tests() -> Finding:
    tokens: list[Any] = list(range(4096))
    assert _by_type(tokens) == _by_isinstance(tokens) == _packed(tokens)
    ways: dict[str, Callable[[list[Any]], bytes]] = {
        "token by token, type() is int": _by_type,
        "token by token, isinstance()": _by_isinstance,
        "packed into one buffer, then hashed": _packed,
    }
    return Finding(
        CONDITION,
        "the two tests cost nearly the same. What is slow is to test, convert and hash token by token at all: packed "
        "once, the same tokens give the same digest in a fraction of the time",
        tuple((f"4,096 tokens {name}, us", microseconds(lambda way=way: way(tokens), 7)) for name, way in ways.items()),  # type: ignore[misc]
    )


def partial_hits_under_fan_out(limit: int | None) -> int:
    """Hits of 12 tokens in the tail block, of 4,980 repeat requests for 20 prompts with 250 continuations each."""
    cache = PrefixCache("digest_chain", block_size=32, capacity=LIMITLESS, events=False, child_limit=limit)
    hits = 0
    for number in range(5000):
        prompt, continuation = number % 20, number // 20
        shared = range(1000 * prompt, 1000 * prompt + 76)  # two blocks and 12 tokens
        hits += serve(cache, [*shared, *range(50_000 + 50 * continuation, 50_040 + 50 * continuation)]) == 76
    return hits


@claim("C28", "5", "32 or more children: partial matching is off")
def child_limit() -> Finding:
    rows: list[Row] = [("children", "cached of 4 tokens, limit 32", "cached, no limit")]
    for children in (31, 32, 250):
        row: list[Any] = [children]
        for limit in (32, None):
            cache = PrefixCache("digest_chain", block_size=4, capacity=LIMITLESS, child_limit=limit)
            for child in range(children):
                serve(cache, [1, 2, 3, 100 + child, 5])
            row.append(cache.probe([1, 2, 3, 9]).cached)
        rows.append(tuple(row))
    with_limit, without = partial_hits_under_fan_out(32), partial_hits_under_fan_out(None)
    return Finding(
        HOLDS,
        "of the original. Under wide fan-out it loses most partial hits, here 88 %: the first 31 continuations of a "
        "prompt find each other, the others nothing. With an index of the children no limit is needed",
        (
            ("20 prompts with 250 continuations: partial hits, limit 32", with_limit),
            ("partial hits, no limit", without),
        ),
        tuple(rows),
    )
