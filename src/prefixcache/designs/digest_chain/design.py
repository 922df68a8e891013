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
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

from prefixcache.designs.base import Design, Holding, Match, Partial, Prompt
from prefixcache.designs.digest_chain.node import Node, Place
from prefixcache.designs.digest_chain.tree import DigestTree
from prefixcache.designs.digest_chain.uses import Uses
from prefixcache.designs.outline import OutlineNode, outline_of
from prefixcache.keys.chain import ChainHash
from prefixcache.keys.extras import Extras
from prefixcache.keys.tokens import TOKEN_BYTES

# A leaf that only its writer uses grows in place instead of getting a child per decoded block; beyond this
# many tokens a new leaf is begun, so that growing costs no more than copying this much.
_GROW_LIMIT = 2048

Terms: TypeAlias = tuple[int, float | None]  # priority and time to live


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
        self._uses = self._new_uses()

    def _new_uses(self) -> Uses:
        return Uses(self._tree, self.eviction, self._prunes, self.clock)

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

    def beside(self, prompt: Prompt, limit: int, least: int, ends: bool) -> Iterator[tuple[int, Iterator[Partial]]]:
        root = self._tree.roots.get(prompt.root)
        if root is None or not self._partial or ends:  # a block that goes on takes the place of an end that begins it
            return
        path, inside, _ = self._tree.walk(root, prompt.tokens, prompt.extras, 0, limit - limit % self.block_size)
        onward = [*path, inside]
        most = self.options.child_limit
        for node, follow in zip(reversed([root, *path]), reversed(onward), strict=True):
            if node.end < least:
                return
            if len(node.children) > (follow is not None) and (most is None or len(node.children) < most):
                yield node.end, self._others(prompt, limit, node, follow)

    def _others(self, prompt: Prompt, limit: int, node: Node, follow: Node | None) -> Iterator[Partial]:
        """The first blocks of the children, but for the one with which the match goes on."""
        at, size = node.end, self.block_size
        text, carried = self._tree.cut(prompt.tokens, prompt.extras, at, min(at + size, limit))
        for child, shared in self._tree.alike(node, text, carried):
            if child is not follow:
                end = at + min(len(child.tokens) // TOKEN_BYTES, size)
                yield Partial(child.blocks[0], shared, not child.pins, False, Place(child, end))

    def last_block(self, match: Match, tokens: int) -> Partial | None:
        node, inside, _ = match.anchor
        holder = inside or node
        place = Place(holder, match.tokens)
        return Partial(match.blocks[-1], tokens, not holder.pins, False, place) if self._partial else None

    def unfilled_end(self, prompt: Prompt, length: int) -> int:
        partial = self.match(prompt, length).partial
        return partial.source if partial is not None and partial.handle.end == length else -1

    # -- ownership --------------------------------------------------------------------------------

    def claim(self, holding: Holding, match: Match) -> None:
        if not match.tokens:
            return
        node, inside, common = match.anchor
        if inside is not None:
            node = self._uses.split(inside, common)
        self._uses.pin(node)
        holding.anchor = node
        holding.held = len(match.blocks)
        holding.table.extend(match.blocks)

    def take(self, holding: Holding, partial: Partial) -> None:
        node: Node = partial.handle.node
        holding.table.extend(self._cut_off(node, len(node.blocks) - 1))

    def publish(self, holding: Holding, length: int, tail: bool = False) -> list[tuple[int, int, int]]:
        """See the base. The range [held, length) is walked from the anchor:

        [held ....... present)        [present .......... end)         [end .. length)
         the tree has it: own blocks   new nodes: the tree owns         with `tail` a partial block, unless
         go back, the table moves      these blocks from now on         a sibling covers it; else private
        """
        size = self.block_size
        start, end = holding.held * size, length - length % size
        self._uses.begin()
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
            path.append(self._uses.split(inside, common))
        if path:
            for found in path:
                present = self._move_onto(holding, found, present // size, moves)
            node = path[-1]
            self._uses.pin(node, old)
        for stop, priority, ttl in holding.retention.spans(present, end, size, holding.prompt_length):
            node = self._append(holding, node, present, stop, (priority, ttl))
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

    def _append(self, holding: Holding, node: Node, start: int, end: int, terms: Terms) -> Node:
        """Store the prompt's blocks in [start, end) behind `node`, pinned by the holding; their node."""
        size, prompt = self.block_size, holding.prompt
        text, extras = self._tree.cut(prompt.tokens, prompt.extras, start, end)
        blocks = holding.table[start // size : end // size]
        parent_key = node.last_digest if node.parent is not None else None
        new = self._chain.blocks(node.last_digest, text, 0, len(blocks), extras)
        if self._grows(holding, node, extras, terms):
            node.tokens += text
            node.digests += b"".join(new)
            node.blocks.extend(blocks)
            node.end = end
        else:
            self._replace_tail(node, *self._tree.cut(text, extras, 0, size))
            node = Node(node, text, b"".join(new), blocks, extras, end, terms, self._uses.tick)
            node.pins = 1
            self._tree.attach(node)
        node.last_access = self._uses.tick
        if self.events is not None:
            self.events.stored(new, parent_key, text, prompt.scope)
        return node

    def _grows(self, holding: Holding, node: Node, extras: Extras | None, terms: Terms) -> bool:
        """Whether the writer's own leaf takes the next blocks in place."""
        return (
            node is holding.anchor
            and node.parent is not None
            and node.pins == 1
            and not node.children
            and extras is None
            and node.extras is None
            and (node.priority, node.ttl) == terms
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
        ((_, priority, ttl),) = holding.retention.spans(start, length, self.block_size, holding.prompt_length)
        tail = Node(node, text, key, block, extras, length, (priority, ttl), self._uses.tick)
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
        if tail.pins and self.pool.freed is not None:
            self.pool.freed(tail.blocks)  # it has yet to be copied, and nobody can find it any more
        self.pool.give(self._uses.replace(tail))

    def cut(self, holding: Holding, blocks: int) -> None:
        if blocks >= holding.held:
            return
        self._uses.begin()
        node = self._boundary(holding.anchor, blocks * self.block_size)
        self.pool.give(self._uses.unpin(holding.anchor, node))
        holding.anchor = node if node.parent is not None else None
        holding.held = blocks

    def release(self, holding: Holding) -> None:
        self._uses.begin()
        if holding.anchor is not None:
            self.pool.give(self._uses.unpin(holding.anchor))
        holding.anchor, holding.held = None, 0

    def share(self, holding: Holding, other: Holding, blocks: int) -> None:
        if not blocks:
            return
        node = self._boundary(holding.anchor, blocks * self.block_size)
        self._uses.pin(node)
        other.anchor, other.held = node, blocks
        other.table.extend(holding.table[:blocks])

    def handle(self, holding: Holding, index: int) -> Place:
        return Place(holding.anchor, (index + 1) * self.block_size)

    def hold(self, handle: Place) -> None:
        handle.node = self._boundary(handle.node, handle.end)
        self._uses.pin(handle.node)

    def drop(self, handle: Place) -> None:
        self._uses.begin()
        self.pool.give(self._uses.unpin(handle.node))

    def _boundary(self, node: Node, end: int) -> Node:
        """The ancestor of `node` (or itself) that ends at `end`, split off when it lies inside one."""
        while node.parent is not None and node.parent.end >= end:
            node = node.parent
        if node.end > end:
            assert node.parent is not None
            node = self._uses.split(node, end - node.parent.end)
        return node

    # -- room -------------------------------------------------------------------------------------

    @property
    def idle(self) -> int:
        return self._uses.idle

    def _evict(self, blocks: int) -> int:
        if self._prunes:
            return self._evict_subtrees(blocks)
        gone = 0
        while gone < blocks and self._uses.items:
            gone += self._drop_blocks(*self._uses.next_leaf(blocks - gone))
        return gone

    def _evict_subtrees(self, blocks: int) -> int:
        """Choose the next `blocks` blocks, then drop each with all that hangs on it.

        As in the original: what only hangs on a victim does not count, so more may go.
        """
        gone = 0
        for node, keep in list(self._uses.next_anywhere(blocks)):
            if node.parent is None:
                continue  # it hung on an earlier victim
            for lower in reversed(list(self._tree.below(node))):
                gone += self._drop_blocks(lower, 0)
            gone += self._drop_blocks(node, keep)
        return gone

    def _drop_blocks(self, node: Node, keep: int) -> int:
        """Give all but the first `keep` blocks of an unused node without children to the pool; how many."""
        if self.lower is not None and node not in self._uses.items.stale and not self._tree.is_tail(node):
            self.lower.evicting(node.keys(keep), node.key_before(keep), node.blocks[keep:])
        gone = self._cut_off(node, keep)
        self.pool.give(gone)
        return len(gone)

    def _cut_off(self, node: Node, keep: int) -> list[int]:
        """Take all but the first `keep` blocks of an unused node without children out of the tree."""
        if self.events is not None and node not in self._uses.items.stale:
            self.events.removed(node.keys(keep))
        return self._uses.cut_off(node, keep)

    def keys_behind(self, prompt: Prompt, match: Match) -> Iterator[bytes]:
        node, inside, common = match.anchor or (None, None, 0)
        before = node.key_after if node is not None else None
        if inside is not None and common:
            before = inside.key_before(common // self.block_size)
        return self._chain.behind(prompt.root, before, prompt.tokens, match.tokens, prompt.extras)

    # -- for explanations ---------------------------------------------------------------------------

    def agreeing(self, prompt: Prompt, limit: int) -> int:
        return self._tree.agreeing(prompt.root, prompt.tokens, prompt.extras, limit)

    def scopes(self) -> Iterable[bytes]:
        return self._tree.roots

    def keys_at(self, prompt: Prompt, start: int) -> list[bytes]:
        return self._tree.keys_at(prompt.root, prompt.tokens, prompt.extras, start)

    def outline(self) -> list[OutlineNode]:
        return outline_of((n, n.parent, n.tokens, n.blocks, n.pins, n.keys()) for n in self._tree.nodes())

    # -- life of the index --------------------------------------------------------------------------

    def expire(self) -> None:
        self._uses.expire()

    def retire(self) -> None:
        nodes, stale = list(self._tree.nodes()), self._uses.items.stale
        if self.events is not None:
            for node in nodes:
                if node not in stale:
                    self.events.removed(node.keys())
        self._uses.items.retire(nodes)

    def clear(self) -> None:
        for node in self._tree.nodes():
            self.pool.give(node.blocks)
        self._tree.clear()
        self._uses = self._new_uses()

    def blocks(self) -> Iterator[int]:
        for node in (*self._tree.nodes(), *self._uses.replaced):
            yield from node.blocks

    def check(self) -> None:
        self._tree.check()
        self._uses.check()
