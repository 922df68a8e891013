"""hash_chain: a flat map from chained block digests to blocks (vLLM).

The digest of a block covers its whole prefix, so a cached block stands for the cached prefix up to its end.
As long as no block leaves before the blocks behind it, the hits along a prompt read yes .. yes no .. no,
and a binary search finds the last yes in O(log N) lookups. Only full blocks have a digest.

    prompt       | block 0 | block 1 | block 2 | tail
    digest           d0  ──▶   d1  ──▶   d2
    map            {d0: 7,   d1: 3,    d2: 9}
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any

from prefixcache.blocks.eviction import Facts, idle_items
from prefixcache.designs.base import Design, Holding, Match, Prompt
from prefixcache.errors import InvariantError
from prefixcache.keys.chain import ChainHash
from prefixcache.keys.extras import Extras
from prefixcache.keys.memo import ChainMemo
from prefixcache.keys.tokens import TOKEN_BYTES

_NO_PARENT = -1


class HashChainDesign(Design):
    """See the module. Costs: a prompt is hashed once per distinct prefix, then O(log N) lookups and O(hit)."""

    name = "hash_chain"
    can = {  # noqa: RUF012
        "partial": ("off",),
        "duplicates": ("give_back",),
        "visibility": ("computed",),
        "evict_unit": ("tail",),
        "child_limit": (None,),
        "child_hash": (None,),
    }

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._chain = ChainHash(self.options.hash, self.block_size)
        self._memo = ChainMemo(self._chain)
        self._root_keys: dict[bytes, bytes] = {}
        self.lookups = 0  # of the last match, for tests
        self._block_of: dict[bytes, int] = {}
        # Columns by block id, grown with the ids in use; only cached blocks have a key.
        self._key: list[bytes | None] = []
        self._pins: list[int] = []
        self._parent: list[int] = []
        self._children: list[int] = []
        self._stamps: dict[int, tuple[int, int, int]] = {}  # last access, created, depth: ranked policies only
        self._content: dict[int, tuple[bytes, Extras | None]] = {}  # only where the hash needs confirming
        self._idle = idle_items(self.eviction, self)
        self._idle_blocks = 0
        self._tick = 0

    # -- lookup -----------------------------------------------------------------------------------

    def match(self, prompt: Prompt, limit: int) -> Match:
        most = limit // self.block_size
        if most <= 0:
            return Match(0, [], 0, None)
        keys = self._keys(prompt, most)
        found = self._search(keys, most)
        blocks = self._path(keys, found)
        if not self._chain.trusted:
            blocks = blocks[:found]
            blocks = blocks[: self._confirmed(prompt, blocks)]
        pins = self._pins
        idle = sum(1 for block in blocks if not pins[block])
        return Match(len(blocks) * self.block_size, blocks, idle, None)

    def _keys(self, prompt: Prompt, blocks: int) -> list[bytes]:
        """Keys of at least the first `blocks` blocks of a prompt, remembered in the prompt."""
        keys = prompt.keys
        if keys is None:
            keys = prompt.keys = self._memo.keys(self._root_key(prompt.root), prompt.tokens, blocks, prompt.extras)
        elif len(keys) < blocks:
            parent = keys[-1] if keys else self._root_key(prompt.root)
            keys += self._chain.blocks(parent, prompt.tokens, len(keys), blocks, prompt.extras)
        return keys

    def _root_key(self, root: bytes) -> bytes:
        key = self._root_keys.get(root)
        if key is None:
            if len(self._root_keys) > 4096:  # tenants come and go; a root is cheap to make again
                self._root_keys.clear()
            key = self._root_keys[root] = self._chain.root(root)
        return key

    def _search(self, keys: list[bytes], most: int) -> int:
        """How many leading keys are cached, by bisection: at most ceil(log2(most + 1)) lookups."""
        cached = self._block_of
        low, high, lookups = 0, most, 0
        while low < high:
            middle = (low + high) // 2
            lookups += 1
            if keys[middle] in cached:
                low = middle + 1
            else:
                high = middle
        self.lookups = lookups
        return low

    def _path(self, keys: list[bytes], found: int) -> list[int]:
        """The blocks of the first `found` keys, from the last one back along its parents.

        The walk needs no lookups, and its length proves that the chain has no hole.
        """
        if not found:
            return []
        block = self._block_of[keys[found - 1]]
        path = []
        parent = self._parent
        while block != _NO_PARENT:
            path.append(block)
            block = parent[block]
        path.reverse()
        return path

    def _confirmed(self, prompt: Prompt, blocks: list[int]) -> int:
        """How many of the found blocks really hold the prompt's tokens: equal digests prove nothing here."""
        for i, block in enumerate(blocks):
            if self._content[block] != self._content_at(prompt, i):
                return i
        return len(blocks)

    def _content_at(self, prompt: Prompt, index: int) -> tuple[bytes, Extras | None]:
        size = self.block_size
        start, end = index * size, (index + 1) * size
        extras = prompt.extras.cut(start, end) if prompt.extras is not None else None
        return bytes(prompt.tokens[start * TOKEN_BYTES : end * TOKEN_BYTES]) + prompt.root, extras

    # -- ownership --------------------------------------------------------------------------------

    def claim(self, holding: Holding, match: Match) -> None:
        self._pin(match.blocks)
        holding.held = len(match.blocks)
        holding.table.extend(match.blocks)

    def publish(self, holding: Holding, length: int, tail: bool = False) -> list[tuple[int, int, int]]:
        """See the base. A parent never leaves before its children, so along the range:

        [held .......... present)      [present ......... end)       [end .. length)
         key known: own blocks go       keys are new: the index        no full block:
         back, the table moves          owns these blocks now          stays private
        """
        start, end = holding.held, length // self.block_size
        if end <= start:
            return []
        self._tick += 1
        keys = self._keys(holding.prompt, end)
        table = holding.table
        moves: list[tuple[int, int, int]] = []
        at = start
        while at < end:
            block = self._block_of.get(keys[at])
            if block is None:
                break
            if not self._same(holding, at, block):
                return self._published(holding, at, moves)
            self._pin((block,))
            self.pool.give((table[at],))
            moves.append((at, table[at], block))
            table[at] = block
            at += 1
        if at < end:
            self._store(holding, keys, at, end)
        return self._published(holding, end, moves)

    @staticmethod
    def _published(holding: Holding, end: int, moves: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
        holding.held = end
        return moves

    def _same(self, holding: Holding, index: int, block: int) -> bool:
        """Whether a block of equal key is this block of the prompt; only a weak hash can say no."""
        if self._chain.trusted:
            return True
        parent = holding.table[index - 1] if index else _NO_PARENT
        return self._parent[block] == parent and self._content[block] == self._content_at(holding.prompt, index)

    def _store(self, holding: Holding, keys: list[bytes], start: int, end: int) -> None:
        """The index takes over the blocks [start, end) of the table, pinned once by the holding."""
        table = holding.table
        blocks = table[start:end].tolist()
        new = keys[start:end]
        if not self._chain.trusted:
            new, blocks = self._without_collisions(new, blocks)
            end = start + len(blocks)
        self._grow()
        previous = table[start - 1] if start else _NO_PARENT
        self._block_of.update(zip(new, blocks, strict=True))
        key, pins, parent, children = self._key, self._pins, self._parent, self._children
        if previous != _NO_PARENT:
            children[previous] += 1
        for block, digest in zip(blocks, new, strict=True):
            key[block] = digest
            pins[block] = 1
            parent[block] = previous
            children[block] = 1
            previous = block
        children[previous] = 0
        if not self._idle.takes_all:
            for i, block in enumerate(blocks, start + 1):
                self._stamps[block] = (self._tick, self._tick, i * self.block_size)
        prompt = holding.prompt
        if not self._chain.trusted:
            for i, block in enumerate(blocks, start):
                self._content[block] = self._content_at(prompt, i)
        if self.events is not None and blocks:
            size = self.block_size * TOKEN_BYTES
            before = keys[start - 1] if start else None
            self.events.stored(new, before, bytes(prompt.tokens[start * size : end * size]), prompt.scope)

    def _without_collisions(self, keys: list[bytes], blocks: list[int]) -> tuple[list[bytes], list[int]]:
        """The leading part whose keys are all different and new: what collides is not published."""
        seen: set[bytes] = set()
        for i, key in enumerate(keys):
            if key in seen or key in self._block_of:
                return keys[:i], blocks[:i]
            seen.add(key)
        return keys, blocks

    def _grow(self) -> None:
        more = self.pool.used_ids - len(self._key)
        if more > 0:
            self._key.extend([None] * more)
            self._pins.extend([0] * more)
            self._parent.extend([_NO_PARENT] * more)
            self._children.extend([0] * more)

    def cut(self, holding: Holding, blocks: int) -> None:
        if blocks < holding.held:
            self._tick += 1
            self._unpin(holding.table[blocks : holding.held])
            holding.held = blocks

    def release(self, holding: Holding) -> None:
        self._tick += 1
        self._unpin(holding.table[: holding.held])
        holding.held = 0

    def share(self, holding: Holding, other: Holding, blocks: int) -> None:
        shared = holding.table[:blocks]
        self._pin(shared)
        other.table.extend(shared)
        other.held = blocks

    def handle(self, holding: Holding, index: int) -> int:
        return holding.table[index]

    def hold(self, handle: int) -> None:
        self._pin((handle,))

    def drop(self, handle: int) -> None:
        self._tick += 1
        self._unpin(array("i", (handle,)))

    def _pin(self, blocks: Any) -> None:
        pins = self._pins
        for block in blocks:
            if not pins[block]:
                self._idle_blocks -= 1
                self._idle.discard(block)
            pins[block] += 1

    def _unpin(self, blocks: array[int]) -> None:
        """One user less, tail first; what nobody uses any more becomes idle."""
        pins = self._pins
        freed = []
        for block in reversed(blocks):
            left = pins[block] - 1
            pins[block] = left
            if not left:
                freed.append(block)
            elif left < 0:
                raise InvariantError(f"block {block} is unpinned more often than pinned")
        self._idle_blocks += len(freed)
        if self._idle.takes_all:
            self._idle.extend(freed)
            return
        for block in blocks:
            self._stamps[block] = (self._tick, *self._stamps[block][1:])
        for block in freed:
            if not self._children[block]:
                self._idle.add(block)

    # -- room -------------------------------------------------------------------------------------

    @property
    def idle(self) -> int:
        return self._idle_blocks

    def facts(self, item: int) -> Facts:
        """What an eviction policy may know of a block."""
        last_access, created, depth = self._stamps[item]
        return Facts(last_access, created, 0, 0, depth, self.block_size, depth)

    def _evict(self, blocks: int) -> int:
        blocks = min(blocks, self._idle_blocks)
        if self._idle.takes_all:
            victims = self._idle.pop_many(blocks)
            for block in victims:
                self._unregister(block)
        else:
            victims = []
            for _ in range(blocks):
                block = self._idle.pop()
                victims.append(block)
                parent = self._parent[block]
                self._unregister(block)
                if parent != _NO_PARENT and not self._children[parent] and not self._pins[parent]:
                    self._idle.add(parent)
        self.pool.give(victims)
        return len(victims)

    def _unregister(self, block: int) -> None:
        """Forget an idle block that the queue has just given up."""
        key = self._key[block]
        assert key is not None
        del self._block_of[key]
        self._key[block] = None
        parent = self._parent[block]
        if parent != _NO_PARENT:
            self._children[parent] -= 1
            self._parent[block] = _NO_PARENT
        self._idle_blocks -= 1
        if self.events is not None and block not in self._idle.stale:
            self.events.removed((key,))
        self._idle.forget(block)
        if self._stamps:
            self._stamps.pop(block, None)
        if self._content:
            self._content.pop(block, None)

    # -- life of the index --------------------------------------------------------------------------

    def retire(self) -> None:
        stored = list(self._block_of.items())
        if self.events is not None:
            self.events.removed([key for key, block in stored if block not in self._idle.stale])
        self._idle.retire(block for _, block in stored)

    def clear(self) -> None:
        self.pool.give(list(self._block_of.values()))
        for block in self._block_of.values():
            self._key[block], self._parent[block], self._children[block] = None, _NO_PARENT, 0
        self._block_of.clear()
        self._stamps.clear()
        self._content.clear()
        self._idle = idle_items(self.eviction, self)
        self._idle_blocks = 0

    def blocks(self) -> Iterator[int]:
        yield from self._block_of.values()

    def check(self) -> None:
        children: dict[int, int] = {}
        idle = 0
        for key, block in self._block_of.items():
            if self._key[block] != key:
                raise InvariantError(f"block {block} is in the map under a key that is not its own")
            if self._pins[block] < 0:
                raise InvariantError(f"block {block} has a negative pin count")
            parent = self._parent[block]
            if parent != _NO_PARENT:
                if self._key[parent] is None:
                    raise InvariantError(f"block {block} is cached, its parent {parent} is not")
                if self._pins[block] and not self._pins[parent]:
                    raise InvariantError(f"block {block} is pinned, its parent {parent} is not")
                children[parent] = children.get(parent, 0) + 1
            if not self._pins[block]:
                idle += 1
        for block in self._block_of.values():
            if self._children[block] != children.get(block, 0):
                found = children.get(block, 0)
                raise InvariantError(f"block {block} counts {self._children[block]} children, has {found}")
            queued = block in self._idle
            if queued != (not self._pins[block] and (self._idle.takes_all or not children.get(block))):
                raise InvariantError(f"block {block} is {'' if queued else 'not '}queued for eviction")
        if sum(1 for key in self._key if key is not None) != len(self._block_of):
            raise InvariantError("the map and the columns disagree on how many blocks are cached")
        if idle != self._idle_blocks:
            raise InvariantError(f"{idle} blocks are idle, the book says {self._idle_blocks}")
