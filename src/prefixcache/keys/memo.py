"""Hash a chain once per distinct prefix, not once per request.

Requests share system prompts and turns, so most blocks of a new prompt were hashed before. The memo keeps
recent prompts in byte order; the remembered prompt with the longest common prefix is then always a
neighbour of the new one, found by one bisection, and the shared part is one memcmp.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict

from prefixcache.keys.chain import ChainHash
from prefixcache.keys.extras import Extras
from prefixcache.keys.tokens import TOKEN_BYTES, Buffer, common_tokens


class ChainMemo:
    """Block keys of prompts, with a bounded memory of the most recent ones.

    Args:
        chain: how keys are made.
        most_tokens: tokens of all remembered prompts together; the least recently used are forgotten.

    A new prompt of n tokens costs O(log m) comparisons with the m remembered ones and hashes only the
    blocks behind the longest prefix it shares with any of them.
    """

    def __init__(self, chain: ChainHash, most_tokens: int = 2**20) -> None:
        self.chain = chain
        self.most_tokens = most_tokens
        self._tokens = 0
        self._sorted: dict[bytes, list[bytes]] = {}
        self._keys: OrderedDict[tuple[bytes, bytes], list[bytes]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._keys)

    def keys(self, root: bytes, tokens: Buffer, blocks: int, extras: Extras | None) -> list[bytes]:
        """Keys of the first `blocks` full blocks of a prompt behind `root`. The list is the caller's own."""
        if blocks <= 0:
            return []
        if extras is not None:
            return self.chain.blocks(root, tokens, 0, blocks, extras)
        size = self.chain.block_size
        text = bytes(tokens[: blocks * size * TOKEN_BYTES])
        known = self._longest(root, text, blocks)
        keys = known[:blocks]
        if len(keys) < blocks:
            parent = keys[-1] if keys else root
            keys = keys + self.chain.blocks(parent, text, len(keys), blocks, None)
            self._remember(root, text, keys)
        return keys[:]

    def _longest(self, root: bytes, text: bytes, blocks: int) -> list[bytes]:
        """Keys of the longest run of leading blocks shared with a remembered prompt."""
        prompts = self._sorted.get(root)
        if not prompts:
            return []
        at = bisect_left(prompts, text)
        best, owner = 0, None
        size = self.chain.block_size
        for other in prompts[max(at - 1, 0) : at + 1]:
            most = min(len(other) // (size * TOKEN_BYTES), blocks)
            shared = common_tokens(other, 0, text, 0, most * size) // size
            if shared > best:
                best, owner = shared, other
        if owner is None:
            return []
        entry = (root, owner)
        self._keys.move_to_end(entry)
        return self._keys[entry][:best]

    def _remember(self, root: bytes, text: bytes, keys: list[bytes]) -> None:
        prompts = self._sorted.setdefault(root, [])
        at = bisect_left(prompts, text)
        # The next turn of a chat contains the turn before: the longer prompt answers for both.
        if at and text.startswith(prompts[at - 1]):
            self._forget(root, prompts[at - 1])
            prompts = self._sorted.setdefault(root, [])
        insort(prompts, text)
        self._keys[(root, text)] = keys
        self._tokens += len(text) // TOKEN_BYTES
        while self._tokens > self.most_tokens and len(self._keys) > 1:
            old_root, old_text = next(iter(self._keys))
            self._forget(old_root, old_text)

    def _forget(self, root: bytes, text: bytes) -> None:
        del self._keys[(root, text)]
        self._tokens -= len(text) // TOKEN_BYTES
        prompts = self._sorted[root]
        del prompts[bisect_left(prompts, text)]
        if not prompts:
            del self._sorted[root]
