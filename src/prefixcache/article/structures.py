"""Claims C1 to C10: what each data structure costs and where it can hit (introduction, sections 1 and 2)."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable

import numpy as np

from prefixcache.article.claim import CONDITION, HOLDS, WRONG, Finding, Measured, Row, claim, microseconds
from prefixcache.article.serving import LIMITLESS, THE_FOUR, serve
from prefixcache.cache import PRESETS, PrefixCache


def saved_tokens(prefix: int, article_ratio: float) -> Finding:
    """What a cached prefix saves, in tokens to compute, by how much is new behind it."""
    rows: list[Row] = [("new behind the prefix", "computed cold", "computed warm", "cold : warm")]
    for new in (8, 32, 128, round(prefix / (article_ratio - 1)), 2048):
        cache = PrefixCache("radix", block_size=1, capacity=LIMITLESS, events=False)
        shared = list(range(prefix))
        cold = prefix + new - serve(cache, shared + [70_000] * new)
        warm = prefix + new - serve(cache, shared + [80_000] * new)
        rows.append((new, cold, warm, f"{cold / warm:.1f}"))
    return Finding(
        CONDITION,
        "what is saved is the computation of the prefix, so the ratio is set by how much is new behind it and by the "
        f"model. If time went by tokens alone, {article_ratio:.1f} times would be {rows[4][0]} new tokens; "
        f"`prefixcache ttft --prefix {prefix}` measures cold, warm and the floor on a real model",
        table=tuple(rows),
    )


@claim("C1", "introduction", "a 2,048-token system prompt: time to first token falls from 450 ms to 95 ms, 4.7 times")
def system_prompt() -> Finding:
    return saved_tokens(2048, 450 / 95)


_LENGTHS = (2047, 2048, 2049, 2050)


def unaligned_table() -> tuple[Row, ...]:
    """Tokens reused around a block boundary: of a shared beginning, and of a prompt that comes again."""
    rows: list[Row] = [("design", "block", *_LENGTHS, *(f"{length:,} again" for length in _LENGTHS))]
    for size in (1, 16, 32, 64, 128):
        for name in ("radix", "sglang") if size == 1 else (*THE_FOUR, *PRESETS):
            shared = (_reused(name, size, length, other_end=True) for length in _LENGTHS)
            rows.append((name, size, *shared, *(_reused(name, size, length, other_end=False) for length in _LENGTHS)))
    return tuple(rows)


def _reused(name: str, block_size: int, length: int, other_end: bool) -> int:
    make: Callable[..., PrefixCache] = PrefixCache.preset if name in PRESETS else PrefixCache
    cache = make(name, block_size=block_size, capacity=LIMITLESS)
    beginning = list(range(length))
    serve(cache, beginning + ([70_000] * 200 if other_end else []))
    cache.end_step()
    return serve(cache, beginning + ([80_000] * 200 if other_end else []))


@claim(
    "C2", "introduction", "2,049 tokens at block size 128: whether the one-token tail is reused depends on the design"
)
def one_token_tail() -> Finding:
    table = unaligned_table()
    at = {(row[0], row[1]): dict(zip(table[0], row, strict=True)) for row in table[1:]}
    return Finding(
        HOLDS,
        f"of a shared beginning of 2,049 tokens radix reuses {at['radix', 1][2049]:,} at page 1, hash_chain at 128 "
        f"{at['hash_chain', 128][2049]:,}, block_trie and digest_chain {at['digest_chain', 128][2049]:,} by copying "
        "one token. Of a prompt that comes again whole nobody reuses the last token: logits need one computed token",
        table=table,
    )


@claim("C3", "1", "a plain token trie needs 32K nodes for a 32K sequence and chases pointers")
def token_trie() -> Finding:
    tokens = np.arange(32_768, dtype=np.uint32)
    rows: list[Row] = [("design", "block", "nodes", "bytes", "lookup, us")]
    blocks = {"token_trie": 1, "radix": 1, "hash_chain": 16, "block_trie": 32, "digest_chain": 32}
    for name, block_size in blocks.items():
        tracemalloc.start()
        try:
            cache = PrefixCache(name, block_size=block_size, capacity=LIMITLESS, events=False)
            serve(cache, tokens)
            size, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        lookup = microseconds(lambda cache=cache: cache.probe(tokens), 5)  # type: ignore[misc]
        rows.append((name, block_size, len(cache.outline()), Measured(size), lookup))
    return Finding(
        HOLDS,
        "a node, with a dict of children, for each of 32,768 tokens, and as many steps to find them again. The other "
        "designs keep a run of tokens, or a block, in a node",
        table=tuple(rows),
    )


@claim("C4", "1", "a compressed radix tree has at most as many nodes as leaves")
def nodes_and_leaves() -> Finding:
    rows: list[Row] = [("prompts", "leaves", "nodes with the root", "2 x leaves - 1")]
    choices = [[t for bit in range(4) for t in (2 * bit + (i >> bit & 1), 99)] for i in range(16)]
    turns = [list(range(10 * turn)) for turn in range(1, 11)]
    for told, name, prompts in (
        ("16 over four binary choices", "radix", choices),
        ("10 turns of one chat, radix", "radix", turns),
        ("10 turns of one chat, preset sglang", "sglang", turns),
    ):
        make: Callable[..., PrefixCache] = PrefixCache.preset if name in PRESETS else PrefixCache
        cache = make(name, block_size=1, capacity=LIMITLESS)
        for prompt in prompts:
            serve(cache, prompt)
        outline = cache.outline()
        inner = {node.parent for node in outline}
        leaves = sum(place not in inner for place in range(len(outline)))
        rows.append((told, leaves, len(outline) + 1, 2 * leaves - 1))
    return Finding(
        WRONG,
        "a tree whose inner nodes all branch has up to 2 x leaves - 1 nodes. And SGLang's do not all branch: a node "
        "also ends where a prompt ended, so the turns of one chat are a chain of nodes with one leaf",
        table=tuple(rows),
    )


@claim("C5", "1, 2", "a split is the price of any-token precision")
def split() -> Finding:
    rows: list[Row] = [("page", "nodes after the first prompt", "after the second", "tokens shared")]
    for block_size in (1, 4):
        cache = PrefixCache("radix", block_size=block_size, capacity=LIMITLESS)
        nodes = []
        for tail in ([1, 2, 3, 4], [1, 2, 3, 9]):
            cached = serve(cache, [7, 7, 7, 7, *tail])
            nodes.append(len(cache.outline()))
        rows.append((block_size, *nodes, cached))
    return Finding(
        HOLDS,
        "two prompts of 8 tokens that part at their eighth: the node is cut where they part, at page 4 at the page "
        "boundary before. A split costs the copy of one edge; a hit needs it, whatever the page",
        table=tuple(rows),
    )


@claim("C6", "1", "a hash lookup is O(1) but knows only full blocks")
def full_blocks() -> Finding:
    cache = PrefixCache("hash_chain", block_size=16, capacity=LIMITLESS)
    serve(cache, range(100))
    shared = (15, 16, 31, 95, 96, 100)
    hits = [cache.probe([*range(length), 999]).cached for length in shared]
    rng = random.Random(6)
    times = []
    for blocks in (1_000, 100_000):
        keys = [rng.randbytes(32) for _ in range(blocks)]
        cached, asked = dict.fromkeys(keys, 0), keys[:256]
        together = microseconds(lambda cached=cached, asked=asked: [key in cached for key in asked])  # type: ignore[misc]
        times.append(Measured(together / len(asked)))
    return Finding(
        HOLDS,
        "of n shared tokens 16 x floor(n / 16) hit. One lookup costs much the same among a hundred times as many "
        "blocks; a prompt needs one per block, or log2 of them by bisection, and first its hashes",
        (
            (f"cached of {', '.join(map(str, shared))} shared tokens", hits),
            ("lookup among 1,000 blocks, us", times[0]),
            ("lookup among 100,000 blocks, us", times[1]),
        ),
    )


class _Counted:
    """A routing hash that counts how often it is asked: once per lookup of a child."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, page: bytes) -> int:
        self.asked += 1
        return hash(page)


def _chain_of_nodes(block_size: int, nodes: int, tokens: int, counted: _Counted | None) -> PrefixCache:
    """A radix tree in which the first `tokens` token ids lie in as many nodes behind each other."""
    cache = PrefixCache("radix", block_size=block_size, capacity=LIMITLESS, events=False, child_hash=counted)
    step = tokens // nodes
    ids = np.arange(tokens, dtype=np.uint32)
    for end in range(step, tokens + 1, step):
        serve(cache, np.append(ids[:end], np.full(block_size, 9_000_000 + end, np.uint32)))
    return cache


@claim("C7", "2", "child_key routing: one dict lookup per node on the first page, then a token comparison")
def routing() -> Finding:
    counted = _Counted()
    cache = _chain_of_nodes(1, 10, 1000, counted)
    counted.asked = 0
    cached = cache.probe([*range(1000), 9]).cached
    return Finding(
        HOLDS,
        "each node on the way is found by the tokens of its first page, then its whole edge is compared. The key is "
        "those tokens themselves, in SGLang too, not a hash of them as the article's comment says",
        (("tokens matched through 10 nodes", cached), ("dict lookups", counted.asked)),
    )


@claim("C8", "2", "a child_key collision cannot make a wrong hit, it only costs a comparison")
def collisions() -> Finding:
    cache = PrefixCache("radix", block_size=2, capacity=LIMITLESS, child_hash=lambda page: 7)
    prompts = [[i, i + 1, i + 2, i + 3, 0] for i in range(0, 200, 10)]
    by_hash: dict[int, list[int]] = {}
    for prompt in prompts:
        serve(cache, prompt)
        by_hash[7] = prompt
    right = [cache.probe([*prompt[:4], 999]).cached for prompt in prompts]
    return Finding(
        CONDITION,
        "true of the lookup. But a dict whose keys are the bare hashes lets one child overwrite the other, and what "
        "it held is lost. Keyed by the page itself, all stay reachable under one hash",
        (
            ("children of which all hashes are equal", len(prompts)),
            ("hits through them", sorted(set(right))),
            ("hit of a stranger", cache.probe([500, 501, 502, 503]).cached),
            ("children left in a dict keyed by the hash", len(by_hash)),
        ),
    )


@claim("C9", "2", "lookup costs O(P) dict lookups, P pages, and O(k) comparison")
def lookup_cost() -> Finding:
    tokens = np.arange(32_768, dtype=np.uint32)
    rows: list[Row] = [("page", "pages", "nodes on the path", "dict lookups", "lookup of 32,768 tokens, us")]
    for block_size in (1, 16):
        for nodes in (1, 64, 256):
            counted = _Counted()
            cache = _chain_of_nodes(block_size, nodes, 32_768, counted)
            counted.asked = 0
            cache.probe(tokens)
            plain = _chain_of_nodes(block_size, nodes, 32_768, None)
            time = microseconds(lambda cache=plain: cache.probe(tokens), 7)  # type: ignore[misc]
            rows.append((block_size, 32_768 // block_size, nodes, counted.asked, time))
    return Finding(
        CONDITION,
        "the dict lookups are one per node on the path, which is at most one per page and mostly far less; the "
        "comparison goes over the matched tokens once, whatever the nodes",
        table=tuple(rows),
    )


@claim("C10", "2", "any page boundary can hit")
def boundaries() -> Finding:
    rng = random.Random(10)
    checked = 0
    for block_size in (1, 4, 16):
        cache = PrefixCache("radix", block_size=block_size, capacity=LIMITLESS)
        serve(cache, range(500))
        for shared in rng.sample(range(1, 500), 200):
            cached = cache.probe([*range(shared), 9_999, 9_998]).cached
            if cached != shared // block_size * block_size:
                return Finding(WRONG, f"of {shared} shared tokens at page {block_size} {cached} hit")
            checked += 1
    return Finding(HOLDS, "a shared beginning hits down to its last page boundary", (("beginnings tried", checked),))
