"""radix: a compressed radix tree over pages of tokens (SGLang's RadixCache).

Each edge holds a run of pages. A child is found by one dict lookup on its first page, then the whole edge
is compared with the prompt by memcmp. Where a prompt leaves an edge in the middle, the edge is split at the
page boundary. At block_size 1 any token can be the boundary.

    insert 1 2 3 4, then 1 2 5:      root ── 1 2 ─┬─ 3 4
                                                  └─ 5
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from prefixcache.blocks.eviction import Facts, idle_items, read_policy
from prefixcache.blocks.retention import DEFAULT_PRIORITY
from prefixcache.designs.base import Design, Holding, Match, Partial, Prompt
from prefixcache.designs.outline import OutlineNode, outline_of
from prefixcache.designs.radix.node import Node, Place
from prefixcache.designs.radix.tree import RadixTree
from prefixcache.errors import InvariantError
from prefixcache.keys.chain import ChainHash
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
        self.ahead = int(options.lookahead and options.lookahead_by == "key")
        self._partial = options.partial != "off" and self.block_size > 1
        self._tree = RadixTree(self.block_size, self.ahead, self._partial or self.ahead > 0, options.child_hash)
        self._chain = ChainHash(options.hash, self.block_size * (1 + self.ahead))
        policy = read_policy(self.eviction)
        self._by_use = options.recency == "use"
        self._marks = bool(policy.uses & {"hits", "priority"})
        self._histories = "history" in policy.uses
        self.any_priority = options.priorities == "any"
        self._default_priority = 0 if self.any_priority else DEFAULT_PRIORITY
        self._idle = idle_items(policy, self, by_release=not self._by_use)
        self._idle_blocks = 0
        self._tick = 0

    # -- lookup -----------------------------------------------------------------------------------

    def match(self, prompt: Prompt, limit: int) -> Match:
        limit = min(limit, len(prompt.tokens) // TOKEN_BYTES - self.ahead)
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
            pages = common // self.block_size
            blocks.extend(inside.blocks[:pages])
            if not inside.pins:
                idle += pages
        match = Match(len(blocks) * self.block_size, blocks, idle, (path[-1] if path else root, inside, common))
        if self._tree.indexed and match.tokens < limit:
            self._look_behind(prompt, limit, match)
        return match

    def _look_behind(self, prompt: Prompt, limit: int, match: Match) -> None:
        """Add to a match what the page behind it offers, and what was missed for the token ahead alone."""
        at, size, ahead = match.tokens, self.block_size, self.ahead
        node, inside, common = match.anchor
        found = self._tree.nearest(node, inside, common, prompt.tokens, prompt.extras, at, limit - at + ahead)
        if found is None:
            return
        child, begin, shared = found
        without = min(shared, limit - at)  # if the token ahead did not matter
        shared = max(min(shared - ahead, limit - at), 0)
        if not self._partial:
            match.dropped = without - without % size
            return
        match.dropped = without - shared
        if not shared:
            return
        assert child.parent is not None
        end = child.parent.end + begin + size
        idle = not child.pins
        takeable = idle and end == child.end and not child.children
        match.partial = Partial(child.blocks[begin // size], shared, idle, takeable, Place(child, end))

    # -- ownership --------------------------------------------------------------------------------

    def claim(self, holding: Holding, match: Match) -> None:
        if not match.tokens:
            return
        node, inside, common = match.anchor
        self._tick += 1
        if inside is not None:
            node = self._split(inside, common)
        self._pin(node, None)
        holding.anchor = node
        holding.held = len(match.blocks)
        holding.table.extend(match.blocks)
        if self._by_use:
            self._touch(node)
        if self._marks and self.options.count_hits == "match":
            self._mark(holding, match.tokens)

    def take(self, holding: Holding, partial: Partial) -> None:
        node: Node = partial.handle.node
        taken = self._take_out(node) if len(node.blocks) == 1 else self._trim(node, 1)
        holding.table.extend(taken)

    def publish(self, holding: Holding, length: int, tail: bool = False) -> list[tuple[int, int, int]]:
        """See the base. The range [held, length) is walked from the anchor:

        [held ....... present)        [present .......... end)        [end .. length)
         the tree has it: own blocks   one new leaf: the tree owns     unaligned: stays private
         go back, the table moves      these blocks from now on
        """
        size = self.block_size
        length -= self.ahead  # the KV of the last computed token waits for the one behind it
        start, end = holding.held * size, length - length % size
        moves = self._store(holding, start, end) if end > start else []
        end = max(start, end)
        if end > 0 and holding.anchor is not None and holding.used:
            if self._marks:
                self._mark(holding, end)
            if self.options.cut_at_prompt:
                self._cut_at_prompt(holding, end)
            if self._by_use:
                self._touch(holding.anchor)
        return moves

    def _store(self, holding: Holding, start: int, end: int) -> list[tuple[int, int, int]]:
        """Publish the tokens [start, end) behind the anchor, or move onto what is there."""
        size = self.block_size
        prompt = holding.prompt
        self._tick += 1
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
        if present < end:
            node = self._append(holding, node, present, end)
        holding.anchor = node
        holding.held = end // size
        return moves

    def _move_onto(self, holding: Holding, node: Node, index: int, moves: list[tuple[int, int, int]]) -> int:
        """Swap the table's own blocks for the node's, from this index on; the position behind it."""
        own = holding.table[index : index + len(node.blocks)]
        changed = [
            (i, mine, theirs)
            for i, (mine, theirs) in enumerate(zip(own, node.blocks, strict=True), index)
            if mine != theirs
        ]
        moves += changed
        holding.table[index : index + len(own)] = node.blocks
        self.pool.give([mine for _, mine, _ in changed])
        return (index + len(own)) * self.block_size

    def _append(self, holding: Holding, node: Node, start: int, end: int) -> Node:
        """Store the prompt's tokens [start, end) behind `node`, pinned by the holding; the last node."""
        for stop, priority in self._spans(holding, start, end):
            node = self._append_leaf(holding, node, start, stop, priority)
            start = stop
        return node

    def _spans(self, holding: Holding, start: int, end: int) -> list[tuple[int, int]]:
        """(end, priority) of the runs of equal priority in [start, end): a node has one priority."""
        retention, prompt_length = holding.retention, holding.prompt_length
        if not self._marks or not retention.ranges:
            return [(end, self._priority_at(holding, start))]
        size = self.block_size
        edges = {-(-edge // size) * size for edge in retention.edges(prompt_length)}
        stops = [*sorted(edge for edge in edges if start < edge < end), end]
        begins = [start, *stops[:-1]]
        spans: list[tuple[int, int]] = []
        for begin, stop in zip(begins, stops, strict=True):
            priority = self._priority_at(holding, begin)
            if spans and spans[-1][1] == priority:
                spans.pop()
            spans.append((stop, priority))
        return spans

    def _priority_at(self, holding: Holding, position: int) -> int:
        priority, _ = holding.retention.at(position, holding.prompt_length)
        return self._default_priority if priority is None else priority

    def _append_leaf(self, holding: Holding, node: Node, start: int, end: int, priority: int) -> Node:
        """Store the prompt's tokens [start, end) behind `node` as a leaf of this priority, or by growing it."""
        size, ahead = self.block_size, self.ahead
        prompt = holding.prompt
        key = bytes(prompt.tokens[start * TOKEN_BYTES : (end + ahead) * TOKEN_BYTES])
        blocks = holding.table[start // size : end // size]
        extras = prompt.extras.cut(start, end + ahead) if prompt.extras is not None else None
        parent_key = node.page_keys[-1] if node.page_keys else None
        if self._grows(holding, node, extras, priority):
            node.key += key[ahead * TOKEN_BYTES :]
            node.blocks.extend(blocks)
            node.end = end
            if holding.counted >= start:
                holding.counted = end  # it is counted already
        else:
            self._tick += 1
            leaf = Node(node, key, blocks, extras, end, self._tick)
            leaf.pins, leaf.priority = 1, priority
            self._tree.attach(leaf)
            node = leaf
        node.last_access = self._tick
        if self._histories:
            self._raise_history(node)
        if self.events is not None:
            new = self._page_keys(prompt, parent_key, key, len(blocks), extras)
            node.page_keys += new
            self.events.stored(new, parent_key, key[: len(blocks) * size * TOKEN_BYTES], prompt.scope)
        return node

    def _grows(self, holding: Holding, node: Node, extras: Extras | None, priority: int) -> bool:
        """Whether the writer's own leaf takes the next pages in place. Never where whole nodes are evicted."""
        return (
            self.options.evict_unit == "tail"
            and node is holding.anchor
            and node.parent is not None
            and node.pins == 1
            and not node.children
            and extras is None
            and node.extras is None
            and node.priority == priority
            and len(node.key) < _GROW_LIMIT * TOKEN_BYTES
        )

    def _page_keys(
        self, prompt: Prompt, parent: bytes | None, key: bytes, pages: int, extras: Extras | None
    ) -> tuple[bytes, ...]:
        """The chained digests of new pages; a token ahead is hashed with each token that it belongs to."""
        digest = parent if parent is not None else self._chain.root(prompt.root)
        if not self.ahead:
            return tuple(self._chain.blocks(digest, key, 0, pages, extras))
        tokens = np.frombuffer(key, dtype="<u4")
        pairs = np.stack((tokens[:-1], tokens[1:]), axis=1).tobytes()
        size, width = self.block_size, self.block_size * 2 * TOKEN_BYTES
        keys = []
        for page in range(pages):
            carried = extras.cut(page * size, (page + 1) * size + 1) if extras is not None else None
            digest = self._chain.block(digest, pairs[page * width : (page + 1) * width], carried)
            keys.append(digest)
        return tuple(keys)

    def cut(self, holding: Holding, blocks: int) -> None:
        if blocks >= holding.held:
            return
        self._tick += 1
        node = self._boundary(holding.anchor, blocks * self.block_size)
        self._unpin(holding.anchor, node)
        holding.anchor = node if node.parent is not None else None
        holding.held = blocks
        holding.counted = min(holding.counted, blocks * self.block_size)

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
        other.counted = min(holding.counted, blocks * self.block_size)

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

        The cut is no use of the lower part: its recency stays, and the upper part is as old as before. The
        original sees it otherwise (`refresh_on_split`).
        """
        upper = self._tree.split(child, at)
        if self.options.refresh_on_split:
            child.last_access = self._tick
            self._tick += 1
            upper.created = upper.last_access = self._tick
        if child in self._idle.stale:
            self._idle.stale.add(upper)
        if not upper.pins and self._idle.takes_all:
            self._idle.add(upper)
        self._idle.rerank(child)
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
        tick, takes_all, by_release = self._tick, self._idle.takes_all, not self._by_use
        while node is not until and node.parent is not None:
            if node.pins <= 0:
                raise InvariantError(f"{node!r} is unpinned more often than pinned")
            node.pins -= 1
            if by_release:
                node.last_access = tick
            if not node.pins:
                self._idle_blocks += len(node.blocks)
                if takes_all or not node.children:
                    self._idle.add(node)
            node = node.parent

    # -- what a policy is told ----------------------------------------------------------------------

    def _touch(self, node: Node) -> None:
        """The path to `node` is used now."""
        self._tick += 1
        tick = self._tick
        while node.parent is not None:
            node.last_access = tick
            node = node.parent

    def _mark(self, holding: Holding, end: int) -> None:
        """Count the holding's hit, once per node, and raise the priority of what it had not marked yet."""
        node, counted = holding.anchor, holding.counted
        while node.parent is not None and node.end > counted:
            node.hits += 1
            priority = self._priority_at(holding, node.parent.end)
            if priority > node.priority:
                node.priority = priority
            node = node.parent
        holding.counted = max(counted, end)

    def _cut_at_prompt(self, holding: Holding, end: int) -> None:
        """Give the prompt a node boundary and one more priority than the answer, so that it can stay alone."""
        prompt_end = max(holding.prompt_length - self.ahead, 0)
        prompt_end -= prompt_end % self.block_size
        if not 0 < prompt_end < end:
            return
        node = self._boundary(holding.anchor, prompt_end)
        priority = self._priority_at(holding, 0) + 1
        while node.parent is not None:
            if priority > node.priority:
                node.priority = priority
            node = node.parent

    @staticmethod
    def _raise_history(node: Node) -> None:
        """The branch is as long as it ever was; an ancestor that knew of a longer one has told all above it."""
        depth = node.end
        node.history = max(node.history, depth)
        above = node.parent
        while above is not None and above.history < depth:
            above.history = depth
            above = above.parent

    # -- room -------------------------------------------------------------------------------------

    @property
    def idle(self) -> int:
        return self._idle_blocks

    def facts(self, item: Node) -> Facts:
        """What an eviction policy may know of a leaf."""
        return Facts(
            item.last_access,
            item.created,
            item.hits,
            item.priority,
            item.end,
            len(item.blocks) * self.block_size,
            item.history,
        )

    def _evict(self, blocks: int) -> int:
        gone = 0
        whole = self.options.evict_unit == "node"
        while gone < blocks and self._idle:
            node = self._idle.peek()
            if whole or len(node.blocks) <= blocks - gone:
                self._idle.pop()
                gone += len(node.blocks)
                self._remove(node)
            else:
                self.pool.give(self._trim(node, blocks - gone))
                gone = blocks
        return gone

    def _remove(self, node: Node) -> None:
        """Take an idle leaf out of the tree; its blocks go to the pool."""
        self.pool.give(self._take_out(node))

    def _take_out(self, node: Node) -> array[int]:
        """Take an idle leaf out of the tree; its blocks are the caller's."""
        self._idle.discard(node)
        self._report_removed(node, 0)
        self._idle.forget(node)
        self._idle_blocks -= len(node.blocks)
        parent = self._tree.detach(node)
        if not parent.children and parent.parent is not None and not parent.pins and not self._idle.takes_all:
            self._idle.add(parent)
        return node.blocks

    def _trim(self, node: Node, pages: int) -> array[int]:
        """Cut the last pages off an idle leaf that stays; their blocks are the caller's."""
        keep = len(node.blocks) - pages
        self._report_removed(node, keep)
        self._idle_blocks -= pages
        gone = self._tree.shorten(node, keep)
        self._idle.rerank(node)
        return gone

    def _report_removed(self, node: Node, from_page: int) -> None:
        if self.events is not None and node not in self._idle.stale:
            self.events.removed(node.page_keys[from_page:])

    # -- for explanations ---------------------------------------------------------------------------

    def agreeing(self, prompt: Prompt, limit: int) -> int:
        match = self.match(prompt, limit)
        at = match.tokens
        if match.anchor is None or at >= limit:
            return at
        node, inside, common = match.anchor
        found = self._tree.nearest(node, inside, common, prompt.tokens, prompt.extras, at, limit - at)
        return at if found is None else at + found[2]

    def scopes(self) -> Iterable[bytes]:
        return self._tree.roots

    def keys_at(self, prompt: Prompt, start: int) -> Sequence[bytes]:
        pages = start // self.block_size + 1
        end = pages * self.block_size + self.ahead
        if end * TOKEN_BYTES > len(prompt.tokens):
            return ()
        extras = prompt.extras.cut(0, end) if prompt.extras is not None else None
        return self._page_keys(prompt, None, bytes(prompt.tokens[: end * TOKEN_BYTES]), pages, extras)[-1:]

    def outline(self) -> list[OutlineNode]:
        step = self.block_size * TOKEN_BYTES
        nodes = self._tree.nodes()
        return outline_of((n, n.parent, n.key[: len(n.blocks) * step], n.blocks, n.pins, n.page_keys) for n in nodes)

    # -- life of the index --------------------------------------------------------------------------

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
        self._idle = idle_items(self.eviction, self, by_release=not self._by_use)

    def blocks(self) -> Iterator[int]:
        for node in self._tree.nodes():
            yield from node.blocks

    def check(self) -> None:
        self._tree.check()
        idle = 0
        for node in self._tree.nodes():
            parent = node.parent
            assert parent is not None
            if node.pins < 0:
                raise InvariantError(f"{node!r} has a negative pin count")
            if parent.parent is not None and parent.pins < sum(child.pins for child in parent.children.values()):
                raise InvariantError(f"{parent!r} has fewer pins than its children together")
            if self.events is not None and len(node.page_keys) != len(node.blocks):
                raise InvariantError(f"{node!r} has {len(node.page_keys)} page keys")
            if self._histories and parent.history < node.history:
                raise InvariantError(f"{node!r} was longer once than its parent knows")
            if not node.pins:
                idle += len(node.blocks)
            queued = node in self._idle
            if queued != (not node.pins and (self._idle.takes_all or not node.children)):
                raise InvariantError(f"{node!r} is {'' if queued else 'not '}queued for eviction")
        if idle != self._idle_blocks:
            raise InvariantError(f"{idle} blocks are idle, the book says {self._idle_blocks}")
