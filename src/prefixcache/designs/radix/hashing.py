"""The keys of pages in events: chained digests of their tokens, and of the token ahead where it counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from prefixcache.designs.base import Prompt
from prefixcache.keys.chain import ChainHash
from prefixcache.keys.extras import Extras
from prefixcache.keys.tokens import TOKEN_BYTES


class PageHash:
    """Chained digests over pages.

    Args:
        hash: as in `Options`.
        page: tokens per page.
        ahead: 1 when each token is hashed together with the one behind it.

    Attributes:
        trusted: see `ChainHash`.
    """

    def __init__(self, hash: str | Callable[[bytes], bytes | int], page: int, ahead: int) -> None:
        self._page, self._ahead = page, ahead
        self._chain = ChainHash(hash, page * (1 + ahead))
        self.trusted = self._chain.trusted

    def behind(self, prompt: Prompt, start: int, parent: bytes | None) -> Iterator[bytes]:
        """The keys of a prompt's pages from token `start` on, behind the page `parent`, made as they are asked for."""
        if not self._ahead:
            yield from self._chain.behind(prompt.root, parent, prompt.tokens, start, prompt.extras)
            return
        page, ahead, known = self._page, self._ahead, len(prompt.tokens) // TOKEN_BYTES
        for at in range(start, known - page - ahead + 1, page):
            text = bytes(prompt.tokens[at * TOKEN_BYTES : (at + page + ahead) * TOKEN_BYTES])
            extras = prompt.extras.cut(at, at + page + ahead) if prompt.extras is not None else None
            (parent,) = self.keys(prompt, parent, text, 1, extras)
            yield parent

    def keys(
        self, prompt: Prompt, parent: bytes | None, text: bytes, pages: int, extras: Extras | None
    ) -> tuple[bytes, ...]:
        """Digests of so many pages, whose tokens (and the one ahead) are `text`, behind the page `parent`."""
        digest = parent if parent is not None else self._chain.root(prompt.root)
        if not self._ahead:
            return tuple(self._chain.blocks(digest, text, 0, pages, extras))
        tokens = np.frombuffer(text, dtype="<u4")
        pairs = np.stack((tokens[:-1], tokens[1:]), axis=1).tobytes()
        page, width = self._page, self._page * 2 * TOKEN_BYTES
        keys = []
        for i in range(pages):
            carried = extras.cut(i * page, (i + 1) * page + 1) if extras is not None else None
            digest = self._chain.block(digest, pairs[i * width : (i + 1) * width], carried)
            keys.append(digest)
        return tuple(keys)
