"""The chain memo: right for every prompt, hashes only what no remembered prompt has, bounded."""

from __future__ import annotations

import random

from prefixcache.keys import ChainHash, ChainMemo, as_tokens


def test_equal_to_the_plain_chain_and_bounded():
    rng = random.Random(5)
    chain, plain = ChainHash("sha256", 4), ChainHash("sha256", 4)
    memo = ChainMemo(chain, most_tokens=400)
    roots = [chain.root(b"a"), chain.root(b"b")]
    prompts = [[rng.randrange(3) for _ in range(rng.randrange(4, 60))] for _ in range(20)]
    for _ in range(2000):
        base = rng.choice(prompts)
        prompt = base[: rng.randrange(4, len(base) + 1)] + [rng.randrange(3) for _ in range(rng.randrange(12))]
        tokens, root = as_tokens(prompt), rng.choice(roots)
        blocks = rng.randrange(len(prompt) // 4 + 1)
        keys = memo.keys(root, tokens, blocks, None)
        assert keys == plain.blocks(root, tokens, 0, blocks, None)
        keys.append(b"the caller may change its list")
        assert sum(len(text) // 4 for _, text in memo._keys) == memo._tokens <= 400 + 60 + 12
        assert sorted(text for _, text in memo._keys) == sorted(t for texts in memo._sorted.values() for t in texts)


def test_a_shared_prefix_is_hashed_once():
    chain = ChainHash("sha256", 16)
    memo = ChainMemo(chain)
    root = chain.root(b"")
    system = list(range(2048))
    for user in range(50):
        memo.keys(root, as_tokens(system + [9_000 + user] * 64), 132, None)
    assert chain.hashed == 132 + 49 * 4
