"""The tree itself: how a prompt is followed, how an edge is cut, how a page is found among many.

It knows tokens, pages and their order, and nothing of pins, recency or who owns a block.

With `ahead` = 1 the KV of a position depends on the token behind it as well, so a page is known by its
tokens and the one that follows; neighbouring keys then overlap by that token:

    tokens 1 2 3 4 5, page 2        [1 2 (3)] ── [3 4 (5)]
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Hashable, Iterator

from prefixcache.designs.children import TYPED_BYTES, ChildIndex, asked, typed
from prefixcache.designs.radix.node import NO_CHILDREN, Node, Routed
from prefixcache.errors import InvariantError
from prefixcache.keys.extras import Extras, common_extras
from prefixcache.keys.tokens import TOKEN_BYTES, Buffer, common_tokens

_FEW = 4  # up to here children are compared one by one


class RadixTree:
    """A compressed radix tree over pages of tokens, with a root per scope.

    Args:
        page: tokens per page.
        ahead: tokens behind a page that belong to its identity, 0 or 1.
        child_hash: test hook: replaces the hash of a routing key.

    Attributes:
        ends: nodes by their last block; empty as long as nobody asks for leaves by it (`watch_ends`).
    """

    def __init__(self, page: int, ahead: int, child_hash: Callable[[bytes], int] | None) -> None:
        self.page = page
        self.ahead = ahead
        self._child_hash = child_hash
        self._page_bytes = page * TOKEN_BYTES
        self._ahead_bytes = ahead * TOKEN_BYTES
        self._routing_bytes = self._page_bytes + self._ahead_bytes
        self.roots: dict[bytes, Node] = {}
        self._scopes: dict[Node, bytes] = {}  # the same, the other way round
        self.ends: dict[int, Node] = {}
        self._watched = False

    # -- following a prompt -------------------------------------------------------------------------

    def walk(
        self, node: Node, tokens: Buffer, extras: Extras | None, start: int, end: int
    ) -> tuple[list[Node], Node | None, int]:
        """Follow the prompt's tokens [start, end) down from `node`, which ends at start; whole pages.

        Returns the nodes matched whole, and the child that is left in the middle with the number of its
        leading tokens that match (whole pages, at least one), or (None, 0). O(nodes) lookups, O(tokens) memcmp.
        """
        path: list[Node] = []
        ahead = self._ahead_bytes
        at, stop = start * TOKEN_BYTES, end * TOKEN_BYTES + ahead
        if not isinstance(tokens, bytes):  # a growing prompt: a slice of bytes can be looked up, this cannot
            tokens = bytes(tokens[at:stop])
            extras = extras.cut(start, end + self.ahead) if extras is not None else None
            at, stop, end = 0, stop - at, end - start
        routing_bytes = self._routing_bytes
        last = stop - routing_bytes  # behind it there is no whole page
        plain = extras is None and self._child_hash is None
        while at <= last:
            routing = tokens[at : at + routing_bytes] if plain else self.routing(tokens, extras, at // TOKEN_BYTES)
            child = node.children.get(routing)
            if child is None:
                break
            key = child.key
            behind = at + len(key)
            # Most edges match whole and carry nothing: one memcmp.
            if extras is not None or child.extras is not None or behind > stop or not tokens.startswith(key, at):
                common = self._common(child, tokens, extras, at // TOKEN_BYTES, end)
                if common * TOKEN_BYTES + ahead < len(key):
                    return path, child, common
            at = behind - ahead
            path.append(child)
            node = child
        return path, None, 0

    def _common(self, child: Node, tokens: Buffer, extras: Extras | None, at: int, end: int) -> int:
        """Leading tokens of `child` that the prompt has at position `at`, in whole pages."""
        common = self._common_raw(child, tokens, extras, at, end - at + self.ahead) - self.ahead
        return common - common % self.page

    def _common_raw(self, child: Node, tokens: Buffer, extras: Extras | None, at: int, most: int, skip: int = 0) -> int:
        """Tokens that `child` from its position `skip` on shares with the prompt from `at` on, at most `most`."""
        most = min(len(child.key) // TOKEN_BYTES - skip, most)
        common = common_tokens(child.key, skip, tokens, at, most)
        if extras is not None or child.extras is not None:
            own = extras.cut(at, at + common) if extras is not None else None
            theirs = child.extras.cut(skip, skip + common) if child.extras is not None else None
            common = common_extras(own, theirs, common)
        return common

    def routing(self, tokens: Buffer, extras: Extras | None, at: int) -> Hashable:
        """What a child is found by: its first page, with what the page's tokens carry."""
        page: bytes = bytes(tokens[at * TOKEN_BYTES : at * TOKEN_BYTES + self._routing_bytes])
        if self._child_hash is not None:
            routed = Routed(page)
            routed.forced = self._child_hash(page)
            page = routed
        carried = extras.cut(at, at + self.page + self.ahead) if extras is not None else None
        return page if carried is None else (page, carried)

    def routing_of(self, node: Node) -> Hashable:
        """The routing key that `node` is registered under."""
        if node.extras is None and self._child_hash is None:
            return node.key[: self._routing_bytes]
        return self.routing(node.key, node.extras, 0)

    def nearest(
        self, node: Node, inside: Node | None, common: int, tokens: Buffer, extras: Extras | None, at: int, most: int
    ) -> tuple[Node, int, int] | None:
        """The page behind position `at` that shares most tokens with the prompt, where `walk` has ended.

        Returns the node it lies in, the token of that node where it begins, and the shared tokens (at most
        `most`, at least one); None when there is none. O(log children).
        """
        if inside is not None:
            shared = self._common_raw(inside, tokens, extras, at, min(most, self.page + self.ahead), common)
            return (inside, common, shared) if shared else None
        most = min(most, self.page + self.ahead)
        best: Node | None = None
        longest = 0
        index = self._index_of(node)
        if index is not None:
            found = index.best(self._asked(index, tokens, extras, at, most))
            candidates = [] if found is None else [found[0]]
        else:
            candidates = list(node.children.values())
        for child in candidates:
            shared = self._common_raw(child, tokens, extras, at, most)
            if shared > longest:
                best, longest = child, shared
        return None if best is None else (best, 0, longest)

    def alike(
        self, node: Node, tokens: Buffer, extras: Extras | None, at: int, most: int
    ) -> Iterator[tuple[Node, int]]:
        """The children of `node` whose first page shares tokens with the prompt from `at` on: how many, most first."""
        most = min(most, self.page + self.ahead)
        index = self._index_of(node)
        if index is None:
            few = [(child, self._common_raw(child, tokens, extras, at, most)) for child in node.children.values()]
            yield from sorted((found for found in few if found[1]), key=lambda found: -found[1])
            return
        yield from index.alike(self._asked(index, tokens, extras, at, most))

    @staticmethod
    def _asked(index: ChildIndex[Node], tokens: Buffer, extras: Extras | None, at: int, most: int) -> bytes:
        carried = extras.cut(at, at + most) if extras is not None else None
        return asked(index.unit, bytes(tokens[at * TOKEN_BYTES : (at + most) * TOKEN_BYTES]), carried)

    # -- changing the tree --------------------------------------------------------------------------

    def root(self, scope: bytes) -> Node:
        """The root of a scope, made when it is missing."""
        root = self.roots.get(scope)
        if root is None:
            root = self.roots[scope] = Node(None, b"", array("i"), None, 0, 0)
            self._scopes[root] = scope
        return root

    def watch_ends(self) -> None:
        """Keep `ends` from now on."""
        self._watched = True
        self.ends = {node.blocks[-1]: node for node in self.nodes()}

    def grow(self, node: Node, key: bytes, blocks: array[int], end: int) -> None:
        """Add pages to a leaf."""
        if self._watched:
            del self.ends[node.blocks[-1]]
            self.ends[blocks[-1]] = node
        node.key += key
        node.blocks.extend(blocks)
        node.end = end

    def attach(self, node: Node) -> None:
        """Register a new node with its parent."""
        if self._watched:
            self.ends[node.blocks[-1]] = node
        parent = node.parent
        assert parent is not None
        if parent.children is NO_CHILDREN:
            parent.children = {}
        parent.children[self.routing_of(node)] = node
        if parent.index is None:
            return
        if parent.index.unit == TOKEN_BYTES and self._carried(node) is not None:
            parent.index = None  # it is made anew when it is needed, with what tokens carry
        else:
            parent.index.add(self._named(node, parent.index), node)

    def _index_of(self, node: Node) -> ChildIndex[Node] | None:
        """The children by the beginning of their first page, kept up from the first time it is needed on."""
        if node.index is None and len(node.children) > _FEW:
            plain = all(self._carried(child) is None for child in node.children.values())
            node.index = ChildIndex(TOKEN_BYTES if plain else TYPED_BYTES)
            for child in node.children.values():
                node.index.add(self._named(child, node.index), child)
        return node.index

    def _carried(self, node: Node) -> Extras | None:
        """What the first page of a node carries."""
        return node.extras.cut(0, self.page + self.ahead) if node.extras is not None else None

    def _named(self, node: Node, index: ChildIndex[Node]) -> bytes:
        """The first page of a node as the index of its parent has it."""
        page = node.key[: self._routing_bytes]
        return page if index.unit == TOKEN_BYTES else typed(page, self._carried(node))

    def detach(self, node: Node) -> Node:
        """Take a leaf out of the tree; returns its parent. A root without children goes too."""
        if self._watched:
            del self.ends[node.blocks[-1]]
        parent = node.parent
        assert parent is not None
        del parent.children[self.routing_of(node)]
        if parent.index is not None:
            parent.index.discard(self._named(node, parent.index))
        node.parent = None
        if not parent.children:
            parent.children, parent.index = NO_CHILDREN, None
            if parent.parent is None:
                del self.roots[self._scopes.pop(parent)]
        return parent

    def split(self, child: Node, at: int) -> Node:
        """Cut `child` behind its first `at` tokens; returns the new upper node, equal in pins, hits and age.

        Holders of the child keep it: it becomes the lower part, so letting go of it passes both halves. O(tokens).
        """
        parent = child.parent
        assert parent is not None
        pages, cut, ahead = at // self.page, at * TOKEN_BYTES, self._ahead_bytes
        upper = Node(parent, child.key[: cut + ahead], child.blocks[:pages], None, parent.end + at, child.created)
        upper.pins, upper.hits, upper.priority = child.pins, child.hits, child.priority
        upper.last_access, upper.history = child.last_access, child.history
        upper.page_keys, child.page_keys = child.page_keys[:pages], child.page_keys[pages:]
        if child.extras is not None:
            upper.extras = child.extras.cut(0, at + self.ahead)
            child.extras = child.extras.cut(at, len(child.key) // TOKEN_BYTES)
        parent.children[self.routing_of(upper)] = upper
        if parent.index is not None:
            parent.index.replace(self._named(upper, parent.index), upper)
        child.key = child.key[cut:]
        child.blocks = child.blocks[pages:]
        if self._watched:
            self.ends[upper.blocks[-1]] = upper
        child.parent = upper
        upper.children = {self.routing_of(child): child}
        return upper

    def shorten(self, node: Node, pages: int) -> array[int]:
        """Cut all but the first `pages` pages off a leaf; returns the blocks that went."""
        gone = node.blocks[pages:]
        del node.blocks[pages:]
        if self._watched:
            del self.ends[gone[-1]]
            self.ends[node.blocks[-1]] = node
        node.page_keys = node.page_keys[:pages]
        node.key = node.key[: pages * self._page_bytes + self._ahead_bytes]
        node.end -= len(gone) * self.page
        node.extras = node.extras.cut(0, pages * self.page + self.ahead) if node.extras is not None else None
        return gone

    def clear(self) -> None:
        """Forget everything."""
        for node in list(self.nodes()):
            node.parent = None
        self.roots.clear()
        self._scopes.clear()
        self.ends.clear()

    # -- looking at all of it -----------------------------------------------------------------------

    def nodes(self) -> Iterator[Node]:
        """Every node but the roots, parents before children; no recursion, however deep the tree."""
        stack = list(self.roots.values())
        while stack:
            node = stack.pop()
            if node.parent is not None:
                yield node
            stack.extend(node.children.values())

    def check(self) -> None:
        """Assert the structure; raises `InvariantError` naming the node that is wrong."""
        for scope, root in self.roots.items():
            if not root.children:
                raise InvariantError(f"the root of scope {scope!r} has no children left and is still there")
            self._check_index(root)
        for node in self.nodes():
            parent = node.parent
            assert parent is not None
            if not node.blocks or len(node.key) != len(node.blocks) * self._page_bytes + self._ahead_bytes:
                raise InvariantError(f"{node!r} has {len(node.key)} bytes of tokens for {len(node.blocks)} pages")
            if parent.children.get(self.routing_of(node)) is not node:
                raise InvariantError(f"{node!r} is not registered under its own first page")
            if node.pins < 0:
                raise InvariantError(f"{node!r} has a negative pin count")
            if parent.parent is not None and parent.pins < sum(child.pins for child in parent.children.values()):
                raise InvariantError(f"{parent!r} has fewer pins than its children together")
            if node.end != parent.end + len(node.blocks) * self.page:
                raise InvariantError(f"{node!r} ends at {node.end}, its parent at {parent.end}")
            self._check_index(node)

        if self._watched and self.ends != {node.blocks[-1]: node for node in self.nodes()}:
            raise InvariantError("the nodes by their last block are not those of the tree")

    def _check_index(self, node: Node) -> None:
        if node.index is None:
            return
        node.index.check()
        if {id(child) for child in node.index} != {id(child) for child in node.children.values()}:
            raise InvariantError(f"{node!r} has other children than its index")
