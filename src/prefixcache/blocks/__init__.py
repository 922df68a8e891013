"""What is owned: the pool of block ids, the queues that say which cached block goes next, and copies in flight."""

from prefixcache.blocks.kv_store import KVStore
from prefixcache.blocks.pool import MAX_BLOCKS, BlockPool
from prefixcache.blocks.transfers import CopyWorkers, Transfer

__all__ = ["MAX_BLOCKS", "BlockPool", "CopyWorkers", "KVStore", "Transfer"]
