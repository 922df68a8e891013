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
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from prefixcache.blocks.eviction import POLICIES, read_policy
from prefixcache.designs.base import Design, Holding, Match, Prompt
from prefixcache.designs.hash_chain.content import Content
from prefixcache.designs.hash_chain.index import Ids, Index, ids_of, table_of
from prefixcache.designs.hash_chain.leaf_ranks import LeafRanks
from prefixcache.designs.hash_chain.release_runs import ReleaseRuns
from prefixcache.designs.hash_chain.scheduling import Unseen
from prefixcache.designs.hash_chain.search import SEARCHES
from prefixcache.designs.outline import OutlineNode, outline_of
from prefixcache.errors import InvariantError
from prefixcache.keys.layouts import make_chain
from prefixcache.keys.memo import ChainMemo
from prefixcache.keys.tokens import TOKEN_BYTES


class HashChainDesign(Design):
    """See the module. Costs: a prompt is hashed once per distinct prefix, then O(log N) lookups and O(hit)."""

    name = "hash_chain"
    can = {  # noqa: RUF012
        "partial": ("off",),
        "evict_unit": ("tail",),
        "child_limit": (None,),
        "child_hash": (None,),
        "search": tuple(SEARCHES),
        "recency": ("release",),
        "refresh_on_split": (False,),
        "count_hits": ("match",),
        "cut_at_prompt": (False,),
        "priorities": ("0..100",),
    }

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.ahead = self.options.lookahead if self.options.lookahead_by == "key" else 0
        self._chain = make_chain(self.options.hash, self.block_size, self.ahead)
        self._memo = ChainMemo(self._chain)
        self._search = SEARCHES[self.options.search]
        self.lookups = 0  # of the last match, for tests
        self._index = Index()
        self._is_cached = self._index.oldest.__contains__
        vouched_for = self._chain.trusted and self._chain.covers_extras
        self._content = None if vouched_for else Content(self._chain, self._index)
        self._unseen = Unseen(self.events) if self.options.visibility == "step" else None
        self._order = self._make_order()
        self._idle_blocks = 0

    def _make_order(self) -> ReleaseRuns | LeafRanks:
        policy = read_policy(self.eviction)
        if policy is POLICIES["lru"]:
            return ReleaseRuns(self._index)
        return LeafRanks(self._index, policy, self.block_size)

    # -- lookup -----------------------------------------------------------------------------------

    def match(self, prompt: Prompt, limit: int) -> Match:
        if limit < self.block_size:
            return Match(0, array("i"), 0, None)
        keys = self._keys(prompt)
        most = min(limit // self.block_size, len(keys))
        is_cached = self._is_cached if self._unseen is None else self._is_seen
        found, self.lookups = self._search(keys, most, is_cached)
        if not found:
            return Match(0, array("i"), 0, None)
        ids = self._found(prompt, keys[:found])
        idle = len(ids) - int(np.count_nonzero(self._index.pins[ids]))
        return Match(len(ids) * self.block_size, table_of(ids), idle, None)

    def _keys(self, prompt: Prompt) -> list[bytes]:
        """Keys of all keyed blocks of a prompt, remembered in the prompt."""
        keys, most = prompt.keys, self._chain.keyed(len(prompt.tokens) // TOKEN_BYTES)
        if keys is None:
            keys = prompt.keys = self._memo.keys(prompt.root, prompt.tokens, most, prompt.extras, prompt.scope)
        elif len(keys) < most:
            parent = keys[-1] if keys else self._memo.root(prompt.root)
            keys += self._chain.blocks(parent, prompt.tokens, len(keys), most, prompt.extras, prompt.scope)
        return keys

    def _is_seen(self, key: bytes) -> bool:
        assert self._unseen is not None
        return key in self._index.oldest and key not in self._unseen.keys

    def _found(self, prompt: Prompt, keys: list[bytes]) -> Ids:
        """The blocks of these keys. They are all cached; if one is not, the index says so."""
        if self._content is None:
            return self._index.blocks(keys)
        ids = self._index.blocks(keys[: self._index.known(keys)])
        return ids[: self._content.confirmed(prompt, ids)]

    # -- ownership --------------------------------------------------------------------------------

    def claim(self, holding: Holding, match: Match) -> None:
        if not match.blocks:
            return
        holding.table.extend(match.blocks)
        holding.held = len(match.blocks)
        ids = ids_of(holding.table)
        self._pin(ids)
        self._order.passed(ids, holding)

    def publish(self, holding: Holding, length: int, tail: bool = False) -> list[tuple[int, int, int]]:
        """See the base. A parent never leaves before its children, so along the range:

        [held .......... known)       [known ......... end)        [end .. length)
         key known: own blocks go       keys are new: the index       no key yet:
         back and the table moves,      owns these blocks now         stays private
         or they are further copies
        """
        start, end = holding.held, length // self.block_size
        if end <= start:
            return []
        prompt, table = holding.prompt, holding.table
        keys = self._keys(prompt)
        end = min(end, len(keys))
        if self._content is None:
            known = self._index.known(keys[start:end])
        else:
            known, end = self._content.storable(prompt, keys, start, end, table[start - 1] if start else None)
        moves: list[tuple[int, int, int]] = []
        if known and self.options.duplicates == "give_back":
            moves = self._move_onto(holding, keys, start, start + known)
            start, known = start + known, 0
        if start < end:
            self._store(holding, keys, start, end, known)
        holding.held = end
        return moves

    def _move_onto(self, holding: Holding, keys: list[bytes], start: int, end: int) -> list[tuple[int, int, int]]:
        """Swap the table's own blocks [start, end) for the cached ones of the same keys."""
        table = holding.table
        ids = self._index.blocks(keys[start:end])
        own, theirs = table[start:end], table_of(ids)
        self._pin(ids)
        self._order.passed(ids, holding)
        table[start:end] = theirs
        self.pool.give(own)
        return list(zip(range(start, end), own, theirs, strict=True))

    def _store(self, holding: Holding, keys: list[bytes], start: int, end: int, known: int) -> None:
        """The index takes over the blocks [start, end) of the table, pinned once by the holding.

        The first `known` of their keys are cached already: these are further copies.
        """
        self._grow()
        prompt, new, ids = holding.prompt, keys[start:end], ids_of(holding.table, start, end)
        if self._content is not None:
            before = holding.table[start - 1] if start else None
            self._content.store(prompt, start, ids, before, self._index.blocks(new[:known]))
        self._index.add(new, ids, keys[start - 1] if start else None, known)
        self._order.stored(ids, holding, start, known)
        if known == len(new) or (self.events is None and self._unseen is None):
            return
        first = start + known
        step = self.block_size * TOKEN_BYTES
        stored = new[known:], keys[first - 1] if first else None, bytes(prompt.tokens[first * step : end * step])
        if self._unseen is not None:
            self._unseen.add(*stored, prompt.scope)
        elif self.events is not None:
            self.events.stored(*stored, prompt.scope)

    def _grow(self) -> None:
        ids = self.pool.used_ids
        self._index.grow(ids)
        self._order.grow(ids)
        if self._content is not None:
            self._content.grow(ids)

    def cut(self, holding: Holding, blocks: int) -> None:
        if blocks < holding.held:
            self._let_go(ids_of(holding.table, blocks, holding.held), holding.step)
            holding.held = blocks

    def release(self, holding: Holding) -> None:
        self._let_go(ids_of(holding.table, 0, holding.held), holding.step)
        holding.held = 0

    def share(self, holding: Holding, other: Holding, blocks: int) -> None:
        shared = holding.table[:blocks]
        self._pin(ids_of(shared))
        other.table.extend(shared)
        other.held = blocks

    def idle_blocks(self, match: Match) -> Sequence[int]:
        ids = ids_of(array("i", match.blocks))
        return table_of(ids[self._index.pins[ids] == 0])

    def handle(self, holding: Holding, index: int) -> array[int]:
        return holding.table[: index + 1]  # the path: who pins a block pins all blocks before it

    def hold(self, handle: array[int]) -> None:
        self._pin(ids_of(handle))

    def drop(self, handle: array[int]) -> None:
        self._unpin(ids_of(handle), self.step)

    def _pin(self, ids: Ids) -> None:
        """One more user of each of these different blocks."""
        pins = self._index.pins
        before = pins[ids]
        pins[ids] = before + 1
        idle = ids[before == 0]
        if idle.size:
            self._idle_blocks -= idle.size
            self._order.discard(idle)

    def _let_go(self, ids: Ids, step: int) -> None:
        """A request gives up blocks: what it has registered in this step is seen from now on."""
        if self._unseen is not None:
            self.end_step()
        self._unpin(ids, step)

    def _unpin(self, ids: Ids, step: int) -> None:
        """One user less of each of these different blocks, tail first; what nobody uses any more becomes idle."""
        if not ids.size:
            return
        ids = ids[::-1]
        pins = self._index.pins
        left = pins[ids] - 1
        pins[ids] = left
        freed = ids[left == 0]
        self._idle_blocks += freed.size
        self._order.released(ids, step)
        self._order.add(freed)

    # -- room -------------------------------------------------------------------------------------

    @property
    def idle(self) -> int:
        return self._idle_blocks

    def allocate(self, holding: Holding, index: int, blocks: int) -> array[int]:
        """See the base. Evicted blocks stand behind empty ones, in the order in which they left (as in vLLM)."""
        empty = min(blocks, self.pool.free)
        taken = self.pool.take(empty)
        if empty < blocks:
            self.evict(blocks - empty)
            taken += self.pool.take(blocks - empty)
        return taken

    def _evict(self, blocks: int) -> int:
        ids, gone = self._order.evict(blocks)
        self._idle_blocks -= ids.size
        if self.events is not None:
            self.events.removed(gone)
        if self._content is not None:
            self._content.drop(ids)
        self.pool.give(table_of(ids[::-1]))  # the pool hands out what came last
        return len(ids)

    # -- for explanations ---------------------------------------------------------------------------

    def scopes(self) -> Iterable[bytes]:
        return self._memo.scopes

    def keys_at(self, prompt: Prompt, start: int) -> Sequence[bytes]:
        index = start // self.block_size
        return self._keys(prompt)[index : index + 1]

    def outline(self) -> list[OutlineNode]:
        index = self._index
        copies = ((key, index.copies_of(key)) for key in index.oldest)  # a parent is stored before its children
        return outline_of((k, index.parent[b[0]], b"", b, int(index.pins[list(b)].sum()), (k,)) for k, b in copies)

    # -- life of the index --------------------------------------------------------------------------

    def expire(self) -> None:
        self._order.expire(self.clock())

    def end_step(self) -> None:
        super().end_step()
        if self._unseen is not None:
            self._unseen.show()

    def retire(self) -> None:
        unseen = self._unseen.forget() if self._unseen is not None else set()
        if self.events is not None:
            stale = self._order.stale
            cached = self._index.oldest.items()
            self.events.removed([key for key, block in cached if not stale(block) and key not in unseen])
        self._order.retire()

    def clear(self) -> None:
        ids, _ = self._order.evict(self._idle_blocks)
        self._idle_blocks = 0
        if self._content is not None:
            self._content.drop(ids)
        self.pool.give(table_of(ids))

    def blocks(self) -> Iterator[int]:
        yield from self._index

    def check(self) -> None:
        self._index.check()
        idle = 0
        for block in self._index:
            pinned = self._index.pins[block] > 0
            idle += not pinned
            queued = block in self._order
            if queued != (not pinned and self._order.queued(block)):
                raise InvariantError(f"block {block} is {'' if queued else 'not '}queued for eviction")
        if sum(1 for _ in self._order) != len(self._order):
            raise InvariantError("the order of eviction has lost count of itself")
        if idle != self._idle_blocks:
            raise InvariantError(f"{idle} blocks are idle, the book says {self._idle_blocks}")
        if self._unseen is not None and not self._unseen.keys <= self._index.oldest.keys():
            raise InvariantError("a key registered in this step is not cached")
        if self._content is not None:
            self._content.check()
