"""radix: a compressed radix tree over pages of tokens (SGLang's RadixCache)."""

from prefixcache.designs.radix.design import RadixDesign

__all__ = ["RadixDesign"]
