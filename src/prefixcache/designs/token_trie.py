"""token_trie: one node per token. The baseline that shows why nobody serves with a plain trie.

Every token of every cached prefix is an object with a dict of children, so a prompt of 32K tokens is 32K nodes
and 32K lookups. Its hits and victims are those of `radix` at block_size 1; only the costs differ.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

from prefixcache.blocks.eviction import POLICIES, IdleItems, ReleaseOrder, read_policy
from prefixcache.designs.base import Design, Holding, Match, Prompt
from prefixcache.designs.outline import OutlineNode, outline_of
from prefixcache.errors import InvariantError, OptionError
from prefixcache.keys.chain import ChainHash
from prefixcache.keys.tokens import TOKEN_BYTES


class Node:
    """One token of a cached prefix, in a block of one slot.

    Attributes:
        parent: None for the root of a scope.
        token: its bytes.
        routing: what the parent finds it by: the token, and what it carries.
        depth: tokens from the beginning of the prompt, this one included.
        pins: requests whose path passes through here; never less than a child's.
        key: chained digest, for events only.
    """

    __slots__ = ("block", "children", "depth", "key", "parent", "pins", "routing", "token")

    def __init__(self, parent: Node | None, token: bytes, routing: Hashable, block: int, depth: int) -> None:
        self.parent = parent
        self.token = token
        self.routing = routing
        self.block = block
        self.depth = depth
        self.children: dict[Hashable, Node] = {}
        self.pins = 0
        self.key = b""

    def __repr__(self) -> str:
        return f"Node(depth={self.depth}, block={self.block}, pins={self.pins}, children={len(self.children)})"


class TokenTrieDesign(Design):
    """See the module. Costs: a match, a claim and a release are each O(tokens) steps through as many objects."""

    name = "token_trie"
    has_tiers = False
    can = {  # noqa: RUF012
        "partial": ("off",),
        "duplicates": ("give_back",),
        "visibility": ("computed",),
        "evict_unit": ("tail",),
        "child_limit": (None,),
        "child_hash": (None,),
        "lookahead_by": ("drop",),
        "recency": ("release",),
        "refresh_on_split": (False,),
        "count_hits": ("match",),
        "cut_at_prompt": (False,),
        "priorities": ("0..100",),
    }

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        if self.block_size != 1:
            raise OptionError(f"token_trie has one node per token: block_size is {self.block_size}, expected 1")
        if read_policy(self.eviction) is not POLICIES["lru"]:
            raise OptionError(f"token_trie cannot honour eviction={self.eviction!r}: expected 'lru'")
        self._chain = ChainHash(self.options.hash, 1)
        self._roots: dict[bytes, Node] = {}
        self._scopes: dict[Node, bytes] = {}  # the same, the other way round
        self._idle = self._nothing_idle()

    @staticmethod
    def _nothing_idle() -> IdleItems[Node]:
        return IdleItems(ReleaseOrder())

    # -- lookup -----------------------------------------------------------------------------------

    def match(self, prompt: Prompt, limit: int) -> Match:
        root = self._roots.get(prompt.root)
        path = self._walk(root, prompt, 0, limit) if root is not None else []
        idle = sum(1 for node in path if not node.pins)
        return Match(len(path), [node.block for node in path], idle, path[-1] if path else None)

    def _walk(self, node: Node, prompt: Prompt, start: int, end: int) -> list[Node]:
        path = []
        for position in range(start, end):
            child = node.children.get(self._routing(prompt, position))
            if child is None:
                break
            path.append(child)
            node = child
        return path

    def _routing(self, prompt: Prompt, position: int) -> Hashable:
        token = self._token(prompt, position)
        carried = prompt.extras.cut(position, position + 1) if prompt.extras is not None else None
        return token if carried is None else (token, carried)

    @staticmethod
    def _token(prompt: Prompt, position: int) -> bytes:
        return bytes(prompt.tokens[position * TOKEN_BYTES : (position + 1) * TOKEN_BYTES])

    # -- ownership --------------------------------------------------------------------------------

    def claim(self, holding: Holding, match: Match) -> None:
        self._pin(match.anchor)
        holding.anchor = match.anchor
        holding.held = len(match.blocks)
        holding.table.extend(match.blocks)

    def publish(self, holding: Holding, length: int, tail: bool = False) -> list[tuple[int, int, int]]:
        """See the base. The tokens [held, length) are walked from the anchor:

        [held ......... present)            [present ........ length)
         the trie has them: own blocks go    new nodes: the trie owns these
         back, the table moves               blocks from now on
        """
        start = holding.held
        if length <= start:
            return []
        node = holding.anchor if holding.anchor is not None else self._root(holding.prompt)
        moves = []
        for index, found in enumerate(self._walk(node, holding.prompt, start, length), start):
            self._pin_one(found)
            moves.append((index, holding.table[index], found.block))
            holding.table[index] = found.block
            node = found
        self.pool.give([own for _, own, _ in moves])
        present = start + len(moves)
        if present < length:
            node = self._append(holding, node, present, length)
        holding.anchor, holding.held = node, length
        return moves

    def _append(self, holding: Holding, node: Node, start: int, end: int) -> Node:
        """Store the prompt's tokens [start, end) behind `node`, pinned by the holding; the last node."""
        prompt, parent_key = holding.prompt, node.key or None
        keys = [b""] * (end - start)
        if self.events is not None:
            before = parent_key or self._chain.root(prompt.root)
            keys = self._chain.blocks(before, prompt.tokens, start, end, prompt.extras)
        for position, key in enumerate(keys, start):
            token, routing = self._token(prompt, position), self._routing(prompt, position)
            child = Node(node, token, routing, holding.table[position], position + 1)
            child.pins, child.key = 1, key
            node.children[routing] = child
            node = child
        if self.events is not None:
            text = bytes(prompt.tokens[start * TOKEN_BYTES : end * TOKEN_BYTES])
            self.events.stored(keys, parent_key, text, prompt.scope)
        return node

    def cut(self, holding: Holding, blocks: int) -> None:
        if blocks < holding.held:
            self._unpin(holding.anchor, blocks)
            holding.anchor = self._ancestor(holding.anchor, blocks)
            holding.held = blocks

    def release(self, holding: Holding) -> None:
        self._unpin(holding.anchor)
        holding.anchor, holding.held = None, 0

    def share(self, holding: Holding, other: Holding, blocks: int) -> None:
        other.anchor = self._ancestor(holding.anchor, blocks)
        self._pin(other.anchor)
        other.held = blocks
        other.table.extend(holding.table[:blocks])

    def handle(self, holding: Holding, index: int) -> Node | None:
        return self._ancestor(holding.anchor, index + 1)

    def hold(self, handle: Node) -> None:
        self._pin(handle)

    def drop(self, handle: Node) -> None:
        self._unpin(handle)

    @staticmethod
    def _ancestor(node: Node | None, depth: int) -> Node | None:
        """The node of this depth on the path to `node`; None at depth 0."""
        while node is not None and node.depth > depth:
            node = node.parent
        return node if depth else None

    def _pin(self, node: Node | None) -> None:
        """One more user of every node from `node` up to the root."""
        while node is not None and node.parent is not None:
            self._pin_one(node)
            node = node.parent

    def _pin_one(self, node: Node) -> None:
        if not node.pins:
            self._idle.discard(node)
        node.pins += 1

    def _unpin(self, node: Node | None, until_depth: int = 0) -> None:
        """One user less of every node deeper than this, tail first; what nobody uses any more becomes idle."""
        while node is not None and node.depth > until_depth:
            if node.pins <= 0:
                raise InvariantError(f"{node!r} is unpinned more often than pinned")
            node.pins -= 1
            if not node.pins:
                self._idle.add(node)
            node = node.parent

    def _root(self, prompt: Prompt) -> Node:
        root = self._roots.get(prompt.root)
        if root is None:
            root = self._roots[prompt.root] = Node(None, b"", b"", -1, 0)
            self._scopes[root] = prompt.root
        return root

    # -- room -------------------------------------------------------------------------------------

    @property
    def idle(self) -> int:
        return len(self._idle)

    def _evict(self, blocks: int) -> int:
        victims = self._idle.pop_many(blocks)
        for node in victims:
            parent = node.parent
            assert parent is not None
            if self.events is not None and node not in self._idle.stale:
                self.events.removed((node.key,))
            self._idle.forget(node)
            del parent.children[node.routing]
            if not parent.children and parent.parent is None:
                del self._roots[self._scopes.pop(parent)]
        self.pool.give([node.block for node in victims])
        return len(victims)

    # -- for explanations ---------------------------------------------------------------------------

    def keys_at(self, prompt: Prompt, start: int) -> list[bytes]:
        if (start + 1) * TOKEN_BYTES > len(prompt.tokens):
            return []
        return self._chain.blocks(self._chain.root(prompt.root), prompt.tokens, 0, start + 1, prompt.extras)[-1:]

    def outline(self) -> list[OutlineNode]:
        nodes = self._nodes()
        return outline_of((n, n.parent, n.token, (n.block,), n.pins, (n.key,) if n.key else ()) for n in nodes)

    # -- life of the index --------------------------------------------------------------------------

    def retire(self) -> None:
        nodes = list(self._nodes())
        if self.events is not None:
            self.events.removed([node.key for node in nodes if node not in self._idle.stale])
        self._idle.retire(nodes)

    def clear(self) -> None:
        self.pool.give([node.block for node in self._nodes()])
        self._roots.clear()
        self._scopes.clear()
        self._idle = self._nothing_idle()

    def _nodes(self) -> Iterator[Node]:
        """Every node but the roots, parents before children."""
        stack = list(self._roots.values())
        while stack:
            node = stack.pop()
            if node.parent is not None:
                yield node
            stack.extend(node.children.values())

    def blocks(self) -> Iterator[int]:
        for node in self._nodes():
            yield node.block

    def check(self) -> None:
        for node in self._nodes():
            parent = node.parent
            assert parent is not None
            if parent.children.get(node.routing) is not node or node.depth != parent.depth + 1:
                raise InvariantError(f"{node!r} is not where its parent looks for it")
            if node.pins < sum(child.pins for child in node.children.values()):
                raise InvariantError(f"{node!r} has fewer pins than its children together")
            if (node in self._idle) != (not node.pins):
                raise InvariantError(f"{node!r} is {'not ' if not node.pins else ''}queued for eviction")
        if any(not root.children for root in self._roots.values()) or self._roots.keys() != set(self._scopes.values()):
            raise InvariantError("a root is empty, or registered under another scope")
