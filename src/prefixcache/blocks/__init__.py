"""What is owned: the pool of block ids, and the queues that say which cached block goes next."""

from prefixcache.blocks.pool import MAX_BLOCKS, BlockPool

__all__ = ["MAX_BLOCKS", "BlockPool"]
