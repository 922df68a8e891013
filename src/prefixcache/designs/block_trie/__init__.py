"""block_trie: see `design` for what it is, `run` and `tree` for its structure, `uses` and `queues` for who leaves."""

from prefixcache.designs.block_trie.design import BlockTrieDesign

__all__ = ["BlockTrieDesign"]
