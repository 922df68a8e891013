"""naive: a plain set of prefixes. The oracle that the other designs are held against.

Every stored block is an entry under its whole prefix; a lookup tries one block after the other, an eviction
scans everything. Nothing here is fast and nothing here needs a proof. While nothing has been evicted its
hits are exact at block grain; `ever` remembers all prefixes that were ever stored, so `upper_bound` stays
above what any design with this block size can hit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from prefixcache.designs.base import Design, Holding, Match, Prompt
from prefixcache.designs.outline import OutlineNode, outline_of
from prefixcache.errors import InvariantError
from prefixcache.keys.chain import ChainHash
from prefixcache.keys.extras import Extras
from prefixcache.keys.tokens import TOKEN_BYTES

Prefix: TypeAlias = tuple[bytes, bytes, Extras | None]  # scope, tokens, what they carry


@dataclass(slots=True)
class Entry:
    """One cached block: the last block of its prefix."""

    block: int
    prefix: Prefix
    parent: Prefix
    pins: int
    last_access: int
    key: bytes
    stale: bool = False


class NaiveDesign(Design):
    """See the module. A lookup is O(n * blocks), an eviction O(entries^2)."""

    name = "naive"
    can = {  # noqa: RUF012
        "partial": ("off",),
        "duplicates": ("give_back",),
        "visibility": ("computed",),
        "evict_unit": ("tail",),
        "child_limit": (None,),
        "child_hash": (None,),
        "lookahead_by": ("drop",),
    }

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._chain = ChainHash("sha256", self.block_size)
        self._entries: dict[Prefix, Entry] = {}
        self.ever: set[Prefix] = set()
        self._tick = 0

    # -- lookup -----------------------------------------------------------------------------------

    def match(self, prompt: Prompt, limit: int) -> Match:
        found = []
        for index in range(limit // self.block_size):
            entry = self._entries.get(self._prefix(prompt, index + 1))
            if entry is None or entry.stale:
                break
            found.append(entry)
        idle = sum(1 for entry in found if not entry.pins)
        return Match(len(found) * self.block_size, [entry.block for entry in found], idle, None)

    def upper_bound(self, prompt: Prompt, limit: int) -> int:
        """Tokens that would hit had nothing ever been evicted."""
        blocks = 0
        while (blocks + 1) * self.block_size <= limit and self._prefix(prompt, blocks + 1) in self.ever:
            blocks += 1
        return blocks * self.block_size

    def _prefix(self, prompt: Prompt, blocks: int) -> Prefix:
        end = blocks * self.block_size
        extras = prompt.extras.cut(0, end) if prompt.extras is not None else None
        return prompt.root, bytes(prompt.tokens[: end * TOKEN_BYTES]), extras

    def _held(self, holding: Holding, start: int, end: int) -> list[Entry]:
        return [self._entries[self._prefix(holding.prompt, index + 1)] for index in range(start, end)]

    # -- ownership --------------------------------------------------------------------------------

    def claim(self, holding: Holding, match: Match) -> None:
        for entry in self._held(holding, 0, len(match.blocks)):
            entry.pins += 1
        holding.held = len(match.blocks)
        holding.table.extend(match.blocks)

    def publish(self, holding: Holding, length: int, tail: bool = False) -> list[tuple[int, int, int]]:
        moves = []
        self._tick += 1
        for index in range(holding.held, length // self.block_size):
            prefix = self._prefix(holding.prompt, index + 1)
            own = holding.table[index]
            entry = self._entries.get(prefix)
            if entry is not None:
                entry.pins += 1
                self.pool.give((own,))
                holding.table[index] = entry.block
                moves.append((index, own, entry.block))
            else:
                self._store(holding, index, prefix)
            holding.held = index + 1
        return moves

    def _store(self, holding: Holding, index: int, prefix: Prefix) -> None:
        prompt = holding.prompt
        parent = self._prefix(prompt, index)
        start, end = index * self.block_size, (index + 1) * self.block_size
        before = self._entries[parent].key if index else None
        tokens = bytes(prompt.tokens[start * TOKEN_BYTES : end * TOKEN_BYTES])
        extras = prompt.extras.cut(start, end) if prompt.extras is not None else None
        key = self._chain.block(before or self._chain.root(prompt.root), tokens, extras)
        self._entries[prefix] = Entry(holding.table[index], prefix, parent, 1, self._tick, key)
        self.ever.add(prefix)
        if self.events is not None:
            self.events.stored([key], before, tokens, prompt.scope)

    def cut(self, holding: Holding, blocks: int) -> None:
        for entry in reversed(self._held(holding, blocks, holding.held)):
            self._unpin(entry)
        holding.held = min(blocks, holding.held)

    def release(self, holding: Holding) -> None:
        self.cut(holding, 0)

    def share(self, holding: Holding, other: Holding, blocks: int) -> None:
        for entry in self._held(holding, 0, blocks):
            entry.pins += 1
        other.table.extend(holding.table[:blocks])
        other.held = blocks

    def handle(self, holding: Holding, index: int) -> Entry:
        return self._held(holding, index, index + 1)[0]

    def hold(self, handle: Entry) -> None:
        for entry in self._path(handle):
            entry.pins += 1

    def drop(self, handle: Entry) -> None:
        for entry in self._path(handle):
            self._unpin(entry)

    def _path(self, entry: Entry) -> Iterator[Entry]:
        """The entry and those before it, tail first."""
        here: Entry | None = entry
        while here is not None:
            yield here
            here = self._entries.get(here.parent)

    def _unpin(self, entry: Entry) -> None:
        self._tick += 1
        entry.pins -= 1
        entry.last_access = self._tick

    # -- room -------------------------------------------------------------------------------------

    @property
    def idle(self) -> int:
        return sum(1 for entry in self._entries.values() if not entry.pins)

    def _evict(self, blocks: int) -> int:
        gone = 0
        while gone < blocks:
            parents = {entry.parent for entry in self._entries.values()}
            leaves = [e for e in self._entries.values() if not e.pins and e.prefix not in parents]
            if not leaves:
                break
            victim = min(leaves, key=lambda e: (not e.stale, e.last_access, -len(e.prefix[1])))
            if self.lower is not None and not victim.stale:
                above = self._entries.get(victim.parent)
                self.lower.evicting([victim.key], above.key if above is not None else None, [victim.block])
            del self._entries[victim.prefix]
            self.pool.give((victim.block,))
            if self.events is not None and not victim.stale:
                self.events.removed([victim.key])
            gone += 1
        return gone

    def keys_behind(self, prompt: Prompt, match: Match) -> Iterator[bytes]:
        keys = self._chain.blocks(self._chain.root(prompt.root), prompt.tokens, 0, len(match.blocks), prompt.extras)
        return self._chain.behind(prompt.root, keys[-1] if keys else None, prompt.tokens, match.tokens, prompt.extras)

    # -- for explanations ---------------------------------------------------------------------------

    def scopes(self) -> set[bytes]:
        return {scope for scope, _, _ in self._entries}

    def keys_at(self, prompt: Prompt, start: int) -> list[bytes]:
        blocks = start // self.block_size + 1
        if blocks * self.block_size * TOKEN_BYTES > len(prompt.tokens):
            return []
        return self._chain.blocks(self._chain.root(prompt.root), prompt.tokens, 0, blocks, prompt.extras)[-1:]

    def outline(self) -> list[OutlineNode]:
        last = -self.block_size * TOKEN_BYTES
        entries = self._entries.values()  # a parent is stored before its children
        return outline_of((e.prefix, e.parent, e.prefix[1][last:], (e.block,), e.pins, (e.key,)) for e in entries)

    # -- life of the index --------------------------------------------------------------------------

    def retire(self) -> None:
        for entry in self._entries.values():
            if self.events is not None and not entry.stale:
                self.events.removed([entry.key])
            entry.stale = True

    def clear(self) -> None:
        self.pool.give([entry.block for entry in self._entries.values()])
        self._entries.clear()

    def blocks(self) -> Iterator[int]:
        for entry in self._entries.values():
            yield entry.block

    def check(self) -> None:
        for prefix, entry in self._entries.items():
            if entry.pins < 0:
                raise InvariantError(f"block {entry.block} has a negative pin count")
            if entry.prefix != prefix:
                raise InvariantError(f"block {entry.block} is stored under a prefix that is not its own")
            parent = self._entries.get(entry.parent)
            if len(prefix[1]) > self.block_size * TOKEN_BYTES:
                if parent is None:
                    raise InvariantError(f"block {entry.block} is cached, its parent is not")
                if entry.pins and not parent.pins:
                    raise InvariantError(f"block {entry.block} is pinned, its parent is not")
