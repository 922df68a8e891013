"""digest_chain: a tree keyed by chained SHA-256 digests, with hits at any token (TensorRT-LLM's Python v2)."""

from prefixcache.designs.digest_chain.design import DigestChainDesign

__all__ = ["DigestChainDesign"]
