"""hash_chain: a flat map from chained block digests to blocks (vLLM).

| module | what it holds |
|---|---|
| design | the design: lookup, ownership, room, life |
| index | the map, and the columns by block id |
| search | binary, linear and galloping search along a chain |
| release_runs | idle blocks by release: LRU without per-block work |
| leaf_ranks | idle blocks under any other policy |
| content | what blocks hold, where equal keys do not prove it |
| scheduling | the policy and the visibility of a scheduler that works in steps |
"""

from prefixcache.designs.hash_chain.design import HashChainDesign
from prefixcache.designs.hash_chain.scheduling import BY_STEP

__all__ = ["BY_STEP", "HashChainDesign"]
