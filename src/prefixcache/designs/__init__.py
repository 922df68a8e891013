"""Matching designs, siblings behind one interface. A new one is a module here and a line in `DESIGNS`."""

from __future__ import annotations

from prefixcache.designs.base import Design, EventSink, Holding, Match, Partial, Prompt
from prefixcache.designs.block_trie import BlockTrieDesign
from prefixcache.designs.digest_chain import DigestChainDesign
from prefixcache.designs.hash_chain import HashChainDesign
from prefixcache.designs.naive import NaiveDesign
from prefixcache.designs.options import Options, read_options
from prefixcache.designs.outline import OutlineNode
from prefixcache.designs.radix import RadixDesign
from prefixcache.designs.token_trie import TokenTrieDesign

DESIGNS: dict[str, type[Design]] = {
    design.name: design for design in (RadixDesign, HashChainDesign, BlockTrieDesign, DigestChainDesign, NaiveDesign)
}
# Built by name as the designs are, for what they cost; not for use, and not at every block size.
BASELINES: dict[str, type[Design]] = {TokenTrieDesign.name: TokenTrieDesign}

__all__ = [
    "BASELINES",
    "DESIGNS",
    "Design",
    "EventSink",
    "Holding",
    "Match",
    "Options",
    "OutlineNode",
    "Partial",
    "Prompt",
    "read_options",
]
