"""radix: a compressed radix tree over pages of tokens (SGLang's RadixCache).

Each edge holds a run of pages. A child is found by one dict lookup on its first page, then the whole edge
is compared with the prompt by memcmp. Where a prompt leaves an edge in the middle, the edge is split at the
page boundary. At block_size 1 any token can be the boundary.

    insert 1 2 3 4, then 1 2 5:      root ── 1 2 ─┬─ 3 4
                                                  └─ 5
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterator
from typing import Any

from prefixcache.blocks.eviction import Facts, idle_items
from prefixcache.designs.base import Design, Holding, Match, Prompt
from prefixcache.errors import InvariantError
from prefixcache.keys.chain import ChainHash
from prefixcache.keys.extras import Extras, common_extras
from prefixcache.keys.tokens import TOKEN_BYTES, Buffer, common_tokens

# A leaf that only its writer uses grows in place instead of getting a child per decoded page; beyond this
# many tokens a new leaf is begun, so that growing costs no more than copying this much.
_GROW_LIMIT = 2048


class Node:
    """A run of pages: `key` are their tokens, `blocks` one block id per page.

    Attributes:
        parent: None for the root of a scope.
        children: by routing key (the first page).
        extras: media and extra ids of its tokens.
        pins: requests whose path passes through here; never less than a child's.
        end: tokens from the beginning of the prompt to the end of this node.
        page_keys: chained digests of the pages, for events only.
    """

    __slots__ = (
        "blocks",
        "children",
        "created",
        "end",
        "extras",
        "hits",
        "key",
        "last_access",
        "page_keys",
        "parent",
        "pins",
        "priority",
    )

    def __init__(
        self, parent: Node | None, key: bytes, blocks: array[int], extras: Extras | None, end: int, tick: int
    ) -> None:
        self.parent = parent
        self.key = key
        self.blocks = blocks
        self.extras = extras
        self.end = end
        self.children: dict[Hashable, Node] = {}
        self.pins = 0
        self.created = self.last_access = tick
        self.hits = 0
        self.priority = 0
        self.page_keys: list[bytes] = []

    def __repr__(self) -> str:
        return f"Node(end={self.end}, pages={len(self.blocks)}, pins={self.pins}, children={len(self.children)})"


class _Routed(bytes):
    """A first page whose hash a test has replaced: equal hashes must still reach different children."""

    forced: int

    def __hash__(self) -> int:
        return self.forced


class RadixDesign(Design):
    """See the module. Costs: a match is O(nodes) lookups and O(tokens) memcmp; a split copies one edge."""

    name = "radix"
    can = {  # noqa: RUF012
        "partial": ("off",),
        "duplicates": ("give_back",),
        "visibility": ("computed",),
        "child_limit": (None,),
    }

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._page_bytes = self.block_size * TOKEN_BYTES
        self._chain = ChainHash(self.options.hash, self.block_size)
        self._roots: dict[bytes, Node] = {}
        self._scopes: dict[Node, bytes] = {}  # the same, the other way round
        self._idle_blocks = 0
        self._idle = idle_items(self.eviction, self)
        self._tick = 0

    # -- lookup -----------------------------------------------------------------------------------

    def match(self, prompt: Prompt, limit: int) -> Match:
        end = limit - limit % self.block_size
        root = self._roots.get(prompt.root)
        if root is None or end <= 0:
            return Match(0, array("i"), 0, None)
        path, inside, common = self._walk(root, prompt.tokens, prompt.extras, 0, end)
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
        return Match(len(blocks) * self.block_size, blocks, idle, (path[-1] if path else root, inside, common))

    def _walk(
        self, node: Node, tokens: Buffer, extras: Extras | None, start: int, end: int
    ) -> tuple[list[Node], Node | None, int]:
        """Follow the prompt's tokens [start, end) down from `node`, which ends at start.

        Returns the nodes matched whole, and the child that is left in the middle with the number of its
        leading tokens that match (whole pages, at least one), or (None, 0).
        """
        path: list[Node] = []
        at, stop = start * TOKEN_BYTES, end * TOKEN_BYTES
        page = self._page_bytes
        plain = extras is None and self.options.child_hash is None
        while at < stop:
            routing = bytes(tokens[at : at + page]) if plain else self._routing(tokens, extras, at // TOKEN_BYTES)
            child = node.children.get(routing)
            if child is None:
                break
            key = child.key
            if at + len(key) <= stop and tokens.startswith(key, at) and extras is None and child.extras is None:
                at += len(key)
                path.append(child)
                node = child
                continue
            common = self._common(child, tokens, extras, at // TOKEN_BYTES, end)
            if common * TOKEN_BYTES < len(key):
                return path, child, common
            at += len(key)
            path.append(child)
            node = child
        return path, None, 0

    def _common(self, child: Node, tokens: Buffer, extras: Extras | None, at: int, end: int) -> int:
        """Leading tokens of `child` that the prompt has at position `at`, in whole pages."""
        most = min(len(child.key) // TOKEN_BYTES, end - at)
        common = common_tokens(child.key, 0, tokens, at, most)
        if extras is not None or child.extras is not None:
            own = extras.cut(at, at + common) if extras is not None else None
            theirs = child.extras.cut(0, common) if child.extras is not None else None
            common = common_extras(own, theirs, common)
        return common - common % self.block_size

    def _routing(self, tokens: Buffer, extras: Extras | None, at: int) -> Hashable:
        """What a child is found by: its first page, with what the page's tokens carry."""
        page: bytes = bytes(tokens[at * TOKEN_BYTES : at * TOKEN_BYTES + self._page_bytes])
        if self.options.child_hash is not None:
            routed = _Routed(page)
            routed.forced = self.options.child_hash(page)
            page = routed
        carried = extras.cut(at, at + self.block_size) if extras is not None else None
        return page if carried is None else (page, carried)

    def _routing_of(self, node: Node) -> Hashable:
        return self._routing(node.key, node.extras, 0)

    # -- ownership --------------------------------------------------------------------------------

    def claim(self, holding: Holding, match: Match) -> None:
        if match.anchor is None:
            return
        node, inside, common = match.anchor
        if inside is not None:
            node = self._split(inside, common)
        self._pin(node, None)
        holding.anchor = node if node.parent is not None else None  # a scope's root may go while nothing holds it
        holding.held = len(match.blocks)
        holding.table.extend(match.blocks)

    def publish(self, holding: Holding, length: int, tail: bool = False) -> list[tuple[int, int, int]]:
        """See the base. The range [held, length) is walked from the anchor:

        [held ....... present)        [present .......... end)        [end .. length)
         the tree has it: own blocks   one new leaf: the tree owns     unaligned: stays private
         go back, the table moves      these blocks from now on
        """
        size = self.block_size
        start, end = holding.held * size, length - length % size
        if end <= start:
            return []
        prompt = holding.prompt
        self._tick += 1
        old = holding.anchor
        node = old if old is not None else self._root(prompt)
        moves: list[tuple[int, int, int]] = []
        present = start
        path, inside, common = self._walk(node, prompt.tokens, prompt.extras, start, end)
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
        moves.extend(
            (i, mine, theirs)
            for i, mine, theirs in zip(range(index, index + len(own)), own, node.blocks, strict=True)
            if mine != theirs
        )
        holding.table[index : index + len(own)] = node.blocks
        self.pool.give([mine for mine, theirs in zip(own, node.blocks, strict=True) if mine != theirs])
        return (index + len(own)) * self.block_size

    def _append(self, holding: Holding, node: Node, start: int, end: int) -> Node:
        """Store the prompt's tokens [start, end) behind `node`, pinned by the holding."""
        size = self.block_size
        prompt = holding.prompt
        key = bytes(prompt.tokens[start * TOKEN_BYTES : end * TOKEN_BYTES])
        blocks = holding.table[start // size : end // size]
        extras = prompt.extras.cut(start, end) if prompt.extras is not None else None
        parent_key = node.page_keys[-1] if node.page_keys else None
        grows = (
            self.options.evict_unit == "tail"
            and node is holding.anchor
            and node.parent is not None
            and node.pins == 1
            and not node.children
            and extras is None
            and node.extras is None
            and len(node.key) < _GROW_LIMIT * TOKEN_BYTES
        )
        if grows:
            node.key += key
            node.blocks.extend(blocks)
            node.end = end
        else:
            leaf = Node(node, key, blocks, extras, end, self._tick)
            leaf.pins = 1
            node.children[self._routing_of(leaf)] = leaf
            node = leaf
        node.last_access = self._tick
        if self.events is not None:
            root = parent_key if parent_key is not None else self._chain.root(prompt.root)
            new = self._chain.blocks(root, key, 0, len(blocks), extras)
            node.page_keys.extend(new)
            self.events.stored(new, parent_key, key, prompt.scope)
        return node

    def cut(self, holding: Holding, blocks: int) -> None:
        if blocks >= holding.held:
            return
        node = self._boundary(holding.anchor, blocks * self.block_size)
        self._tick += 1
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

    def handle(self, holding: Holding, index: int) -> Node:
        return self._boundary(holding.anchor, (index + 1) * self.block_size)

    def hold(self, handle: Node) -> None:
        self._pin(handle, None)

    def drop(self, handle: Node) -> None:
        self._tick += 1
        self._unpin(handle, None)

    def _boundary(self, node: Node, end: int) -> Node:
        """The ancestor of `node` (or itself) that ends at `end`, split off when it lies inside one."""
        while node.parent is not None and node.parent.end >= end:
            node = node.parent
        if node.end > end:
            assert node.parent is not None
            node = self._split(node, end - node.parent.end)
        return node

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
                self._idle_blocks += len(node.blocks)
                if takes_all or not node.children:
                    self._idle.add(node)
            node = node.parent

    def _root(self, prompt: Prompt) -> Node:
        root = self._roots.get(prompt.root)
        if root is None:
            root = self._roots[prompt.root] = Node(None, b"", array("i"), None, 0, self._tick)
            self._scopes[root] = prompt.root
        return root

    def _split(self, child: Node, at: int) -> Node:
        """Cut `child` behind its first `at` tokens; returns the new upper node.

        Holders of the child keep it: it becomes the lower part, so letting go of it passes both halves.
        Books and events do not change. The cut is no use of the lower part: its recency stays.
        """
        parent = child.parent
        assert parent is not None
        pages = at // self.block_size
        end = parent.end + at
        upper = Node(parent, child.key[: at * TOKEN_BYTES], child.blocks[:pages], None, end, child.created)
        upper.extras = child.extras.cut(0, at) if child.extras is not None else None
        upper.pins, upper.hits, upper.priority = child.pins, child.hits, child.priority
        upper.last_access = child.last_access
        upper.page_keys = child.page_keys[:pages]
        parent.children[self._routing_of(upper)] = upper
        length = len(child.key) // TOKEN_BYTES
        child.extras = child.extras.cut(at, length) if child.extras is not None else None
        child.key = child.key[at * TOKEN_BYTES :]
        child.blocks = child.blocks[pages:]
        child.page_keys = child.page_keys[pages:]
        child.parent = upper
        upper.children[self._routing_of(child)] = child
        if child in self._idle.stale:
            self._idle.stale.add(upper)
        if not upper.pins and self._idle.takes_all:
            self._idle.add(upper)
        return upper

    # -- room -------------------------------------------------------------------------------------

    @property
    def idle(self) -> int:
        return self._idle_blocks

    def facts(self, item: Node) -> Facts:
        """What an eviction policy may know of a leaf."""
        length = len(item.key) // TOKEN_BYTES
        return Facts(item.last_access, item.created, item.hits, item.priority, item.end, length, item.end)

    def _evict(self, blocks: int) -> int:
        gone = 0
        whole = self.options.evict_unit == "node"
        while gone < blocks and self._idle:
            node = self._idle.peek()
            if whole or len(node.blocks) <= blocks - gone:
                gone += len(node.blocks)
                self._remove(node)
            else:
                self._trim(node, blocks - gone)
                gone = blocks
        return gone

    def _remove(self, node: Node) -> None:
        """Take an idle leaf out of the tree; its blocks go to the pool."""
        parent = node.parent
        assert parent is not None
        self._idle.discard(node)
        self._report_removed(node, 0)
        self._idle.forget(node)
        self._idle_blocks -= len(node.blocks)
        del parent.children[self._routing_of(node)]
        node.parent = None
        self.pool.give(node.blocks)
        if not parent.children:
            if parent.parent is None:
                del self._roots[self._scopes.pop(parent)]
            elif not parent.pins and not self._idle.takes_all:
                self._idle.add(parent)

    def _trim(self, node: Node, pages: int) -> None:
        """Evict the last pages of an idle leaf that stays."""
        keep = len(node.blocks) - pages
        self._report_removed(node, keep)
        self.pool.give(node.blocks[keep:])
        del node.blocks[keep:]
        del node.page_keys[keep:]
        node.key = node.key[: keep * self._page_bytes]
        node.end -= pages * self.block_size
        node.extras = node.extras.cut(0, keep * self.block_size) if node.extras is not None else None
        self._idle_blocks -= pages

    def _report_removed(self, node: Node, from_page: int) -> None:
        if self.events is not None and node not in self._idle.stale:
            self.events.removed(node.page_keys[from_page:])

    # -- life of the index --------------------------------------------------------------------------

    def retire(self) -> None:
        nodes = list(self._nodes())
        if self.events is not None:
            for node in nodes:
                if node not in self._idle.stale:
                    self.events.removed(node.page_keys)
        self._idle.retire(nodes)

    def clear(self) -> None:
        for node in list(self._nodes()):
            self.pool.give(node.blocks)
            node.parent = None
        self._roots.clear()
        self._scopes.clear()
        self._idle_blocks = 0
        self._idle = idle_items(self.eviction, self)

    def _nodes(self) -> Iterator[Node]:
        """Every node but the roots, parents before children; no recursion, however deep the tree."""
        stack = list(self._roots.values())
        while stack:
            node = stack.pop()
            if node.parent is not None:
                yield node
            stack.extend(node.children.values())

    def blocks(self) -> Iterator[int]:
        for node in self._nodes():
            yield from node.blocks

    def check(self) -> None:
        idle = 0
        for scope, root in self._roots.items():
            if not root.children and root.pins:
                raise InvariantError(f"the root of scope {scope!r} is pinned")
        for node in self._nodes():
            parent = node.parent
            assert parent is not None
            if not node.blocks or len(node.key) != len(node.blocks) * self._page_bytes:
                raise InvariantError(f"{node!r} has {len(node.key)} bytes of tokens for {len(node.blocks)} pages")
            if parent.children.get(self._routing_of(node)) is not node:
                raise InvariantError(f"{node!r} is not registered under its own first page")
            if node.end != parent.end + len(node.key) // TOKEN_BYTES:
                raise InvariantError(f"{node!r} ends at {node.end}, its parent at {parent.end}")
            if node.pins < 0:
                raise InvariantError(f"{node!r} has a negative pin count")
            if parent.parent is not None and parent.pins < sum(child.pins for child in parent.children.values()):
                raise InvariantError(f"{parent!r} has fewer pins than its children together")
            if self.events is not None and len(node.page_keys) != len(node.blocks):
                raise InvariantError(f"{node!r} has {len(node.page_keys)} page keys")
            if not node.pins:
                idle += len(node.blocks)
            queued = node in self._idle
            if queued != (not node.pins and (self._idle.takes_all or not node.children)):
                raise InvariantError(f"{node!r} is {'' if queued else 'not '}queued for eviction")
        if idle != self._idle_blocks:
            raise InvariantError(f"{idle} blocks are idle, the book says {self._idle_blocks}")
