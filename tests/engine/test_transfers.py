"""Copy workers on the engine's own memory: the torch side of tests/blocks/test_transfers.py."""

from __future__ import annotations

import pytest
import torch

from prefixcache import CopyWorkers, PrefixCache
from prefixcache.engine.kv_pool import KVPool, LayerShape


def test_the_pool_of_the_engine_is_copied_by_the_same_workers() -> None:
    pool = KVPool(
        [LayerShape(2, 4, 3), None, LayerShape(1, 4, 4)],
        blocks=8,
        block_size=4,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    cache = PrefixCache("digest_chain", block_size=4, capacity=8)
    for tensor in (*pool.keys, *pool.values):
        if tensor is not None:
            tensor[:] = torch.arange(32).reshape(32, 1)
    stored = cache.open(range(8))
    stored.computed(8)
    stored.close()
    with CopyWorkers(pool) as workers:
        requests = [cache.open([*range(6), last]) for last in (50, 60)]
        copies = [request.copies[0] for request in requests]
        transfers = [workers.submit(request) for request in requests]
        assert [transfer.result().copies for transfer in transfers] == [(), ()]
        broken = cache.open([*range(6), 70])
        pool.keys[2] = pool.keys[2][:, :8]  # a layer that is too short for any target
        with pytest.raises((RuntimeError, IndexError)):
            workers.submit(broken).result()
    assert broken.state == "aborted"
    for copy in copies:
        source, target = copy.source * 4, copy.target * 4
        for tensor in (pool.keys[0], pool.values[0], pool.values[2]):
            assert tensor[0, target : target + 4, 0].tolist() == [source, source + 1, target + 2, target + 3]
    for request in requests:
        request.abort()
    cache.check()
    cache.evict(8)
    assert cache.books().free == 8
