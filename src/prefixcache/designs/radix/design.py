"""radix: a compressed radix tree over pages of tokens (SGLang's RadixCache).

Each edge holds a run of pages. A child is found by one dict lookup on its first page, then the whole edge
is compared with the prompt by memcmp. Where a prompt leaves an edge in the middle, the edge is split at the
page boundary. At block_size 1 any token can be the boundary.

    insert 1 2 3 4, then 1 2 5:      root ── 1 2 ─┬─ 3 4
                                                  └─ 5
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from prefixcache.blocks.eviction import Facts, IdleItems, idle_items, read_policy
from prefixcache.designs.base import Design, Holding, Match, Partial, Prompt
from prefixcache.designs.outline import OutlineNode, outline_of
from prefixcache.designs.radix.bare import BareLeaves
from prefixcache.designs.radix.behind import agreeing, last_page, look_behind, look_beside
from prefixcache.designs.radix.hashing import PageHash
from prefixcache.designs.radix.node import Moves, Node, PathBlocks, Place, key_before
from prefixcache.designs.radix.standing import Standing
from prefixcache.designs.radix.tree import RadixTree
from prefixcache.errors import InvariantError
from prefixcache.keys.extras import Extras
from prefixcache.keys.tokens import TOKEN_BYTES

# A leaf that only its writer uses grows in place instead of getting a child per decoded page; beyond this
# many tokens a new leaf is begun, so that growing costs no more than copying this much.
_GROW_LIMIT = 2048


class RadixDesign(Design):
    """See the module. Costs: a match is O(nodes) lookups and O(tokens) memcmp; a split copies one edge."""

    name = "radix"
    defaults = {"lookahead_by": "key"}  # noqa: RUF012
    can = {  # noqa: RUF012
        "duplicates": ("give_back",),
        "visibility": ("computed",),
        "child_limit": (None,),
    }

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        options = self.options
        # The KV of the last computed token waits for the one behind it.
        self.ahead = self.withheld = int(options.lookahead and options.lookahead_by == "key")
        self._partial = options.partial != "off" and self.block_size > 1
        self._tree = RadixTree(self.block_size, self.ahead, options.child_hash)
        self._hash = PageHash(options.hash, self.block_size, self.ahead)
        self.trusted_keys = self._hash.trusted
        self._policy = read_policy(self.eviction)
        self._standing = Standing(self._policy, options, self.block_size)
        self.any_priority = options.priorities == "any"
        self._idle_blocks = 0
        self._idle = self._nothing_idle()
        self._bare = BareLeaves(self._tree)

    def _nothing_idle(self) -> IdleItems[Node]:
        return idle_items(self._policy, self, by_release=not self._standing.by_use)

    # -- lookup -----------------------------------------------------------------------------------

    def match(self, prompt: Prompt, limit: int) -> Match:
        limit = min(limit, len(prompt.tokens) // TOKEN_BYTES - self.ahead)
        root = self._tree.roots.get(prompt.root)
        if root is None or limit <= 0:
            return Match(0, array("i"), 0, None)
        end = limit - limit % self.block_size
        path, inside, common = self._tree.walk(root, prompt.tokens, prompt.extras, 0, end)
        last = path[-1] if path else root
        tokens = last.end + common
        blocks = PathBlocks(path, inside, common // self.block_size, self.block_size)
        match = Match(tokens, blocks, blocks.idle, (last, inside, common))
        if (self._partial or self.ahead) and tokens < limit:
            look_behind(self._tree, prompt, limit, match, self._partial)
        return match

    def beside(self, prompt: Prompt, limit: int, least: int, ends: bool) -> Iterator[tuple[int, Iterator[Partial]]]:
        return look_beside(self._tree, prompt, limit, least) if self._partial and not ends else iter(())

    def last_block(self, match: Match, tokens: int) -> Partial | None:
        return last_page(match, tokens) if self._partial else None

    # -- ownership --------------------------------------------------------------------------------

    def claim(self, holding: Holding, match: Match) -> None:
        if not match.tokens:
            return
        holding.table.extend(match.blocks[:])  # before the cut: they are read off the nodes as they are now
        node, inside, common = match.anchor
        self._standing.now()
        if inside is not None:
            node = self._split(inside, common)
        self._pin(node, None)
        holding.anchor = node
        holding.held = len(match.blocks)
        self._standing.matched(holding, match.tokens)

    def take(self, holding: Holding, partial: Partial) -> None:
        holding.table.extend(self._cut_off(partial.handle.node, 1))

    def publish(self, holding: Holding, length: int, tail: bool = False) -> Moves:
        """See the base. The range [held, length) is walked from the anchor:

        [held ....... present)        [present .......... end)        [end .. length)
         the tree has it: own blocks   one new leaf: the tree owns     unaligned: stays private
         go back, the table moves      these blocks from now on
        """
        size = self.block_size
        length -= self.withheld
        start, end = holding.held * size, length - length % size
        moves = self._store(holding, start, end) if end > start else Moves()
        end = max(start, end)
        if end > 0 and holding.anchor is not None and holding.used:
            self._standing.published(holding, end)
            if self.options.cut_at_prompt:
                self._cut_at_prompt(holding, end)
            if self._standing.by_use:
                self._standing.touch(holding.anchor)
        return moves

    def _store(self, holding: Holding, start: int, end: int) -> Moves:
        """Publish the tokens [start, end) behind the anchor, or move onto what is there."""
        size = self.block_size
        prompt = holding.prompt
        self._standing.now()
        old = holding.anchor
        node = old if old is not None else self._tree.root(prompt.root)
        moves = Moves()
        present = start
        path, inside, common = self._tree.walk(node, prompt.tokens, prompt.extras, start, end)
        if inside is not None:
            path.append(self._split(inside, common))
        if path:
            for found in path:
                present = self._move_onto(holding, found, present // size, moves)
            node = path[-1]
            self._pin(node, old)
        if present < end:
            node = self._append(holding, node, present, end)
        holding.anchor = node
        holding.held = end // size
        return moves

    def _move_onto(self, holding: Holding, node: Node, index: int, moves: Moves) -> int:
        """Swap the table's own blocks for the node's, from this index on; the position behind it."""
        end = index + len(node.blocks)
        own = holding.table[index:end]
        holding.table[index:end] = node.blocks
        moves.add(index, own, node.blocks[:])
        self.pool.give(own)
        return end * self.block_size

    def _append(self, holding: Holding, node: Node, start: int, end: int) -> Node:
        """Store the prompt's tokens [start, end) behind `node`, pinned by the holding; the last node."""
        for stop in self._standing.spans(holding, start, end):
            node = self._append_leaf(holding, node, start, stop)
            start = stop
        return node

    def _append_leaf(self, holding: Holding, node: Node, start: int, end: int) -> Node:
        """Store the prompt's tokens [start, end) behind `node` as one leaf, or by growing it."""
        size, ahead = self.block_size, self.ahead
        prompt = holding.prompt
        key = bytes(prompt.tokens[start * TOKEN_BYTES : (end + ahead) * TOKEN_BYTES])
        blocks = holding.table[start // size : end // size]
        extras = prompt.extras.cut(start, end + ahead) if prompt.extras is not None else None
        parent_key = node.page_keys[-1] if node.page_keys else None
        if self._grows(holding, node, extras, start):
            self._tree.grow(node, key[ahead * TOKEN_BYTES :], blocks, end)
            if holding.counted >= start:
                holding.counted = end  # it is counted already
        else:
            leaf = Node(node, key, blocks, extras, end, self._standing.now())
            leaf.pins = 1
            self._tree.attach(leaf)
            node = holding.leaf = leaf
        self._standing.stored(node, holding, start)
        if self.events is not None:
            new = self._hash.keys(prompt, parent_key, key, len(blocks), extras)
            node.page_keys += new
            self.events.stored(new, parent_key, key[: len(blocks) * size * TOKEN_BYTES], prompt.scope)
        return node

    def _grows(self, holding: Holding, node: Node, extras: Extras | None, start: int) -> bool:
        """Whether a leaf that nobody else uses takes the next pages in place. Never where whole nodes are evicted.

        Under LRU any leaf may: its pages are released together from now on. Elsewhere only the writer's own, whose
        pages have one age and one count of hits.
        """
        return (
            self.options.evict_unit == "tail"
            and (self._idle.takes_all or node is holding.leaf)
            and node is holding.anchor
            and node.parent is not None
            and node.pins == 1
            and not node.children
            and extras is None
            and node.extras is None
            and len(node.key) < _GROW_LIMIT * TOKEN_BYTES
            and self._standing.same(node, holding, start)
        )

    def cut(self, holding: Holding, blocks: int) -> None:
        if blocks >= holding.held:
            return
        self._standing.now()
        node = self._boundary(holding.anchor, blocks * self.block_size)
        self._unpin(holding.anchor, node)
        holding.anchor = node if node.parent is not None else None
        holding.held = blocks
        holding.counted = min(holding.counted, blocks * self.block_size)

    def release(self, holding: Holding) -> None:
        self._standing.now()
        if holding.anchor is not None:
            self._unpin(holding.anchor, None)
        holding.anchor, holding.leaf, holding.held = None, None, 0

    def share(self, holding: Holding, other: Holding, blocks: int) -> None:
        if not blocks:
            return
        node = self._boundary(holding.anchor, blocks * self.block_size)
        self._pin(node, None)
        other.anchor, other.held = node, blocks
        other.table.extend(holding.table[:blocks])
        other.counted = min(holding.counted, blocks * self.block_size)

    def handle(self, holding: Holding, index: int) -> Place:
        return Place(holding.anchor, (index + 1) * self.block_size)

    def hold(self, handle: Place) -> None:
        handle.node = self._boundary(handle.node, handle.end)
        self._pin(handle.node, None)

    def drop(self, handle: Place) -> None:
        self._standing.now()
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

        The cut is no use of the lower part: its recency stays, and the upper part is as old as before. The
        original sees it otherwise (`refresh_on_split`).
        """
        upper = self._tree.split(child, at)
        if self._standing.timed:
            self._standing.split(child, upper)
        if self.options.refresh_on_split:
            child.last_access = self._standing.tick
            upper.created = upper.last_access = self._standing.now()
        if child in self._idle.stale:
            self._idle.stale.add(upper)
        if not upper.pins and self._idle.takes_all:
            self._idle.add(upper)
        self._idle.rerank(child)
        return upper

    def _pin(self, node: Node, until: Node | None) -> None:
        """One more user of every node from `node` up to (without) `until`, or to the root."""
        timed = self._standing.timed
        while node is not until and node.parent is not None:
            if not node.pins:
                self._idle_blocks -= len(node.blocks)
                self._idle.discard(node)
                if timed:
                    self._standing.pinned(node)
            node.pins += 1
            node = node.parent

    def _unpin(self, node: Node, until: Node | None) -> None:
        """One user less, tail first; what nobody uses any more becomes idle."""
        tick, takes_all, by_release = self._standing.tick, self._idle.takes_all, not self._standing.by_use
        watched = self._bare.watched
        timed = self._standing.timed
        while node is not until and node.parent is not None:
            if node.pins <= 0:
                raise InvariantError(f"{node!r} is unpinned more often than pinned")
            node.pins -= 1
            if by_release:
                node.last_access = tick
            if not node.pins:
                self._idle_blocks += len(node.blocks)
                if timed:
                    self._standing.idle(node, self.clock())
                if takes_all or not node.children:
                    self._idle.add(node)
                if watched and not node.children:
                    self._bare.note(node)
            node = node.parent

    def _cut_at_prompt(self, holding: Holding, end: int) -> None:
        """Give the prompt a node boundary, and a priority of its own, so that it can stay without the answer."""
        prompt_end = max(holding.prompt_length - self.ahead, 0)
        prompt_end -= prompt_end % self.block_size
        if 0 < prompt_end < end:
            self._standing.prefer_prompt(holding, self._boundary(holding.anchor, prompt_end))

    # -- room -------------------------------------------------------------------------------------

    @property
    def idle(self) -> int:
        return self._idle_blocks

    def facts(self, item: Node) -> Facts:
        """What an eviction policy may know of a leaf."""
        return self._standing.facts(item)

    def _evict(self, blocks: int) -> int:
        gone, whole = 0, self.options.evict_unit == "node"
        while gone < blocks:
            try:
                node = self._idle.peek()
            except LookupError:
                break
            pages = len(node.blocks) if whole else min(len(node.blocks), blocks - gone)
            if self._bare and node not in self._idle.stale:
                node, pages = self._bare.take(blocks - gone, whole) or (node, pages)
            if self.lower is not None and node not in self._idle.stale:
                self.lower.evicting(*node.last(pages))
            self.pool.give(self._cut_off(node, pages))
            gone += pages
        return gone

    def keys_behind(self, prompt: Prompt, match: Match) -> Iterable[bytes]:
        node, inside, common = match.anchor or (None, None, 0)
        return self._hash.behind(prompt, match.tokens, key_before(node, inside, common // self.block_size))

    def watch_leaves(self, ends_a_hit: Callable[[int], bool]) -> None:
        self._bare.watch(ends_a_hit)

    def left_bare(self, blocks: Iterable[int]) -> None:
        self._bare.add(blocks)

    def _cut_off(self, node: Node, pages: int) -> array[int]:
        """Take the last pages of an idle leaf out of the tree; their blocks are the caller's."""
        return self._take_out(node) if pages == len(node.blocks) else self._trim(node, pages)

    def _take_out(self, node: Node) -> array[int]:
        """Take an idle leaf out of the tree; its blocks are the caller's."""
        self._idle.discard(node)
        self._report_removed(node, 0)
        self._idle.forget(node)
        if self._standing.timed:
            self._standing.gone(node)
        self._idle_blocks -= len(node.blocks)
        parent = self._tree.detach(node)
        if not parent.children and parent.parent is not None and not parent.pins and not self._idle.takes_all:
            self._idle.add(parent)
        if self._bare.watched:
            self._bare.note(parent)
        return node.blocks

    def _trim(self, node: Node, pages: int) -> array[int]:
        """Cut the last pages off an idle leaf that stays; their blocks are the caller's."""
        keep = len(node.blocks) - pages
        self._report_removed(node, keep)
        self._idle_blocks -= pages
        gone = self._tree.shorten(node, keep)
        self._idle.rerank(node)
        if self._bare.watched:
            self._bare.note(node)
        return gone

    def _report_removed(self, node: Node, from_page: int) -> None:
        if self.events is not None and node not in self._idle.stale:
            self.events.removed(node.page_keys[from_page:])

    # -- for explanations ---------------------------------------------------------------------------

    def agreeing(self, prompt: Prompt, limit: int) -> int:
        return agreeing(self._tree, prompt, limit, self.match(prompt, limit))

    def scopes(self) -> Iterable[bytes]:
        return self._tree.roots

    def keys_at(self, prompt: Prompt, start: int) -> Sequence[bytes]:
        pages = start // self.block_size + 1
        end = pages * self.block_size + self.ahead
        if end * TOKEN_BYTES > len(prompt.tokens):
            return ()
        extras = prompt.extras.cut(0, end) if prompt.extras is not None else None
        return self._hash.keys(prompt, None, bytes(prompt.tokens[: end * TOKEN_BYTES]), pages, extras)[-1:]

    def outline(self) -> list[OutlineNode]:
        step = self.block_size * TOKEN_BYTES
        nodes = self._tree.nodes()
        return outline_of((n, n.parent, n.key[: len(n.blocks) * step], n.blocks, n.pins, n.page_keys) for n in nodes)

    # -- life of the index --------------------------------------------------------------------------

    def expire(self) -> None:
        if self._standing.timed:
            for node in self._standing.expire(self.clock()):
                self._idle.rerank(node)

    def retire(self) -> None:
        nodes = list(self._tree.nodes())
        if self.events is not None:
            for node in nodes:
                if node not in self._idle.stale:
                    self.events.removed(node.page_keys)
        self._idle.retire(nodes)

    def clear(self) -> None:
        for node in self._tree.nodes():
            self.pool.give(node.blocks)
        self._tree.clear()
        self._idle_blocks = 0
        self._idle = self._nothing_idle()
        self._bare.clear()
        self._standing.clear()

    def blocks(self) -> Iterator[int]:
        for node in self._tree.nodes():
            yield from node.blocks

    def check(self) -> None:
        self._tree.check()
        idle = 0
        for node in self._tree.nodes():
            if self.events is not None and len(node.page_keys) != len(node.blocks):
                raise InvariantError(f"{node!r} has {len(node.page_keys)} page keys")
            if fault := self._standing.check(node):
                raise InvariantError(f"{node!r} {fault}")
            if not node.pins:
                idle += len(node.blocks)
            queued = node in self._idle
            if queued != (not node.pins and (self._idle.takes_all or not node.children)):
                raise InvariantError(f"{node!r} is {'' if queued else 'not '}queued for eviction")
        if idle != self._idle_blocks:
            raise InvariantError(f"{idle} blocks are idle, the book says {self._idle_blocks}")
