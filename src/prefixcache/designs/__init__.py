"""Matching designs, siblings behind one interface. A new one is a module here and a line in `DESIGNS`."""

from __future__ import annotations

from prefixcache.designs.base import Design, EventSink, Holding, Match, Partial, Prompt
from prefixcache.designs.block_trie import BlockTrieDesign
from prefixcache.designs.digest_chain import DigestChainDesign
from prefixcache.designs.hash_chain import HashChainDesign
from prefixcache.designs.naive import NaiveDesign
from prefixcache.designs.options import Options, read_options
from prefixcache.designs.radix import RadixDesign

DESIGNS: dict[str, type[Design]] = {
    design.name: design for design in (RadixDesign, HashChainDesign, BlockTrieDesign, DigestChainDesign, NaiveDesign)
}

__all__ = ["DESIGNS", "Design", "EventSink", "Holding", "Match", "Options", "Partial", "Prompt", "read_options"]
