"""hash_chain: a flat map from chained block digests to blocks (vLLM).

| module | what it holds |
|---|---|
| design | the design: lookup, ownership, room, life |
| run | consecutive blocks that have the same users, and who uses them |
| index | the map from keys to runs, copies of keys |
| search | binary, linear and galloping search along a chain |
| release_list | idle runs by release: LRU |
| leaf_ranks | idle runs under any other policy |
| content | what blocks hold, where equal keys do not prove it |
| scheduling | the policy and the visibility of a scheduler that works in steps |
"""

from prefixcache.designs.hash_chain.design import HashChainDesign
from prefixcache.designs.hash_chain.scheduling import BY_STEP

__all__ = ["BY_STEP", "HashChainDesign"]
