"""The longest hit that is safe for every layer, by the events alone and by nothing of how the cache searches.

Every length is tried, from the longest down, and inside a block every cached block that begins like the prompt: a
length is safe when each layer finds what the next position reads of it. A value has the key of the tree's block that it
hangs from, and where several hang from one, its place among them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from prefixcache import Full, PrefixCache, Recurrent, Window

Prefix = tuple[Any, ...]
Mirror = dict[int, dict[bytes, Prefix]]  # by group: the keys that were announced, and the prefix that each names


@dataclass(frozen=True)
class Oracle:
    """What is cached, and a prompt: its scope, then its tokens. Events do not tell a hole from what is gone."""

    cache: PrefixCache
    mirror: Mirror
    prompt: Prefix
    holes: frozenset[Prefix] = frozenset()

    @property
    def tree(self) -> dict[Prefix, bytes]:
        """The blocks of full attention by their prefix."""
        return {prefix: key for key, prefix in self.mirror[self.cache.groups.index(Full())].items()}

    def longest(self, whole: bool = False) -> int:
        """The longest safe hit, or the longest that ends with a block; the last token is always computed."""
        size, tree, limit = self.cache.block_size, self.tree, len(self.prompt) - 2
        path: list[bytes] = []
        while (end := (len(path) + 1) * size) <= limit and self.prompt[: end + 1] in tree:
            path.append(tree[self.prompt[: end + 1]])
        for length in range(self._known(len(path) * size, limit), 0, -1):
            if whole and length % size:
                continue
            before = path[: length // size]
            sources = self._beginning_alike(length) if length % size else before[-1:]
            if any(self._is_safe(length, before, source) for source in sources):
                return length
        return 0

    def _known(self, whole: int, limit: int) -> int:
        """The tokens that the tree has, `whole` of them in whole blocks, within the grain of the design."""
        size, options = self.cache.block_size, self.cache.options
        if options.partial == "off":
            return whole
        if whole + size <= limit and self.prompt[: whole + size + 1] in self.holes:
            return whole  # nothing beside it is tried
        return max(n for n in range(whole, min(whole + size - 1, limit) + 1) if n == whole or self._beginning_alike(n))

    def _beginning_alike(self, length: int) -> list[bytes]:
        """The blocks that have the token before `length`, and with it a beginning of the prompt."""
        size = self.cache.block_size
        if self.cache.options.partial == "off":
            return []  # hits end where blocks do
        end = (length - 1) // size * size + size
        return [
            key
            for prefix, key in self.tree.items()
            if length <= len(prefix) - 1 <= end and prefix[: length + 1] == self.prompt[: length + 1]
        ]

    def _is_safe(self, length: int, before: list[bytes], source: bytes) -> bool:
        """Whether each layer finds what position `length` reads, in whole blocks and in `source`, the last one."""
        blocks = before if length % self.cache.block_size == 0 else [*before, source]
        for group, kind in enumerate(self.cache.groups):
            if isinstance(kind, Recurrent) and len(self.mirror[group].get(source, ())) != length + 1:
                return False
            if isinstance(kind, Window) and not self._has_window(group, kind, length, blocks):
                return False
        return True

    def _has_window(self, group: int, kind: Window, length: int, blocks: list[bytes]) -> bool:
        size, own = self.cache.block_size, kind.block_size or self.cache.block_size
        if own > size and length % own:
            return False
        read = {at // own for at in range(length) if at > length - kind.size or at < kind.sinks}
        for entry in read:  # a block of which one slot is read is shared or copied as far as the hit goes
            end = (entry + 1) * own
            home, place = blocks[(end - 1) // size], (end - 1) % size // own
            value = self.mirror[group].get(home if own >= size else home + bytes([place]), ())
            if len(value) - 1 < min(end, length):
                return False
        return True
