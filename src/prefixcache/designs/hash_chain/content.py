"""What blocks really hold, for hashes whose equal keys do not prove it.

Every distinct prefix that is cached has a number; a block remembers the number of its prefix, that of the
prefix before it, and as much of its own content as the key does not vouch for. A chain of blocks is confirmed
when each continues the number before it and holds what the prompt has there.

    prompt      | 9 8 7 6 | 5 4 3 2 |
    found       block 7     block 3          by equal keys
    content     9 8 7 6     5 4 3 2          compared in one piece
    number      12          15
    continues   0           12               so 3 was really computed behind 7, not behind a twin of its key
"""

from __future__ import annotations

from typing import Any

import numpy as np

from prefixcache.designs.base import Prompt
from prefixcache.designs.hash_chain.index import Ids, Index, grown
from prefixcache.errors import InvariantError
from prefixcache.keys.chain import ChainHash
from prefixcache.keys.extras import Extras
from prefixcache.keys.tokens import TOKEN_BYTES

_NO_PREFIX = 0  # what a first block continues


class Content:
    """See the module. Tokens are kept only where the chain is not trusted at all.

    Args:
        chain: says what its keys vouch for.
        index: the cached blocks.
    """

    def __init__(self, chain: ChainHash, index: Index) -> None:
        self._index = index
        self._keeps_tokens = not chain.trusted
        self._step = chain.block_size
        self._covered = chain.block_size + chain.lookahead
        self._number: Any = np.zeros(0, np.int64)
        self._continues: Any = np.zeros(0, np.int64)
        self._text: dict[int, bytes] = {}
        self._roots: dict[int, bytes] = {}  # of first blocks
        self._extras: dict[int, Extras] = {}
        self._last_number = _NO_PREFIX

    def grow(self, ids: int) -> None:
        """Make room for the block ids below this."""
        self._number, self._continues = grown(self._number, ids), grown(self._continues, ids)

    def confirmed(self, prompt: Prompt, ids: Ids) -> int:
        """How many of these blocks, found by the keys of a prompt, really hold its beginning. O(blocks)."""
        before = np.concatenate(((_NO_PREFIX,), self._number[ids[:-1]]))
        wrong = np.flatnonzero(self._continues[ids] != before)
        most = int(wrong[0]) if wrong.size else len(ids)
        blocks = ids[:most].tolist()
        if prompt.extras is None and not self._extras and self._holds_tokens(blocks, prompt):
            return most
        for at, block in enumerate(blocks):
            if not self._holds(block, prompt, at):
                return at
        return most

    def _holds_tokens(self, blocks: list[int], prompt: Prompt) -> bool:
        """Whether the tokens of all these blocks, compared in one piece, are the beginning of the prompt."""
        if not self._keeps_tokens or not blocks:
            return True
        if self._covered > self._step or self._roots[blocks[0]] != prompt.root:
            return False  # they overlap: compared one by one
        return prompt.tokens.startswith(b"".join([self._text[block] for block in blocks]))

    def _holds(self, block: int, prompt: Prompt, at: int) -> bool:
        """Whether this block's own content is what the prompt has at this block index."""
        if self._keeps_tokens and (
            self._text[block] != self._text_at(prompt, at) or (not at and self._roots[block] != prompt.root)
        ):
            return False
        return self._extras.get(block) == self._extras_at(prompt, at)

    def _text_at(self, prompt: Prompt, at: int) -> bytes:
        start = at * self._step
        return bytes(prompt.tokens[start * TOKEN_BYTES : (start + self._covered) * TOKEN_BYTES])

    def _extras_at(self, prompt: Prompt, at: int) -> Extras | None:
        start = at * self._step
        return prompt.extras.cut(start, start + self._covered) if prompt.extras is not None else None

    def storable(self, prompt: Prompt, keys: list[bytes], start: int, end: int, before: int | None) -> tuple[int, int]:
        """What of the blocks [start, end) of a prompt is cached, and up to where the rest can be stored.

        Returns (leading blocks cached as this very prefix, end of what does not collide); `before` is the
        block at start - 1. A key that another prefix has, or that occurs twice, ends it: what collides is
        not published.
        """
        oldest, at = self._index.oldest, start
        number = _NO_PREFIX if before is None else self._number[before]
        while at < end:
            block = oldest.get(keys[at])
            if block is None:
                break
            if self._continues[block] != number or not self._holds(block, prompt, at):
                return at - start, at
            number = self._number[block]
            at += 1
        new: set[bytes] = set()
        for index in range(at, end):
            if keys[index] in oldest or keys[index] in new:
                return at - start, index
            new.add(keys[index])
        return at - start, end

    def store(self, prompt: Prompt, start: int, ids: Ids, before: int | None, originals: Ids) -> None:
        """Remember blocks [start, ..) of a prompt; the first of them are copies of `originals`."""
        new = len(ids) - len(originals)
        numbers = np.concatenate((self._number[originals], self._last_number + 1 + np.arange(new)))
        self._last_number += new
        self._number[ids] = numbers
        self._continues[ids[0]] = _NO_PREFIX if before is None else self._number[before]
        self._continues[ids[1:]] = numbers[:-1]
        if self._keeps_tokens:
            if not start:
                self._roots[int(ids[0])] = prompt.root
            for at, block in enumerate(ids.tolist(), start):
                self._text[block] = self._text_at(prompt, at)
        if prompt.extras is not None:
            for at, block in enumerate(ids.tolist(), start):
                carried = self._extras_at(prompt, at)
                if carried is not None:
                    self._extras[block] = carried

    def drop(self, ids: Ids) -> None:
        """Forget evicted blocks."""
        if not (self._text or self._extras):
            return
        for block in ids.tolist():
            for kept in (self._text, self._roots, self._extras):
                kept.pop(block, None)

    def check(self) -> None:
        """Assert that exactly the cached blocks have content."""
        cached = set(self._index)
        if self._keeps_tokens and self._text.keys() != cached:
            raise InvariantError("the blocks with remembered tokens are not the cached ones")
        if not self._extras.keys() <= cached or not self._roots.keys() <= cached:
            raise InvariantError("a block that is not cached has remembered extras or a root")
