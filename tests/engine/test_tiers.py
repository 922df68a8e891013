"""The engine over a host tier: KV that left the device comes back, and the answers are those of the model alone."""

from __future__ import annotations

from types import MappingProxyType

import numpy as np
import pytest
import torch

from prefixcache import Copy, OptionError
from prefixcache.engine import Engine, SamplingParams
from prefixcache.engine.kv_pool import KVPool, LayerShape
from tests.engine.small import all_given_back, answer, engine, small_model

BLOCK, TOKENS, BELOW = 8, 8 * 24, 64


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
@pytest.mark.parametrize("design", ["radix", "hash_chain", "block_trie", "digest_chain", "trtllm"])
def test_answers_are_the_same_and_more_is_reused(family: str, design: str, seed: int) -> None:
    random = np.random.default_rng(seed)
    prompts = [random.integers(3, 500, 60) for _ in range(6)]
    answers, stats = [], []
    for tiers in (None, {"host": BELOW}):
        served = engine(family, tokens=TOKENS, block_size=BLOCK, design=design, tiers=tiers)
        got = []
        for _ in range(2):
            # Three run at once in room for less, so that they grow into blocks that others left.
            for at in (0, 3):
                got += map(answer, served.generate(prompts[at : at + 3], SamplingParams(max_tokens=12)))
        served.cache.check()
        assert all_given_back(served)
        answers.append(got)
        stats.append(served.cache.stats())
    assert answers[0] == answers[1]
    assert stats[1].hits > stats[0].hits
    assert min(stats[1].spilled_blocks, stats[1].loaded_blocks) > 0


def test_the_pool_copies_between_tiers() -> None:
    pool = KVPool(
        [LayerShape(2, 4, 3), None],
        blocks=2,
        block_size=4,
        dtype=torch.float32,
        device=torch.device("cpu"),
        host_blocks=3,
    )
    keys, values = pool.keys[0], pool.values[0]
    assert keys is not None and values is not None
    keys += torch.arange(8)[:, None]
    values += 100 + torch.arange(8)[:, None]
    pool.copy([Copy(1, 2, 4, target_tier="host"), Copy(2, 0, 4, source_tier="host")])
    assert keys[0, :, 0].tolist() == [4, 5, 6, 7, 4, 5, 6, 7]
    assert values[1, :, 0].tolist() == [104, 105, 106, 107] * 2
    assert pool.nbytes == 8 * 2 * 7 * 4, "the memory of the device alone"


@pytest.mark.parametrize("tiers", [{"disk": 4}, {"host": 0}, {"host": "many"}, "host"])
def test_bad_tiers_are_refused(tiers: object) -> None:
    with pytest.raises(OptionError, match="tiers"):
        Engine(small_model("llama"), block_size=BLOCK, memory=2**20, tiers=tiers)


def test_any_mapping_says_how_large_the_tier_is() -> None:
    served = engine("llama", tokens=TOKENS, block_size=BLOCK, tiers=MappingProxyType({"host": BELOW}))
    random = np.random.default_rng(7)
    for _ in range(4):
        served.generate([random.integers(3, 500, 100)], SamplingParams(max_tokens=2))
    assert served.cache.stats().spilled_blocks > 0
    with pytest.raises(OptionError, match="nor 1,099,511,627 blocks on the host"):
        engine("llama", tokens=TOKENS, block_size=BLOCK, tiers={"host": 1_099_511_627})
