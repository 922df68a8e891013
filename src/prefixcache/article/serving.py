"""A request as short as it can be told: what most claims need of a cache."""

from __future__ import annotations

from typing import Any

from prefixcache.cache import PrefixCache

LIMITLESS = 1 << 22  # blocks; unused ones cost nothing
THE_FOUR = ("radix", "hash_chain", "block_trie", "digest_chain")


def serve(cache: PrefixCache, tokens: Any, **terms: Any) -> int:
    """Serve a prompt from admission to its end; how many of its tokens were cached."""
    request = cache.open(tokens, **terms)
    request.copied()
    request.computed(request.length)
    request.close()
    return request.cached
