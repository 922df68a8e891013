"""digest_chain: a tree keyed by SHA-256(previous digest, tokens), with hits at any token.

The digest of a block covers its whole prefix, and a child is found by it. Blocks that follow each other
without a branch are one node, so a lookup hashes one block per branch and compares the rest by memcmp.
Where the whole blocks end, the child with the longest common beginning is reusable in part: its tokens are
copied before the request writes. The last, partial block of a request is stored when it closes.

    scope ──▶ d0 d1 d2 ─┬─▶ d3 d4         d[i] = SHA-256(d[i-1], tokens of block i)
                        └─▶ d3' (5 tokens of a block)
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any

from prefixcache.blocks.eviction import Facts, IdleItems, idle_items
from prefixcache.designs.base import Design, Holding, Match, Partial, Prompt
from prefixcache.designs.digest_chain.node import Node, Place
from prefixcache.designs.digest_chain.tree import DigestTree
from prefixcache.errors import InvariantError
from prefixcache.keys.chain import ChainHash
from prefixcache.keys.extras import Extras
from prefixcache.keys.tokens import TOKEN_BYTES

# A leaf that only its writer uses grows in place instead of getting a child per decoded block; beyond this
# many tokens a new leaf is begun, so that growing costs no more than copying this much.
_GROW_LIMIT = 2048


class DigestChainDesign(Design):
    """See the module. Costs: a match hashes one block per branch and compares O(tokens) bytes; each stored
    block is hashed once; a hit inside a block is found in O(1) among any number of children.
    """

    name = "digest_chain"
    defaults = {"partial": "copy"}  # noqa: RUF012
    can = {  # noqa: RUF012
        "hash": ("sha256",),
        "duplicates": ("give_back",),
        "visibility": ("computed",),
        "lookahead_by": ("drop",),
        "recency": ("release",),
        "refresh_on_split": (False,),
        "count_hits": ("match",),
        "cut_at_prompt": (False,),
        "priorities": ("0..100",),
        "child_hash": (None,),
    }
    default_eviction = "priority"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._chain = ChainHash(self.options.hash, self.block_size)
        self._partial = self.options.partial != "off" and self.block_size > 1
        self._tree = DigestTree(self._chain, self._partial)
        self._prunes = self.options.evict_unit == "node"
        self._replaced: set[Node] = set()  # partial blocks out of the tree that somebody still copies from
        self._idle_blocks = 0
        self._idle = self._new_queue()
        self._tick = 0

    # -- lookup -----------------------------------------------------------------------------------

    def match(self, prompt: Prompt, limit: int) -> Match:
        root = self._tree.roots.get(prompt.root)
        if root is None or limit <= 0:
            return Match(0, array("i"), 0, None)
        end = limit - limit % self.block_size
        path, inside, common = self._tree.walk(root, prompt.tokens, prompt.extras, 0, end)
        blocks = array("i")
        idle = 0
        for node in path:
            blocks.extend(node.blocks)
            if not node.pins:
                idle += len(node.blocks)
        if inside is not None:
            whole = common // self.block_size
            blocks.extend(inside.blocks[:whole])
            if not inside.pins:
                idle += whole
        match = Match(len(blocks) * self.block_size, blocks, idle, (path[-1] if path else root, inside, common))
        if self._partial and match.tokens < limit:
            match.partial = self._behind(prompt, limit, match)
        return match

    def _behind(self, prompt: Prompt, limit: int, match: Match) -> Partial | None:
        """The hit inside the block behind the whole ones."""
        at = match.tokens
        node, inside, common = match.anchor
        found = self._tree.nearest(node, inside, common, prompt.tokens, prompt.extras, at, limit - at)
        if found is None:
            return None
        child, begin, shared = found
        width = min(len(child.tokens) // TOKEN_BYTES, self.block_size)
        # A partial block that is exactly the rest of the prompt is found by its digest, among however many.
        exact = shared == width == limit - at
        siblings = 1 if inside is not None else len(node.children)
        if self.options.child_limit is not None and siblings >= self.options.child_limit and not exact:
            return None
        idle = not child.pins
        takeable = idle and begin + width == len(child.tokens) // TOKEN_BYTES and not child.children
        return Partial(child.blocks[begin // self.block_size], shared, idle, takeable, Place(child, at + width))

    # -- ownership --------------------------------------------------------------------------------

    def claim(self, holding: Holding, match: Match) -> None:
        if not match.tokens:
            return
        node, inside, common = match.anchor
        if inside is not None:
            node = self._split(inside, common)
        self._pin(node, None)
        holding.anchor = node
        holding.held = len(match.blocks)
        holding.table.extend(match.blocks)

    def take(self, holding: Holding, partial: Partial) -> None:
        node: Node = partial.handle.node
        holding.table.append(node.blocks[-1])
        self._cut_off(node, len(node.blocks) - 1)

    def publish(self, holding: Holding, length: int, tail: bool = False) -> list[tuple[int, int, int]]:
        """See the base. The range [held, length) is walked from the anchor:

        [held ....... present)        [present .......... end)         [end .. length)
         the tree has it: own blocks   new nodes: the tree owns         with `tail` a partial block, unless
         go back, the table moves      these blocks from now on         a sibling covers it; else private
        """
        size = self.block_size
        start, end = holding.held * size, length - length % size
        self._tick += 1
        moves = self._store(holding, start, end) if end > start else []
        if tail and self._partial and max(start, end) < length:
            self._append_tail(holding, length)
        return moves

    def _store(self, holding: Holding, start: int, end: int) -> list[tuple[int, int, int]]:
        """Publish the blocks [start, end) behind the anchor, or move onto what is there."""
        size = self.block_size
        prompt = holding.prompt
        old = holding.anchor
        node = old if old is not None else self._tree.root(prompt.root)
        moves: list[tuple[int, int, int]] = []
        present = start
        path, inside, common = self._tree.walk(node, prompt.tokens, prompt.extras, start, end)
        if inside is not None:
            path.append(self._split(inside, common))
        if path:
            for found in path:
                present = self._move_onto(holding, found, present // size, moves)
            node = path[-1]
            self._pin(node, old)
        for stop, priority in holding.retention.spans(present, end, size, holding.prompt_length):
            node = self._append(holding, node, present, stop, priority)
            present = stop
        holding.anchor = node
        holding.held = end // size
        return moves

    def _move_onto(self, holding: Holding, node: Node, index: int, moves: list[tuple[int, int, int]]) -> int:
        """Swap the table's own blocks for the node's, from this index on; the position behind it."""
        own = holding.table[index : index + len(node.blocks)]
        moves.extend((index + i, own[i], theirs) for i, theirs in enumerate(node.blocks))
        holding.table[index : index + len(own)] = node.blocks
        self.pool.give(own)
        return (index + len(own)) * self.block_size

    def _append(self, holding: Holding, node: Node, start: int, end: int, priority: int) -> Node:
        """Store the prompt's blocks in [start, end) behind `node`, pinned by the holding; their node."""
        size, prompt = self.block_size, holding.prompt
        text, extras = self._tree.cut(prompt.tokens, prompt.extras, start, end)
        blocks = holding.table[start // size : end // size]
        parent_key = node.last_digest if node.parent is not None else None
        new = self._chain.blocks(node.last_digest, text, 0, len(blocks), extras)
        if self._grows(holding, node, extras, priority):
            node.tokens += text
            node.digests += b"".join(new)
            node.blocks.extend(blocks)
            node.end = end
        else:
            self._replace_tail(node, *self._tree.cut(text, extras, 0, size))
            node = Node(node, text, b"".join(new), blocks, extras, end, priority, self._tick)
            node.pins = 1
            self._tree.attach(node)
        node.last_access = self._tick
        if self.events is not None:
            self.events.stored(new, parent_key, text, prompt.scope)
        return node

    def _grows(self, holding: Holding, node: Node, extras: Extras | None, priority: int) -> bool:
        """Whether the writer's own leaf takes the next blocks in place."""
        return (
            node is holding.anchor
            and node.parent is not None
            and node.pins == 1
            and not node.children
            and extras is None
            and node.extras is None
            and node.priority == priority
            and len(node.tokens) < _GROW_LIMIT * TOKEN_BYTES
        )

    def _append_tail(self, holding: Holding, length: int) -> None:
        """Store what does not fill a block, up to token `length`, unless a sibling covers it."""
        prompt, start = holding.prompt, holding.held * self.block_size
        node = holding.anchor if holding.anchor is not None else self._tree.root(prompt.root)
        text, extras = self._tree.cut(prompt.tokens, prompt.extras, start, length)
        found = self._tree.best_child(node, text, extras)
        if found is not None and found[1] == length - start:
            return
        self._replace_tail(node, text, extras)
        key = self._chain.block(node.last_digest, text, extras)
        block = holding.table[holding.held : holding.held + 1]
        ((_, priority),) = holding.retention.spans(start, length, self.block_size, holding.prompt_length)
        tail = Node(node, text, key, block, extras, length, priority, self._tick)
        tail.pins = 1
        self._tree.attach(tail)
        holding.anchor = tail
        holding.held += 1
        if self.events is not None:
            parent_key = node.last_digest if node.parent is not None else None
            self.events.stored((key,), parent_key, text, prompt.scope)

    def _replace_tail(self, node: Node, text: bytes, extras: Extras | None) -> None:
        """Take out the partial child that a new child with these tokens goes beyond.

        There is at most one, and it is the best match: a child that shared more with the new one would have
        replaced the partial one itself.
        """
        if not self._partial or not node.children:
            return
        found = self._tree.best_child(node, text, extras)
        if found is None or not self._tree.is_tail(found[0]) or found[1] * TOKEN_BYTES != len(found[0].tokens):
            return
        tail = found[0]
        if self.events is not None:
            self.events.removed((tail.last_digest,))
        if tail.pins:
            self._replaced.add(tail)
        else:
            self._idle.discard(tail)
            self._idle_blocks -= 1
            self.pool.give(tail.blocks)
        # The root must not go for the moment between the old child and the new one.
        self._tree.detach(tail, keep_root=True)

    def cut(self, holding: Holding, blocks: int) -> None:
        if blocks >= holding.held:
            return
        self._tick += 1
        node = self._boundary(holding.anchor, blocks * self.block_size)
        self._unpin(holding.anchor, node)
        holding.anchor = node if node.parent is not None else None
        holding.held = blocks

    def release(self, holding: Holding) -> None:
        self._tick += 1
        if holding.anchor is not None:
            self._unpin(holding.anchor, None)
        holding.anchor, holding.held = None, 0

    def share(self, holding: Holding, other: Holding, blocks: int) -> None:
        if not blocks:
            return
        node = self._boundary(holding.anchor, blocks * self.block_size)
        self._pin(node, None)
        other.anchor, other.held = node, blocks
        other.table.extend(holding.table[:blocks])

    def handle(self, holding: Holding, index: int) -> Place:
        return Place(holding.anchor, (index + 1) * self.block_size)

    def hold(self, handle: Place) -> None:
        handle.node = self._boundary(handle.node, handle.end)
        self._pin(handle.node, None)

    def drop(self, handle: Place) -> None:
        self._tick += 1
        self._unpin(handle.node, None)

    def _boundary(self, node: Node, end: int) -> Node:
        """The ancestor of `node` (or itself) that ends at `end`, split off when it lies inside one."""
        while node.parent is not None and node.parent.end >= end:
            node = node.parent
        if node.end > end:
            assert node.parent is not None
            node = self._split(node, end - node.parent.end)
        return node

    def _split(self, child: Node, at: int) -> Node:
        """Cut `child` behind its first `at` tokens; returns the new upper node. Books and events do not change.

        The cut is no use of the lower part: its recency stays, and the upper part is as old as before.
        """
        upper = self._tree.split(child, at)
        if child in self._idle.stale:
            self._idle.stale.add(upper)
        if not upper.pins and self._idle.takes_all:
            self._idle.add(upper)
        return upper

    def _pin(self, node: Node, until: Node | None) -> None:
        """One more user of every node from `node` up to (without) `until`, or to the root."""
        while node is not until and node.parent is not None:
            if not node.pins:
                self._idle_blocks -= len(node.blocks)
                self._idle.discard(node)
            node.pins += 1
            node = node.parent

    def _unpin(self, node: Node, until: Node | None) -> None:
        """One user less, tail first; what nobody uses any more becomes idle."""
        tick, takes_all = self._tick, self._idle.takes_all
        while node is not until and node.parent is not None:
            if node.pins <= 0:
                raise InvariantError(f"{node!r} is unpinned more often than pinned")
            node.pins -= 1
            node.last_access = tick
            if not node.pins:
                if node in self._replaced:
                    self._replaced.discard(node)
                    self.pool.give(node.blocks)
                else:
                    self._idle_blocks += len(node.blocks)
                    if takes_all or not node.children:
                        self._idle.add(node)
            node = node.parent

    # -- room -------------------------------------------------------------------------------------

    @property
    def idle(self) -> int:
        return self._idle_blocks

    def _new_queue(self) -> IdleItems[Node]:
        return idle_items(self.eviction, self, interior=self._prunes)

    def facts(self, item: Node) -> Facts:
        """What an eviction policy may know of a node."""
        length = len(item.tokens) // TOKEN_BYTES
        return Facts(item.last_access, item.created, 0, item.priority, item.end, length, item.end)

    def _evict(self, blocks: int) -> int:
        if self._prunes:
            return self._evict_subtrees(blocks)
        gone = 0
        while gone < blocks and self._idle:
            node = self._idle.peek()
            gone += self._drop_blocks(node, max(len(node.blocks) - (blocks - gone), 0))
        return gone

    def _evict_subtrees(self, blocks: int) -> int:
        """Choose the next `blocks` blocks, then drop each with all that hangs on it.

        As in the original: what only hangs on a victim does not count, so more may go.
        """
        victims: list[tuple[Node, int]] = []
        while blocks > 0 and self._idle:
            node = self._idle.peek()
            keep = max(len(node.blocks) - blocks, 0)
            blocks -= len(node.blocks) - keep
            victims.append((node, keep))
            if keep:
                break
            self._idle.pop()
        gone = 0
        for node, keep in victims:
            if node.parent is None:
                continue  # it hung on an earlier victim
            for lower in reversed(list(self._tree.below(node))):
                gone += self._drop_blocks(lower, 0)
            gone += self._drop_blocks(node, keep)
        return gone

    def _drop_blocks(self, node: Node, keep: int) -> int:
        """Give the blocks of an idle node without children behind its first `keep` to the pool; how many."""
        blocks = node.blocks[keep:]
        self._cut_off(node, keep)
        self.pool.give(blocks)
        return len(blocks)

    def _cut_off(self, node: Node, keep: int) -> None:
        """Take all but the first `keep` blocks of an idle node without children out of the tree."""
        if self.events is not None and node not in self._idle.stale:
            self.events.removed(node.keys(keep))
        self._idle_blocks -= len(node.blocks) - keep
        if keep:
            self._tree.shorten(node, keep)
            self._idle.rerank(node)
            return
        self._idle.discard(node)
        self._idle.forget(node)
        parent = self._tree.detach(node)
        node.parent = None
        if not parent.children and parent.parent is not None and not parent.pins and not self._idle.takes_all:
            self._idle.add(parent)

    # -- for explanations ---------------------------------------------------------------------------

    def agreeing(self, prompt: Prompt, limit: int) -> int:
        return self._tree.agreeing(prompt.root, prompt.tokens, prompt.extras, limit)

    def keys_at(self, prompt: Prompt, start: int) -> list[bytes]:
        return self._tree.keys_at(prompt.root, prompt.tokens, prompt.extras, start)

    # -- life of the index --------------------------------------------------------------------------

    def retire(self) -> None:
        nodes = list(self._tree.nodes())
        if self.events is not None:
            for node in nodes:
                if node not in self._idle.stale:
                    self.events.removed(node.keys())
        self._idle.retire(nodes)

    def clear(self) -> None:
        for node in self._tree.nodes():
            self.pool.give(node.blocks)
        self._tree.clear()
        self._idle_blocks = 0
        self._idle = self._new_queue()

    def blocks(self) -> Iterator[int]:
        for node in self._tree.nodes():
            yield from node.blocks
        for node in self._replaced:
            yield from node.blocks

    def check(self) -> None:
        self._tree.check()
        idle = 0
        users: dict[Node, int] = {}
        for node in (*self._tree.nodes(), *self._replaced):
            assert node.parent is not None
            users[node.parent] = users.get(node.parent, 0) + node.pins
        for node in self._tree.nodes():
            if node.pins < users.get(node, 0):
                raise InvariantError(f"{node!r} has fewer pins than its children together")
            if not node.pins:
                idle += len(node.blocks)
            queued = node in self._idle
            if queued != (not node.pins and (self._idle.takes_all or not node.children)):
                raise InvariantError(f"{node!r} is {'' if queued else 'not '}queued for eviction")
        if not all(node.pins for node in self._replaced):
            raise InvariantError("a partial block that was replaced is kept for nobody")
        if idle != self._idle_blocks:
            raise InvariantError(f"{idle} blocks are idle, the book says {self._idle_blocks}")
