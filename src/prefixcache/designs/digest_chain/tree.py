"""The tree itself: how a prompt is followed, how a run is cut, how the best child is found among many.

It knows tokens, digests and their order, and nothing of recency or of who owns a block.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from prefixcache.designs.children import TYPED_BYTES, ChildIndex, before_extras, typed
from prefixcache.designs.digest_chain.node import DIGEST_BYTES, NO_CHILDREN, Node
from prefixcache.errors import InvariantError
from prefixcache.keys.chain import ChainHash
from prefixcache.keys.extras import Extras, common_extras
from prefixcache.keys.tokens import TOKEN_BYTES, Buffer, common_tokens


class DigestTree:
    """Runs of blocks keyed by chained digests, with a root per scope.

    Args:
        chain: how digests are made.
        indexed: whether nodes keep their children by tokens too, for `nearest`.
    """

    def __init__(self, chain: ChainHash, indexed: bool) -> None:
        self.chain = chain
        self.block = chain.block_size
        self.indexed = indexed
        self._block_bytes = self.block * TOKEN_BYTES
        self.roots: dict[bytes, Node] = {}
        self._scopes: dict[Node, bytes] = {}  # the same, the other way round

    # -- following a prompt -------------------------------------------------------------------------

    def walk(
        self, node: Node, tokens: Buffer, extras: Extras | None, start: int, end: int
    ) -> tuple[list[Node], Node | None, int]:
        """Follow the prompt's tokens [start, end) down from `node`, which ends at start; whole blocks.

        Returns the nodes matched whole, and the child that is left in the middle with the number of its
        leading tokens that match (whole blocks, at least one), or (None, 0). One hash of a block where a
        node has several children, one memcmp per node: O(tokens) bytes, O(nodes) steps.
        """
        path: list[Node] = []
        at = start
        while at < end and node.children:
            child = self._child(node, tokens, extras, at)
            if child is None:
                break
            length = len(child.tokens) // TOKEN_BYTES
            plain = extras is None and child.extras is None
            if not (plain and at + length <= end and tokens.startswith(child.tokens, at * TOKEN_BYTES)):
                common = self.common(child, 0, tokens, extras, at, end - at)
                common -= common % self.block
                if common < length:
                    return path, (child if common else None), common
            at += length
            path.append(child)
            node = child
        return path, None, 0

    def _child(self, node: Node, tokens: Buffer, extras: Extras | None, at: int) -> Node | None:
        """The only child that can begin with the prompt's block at token `at`."""
        if len(node.children) == 1:  # the walk compares anyway: that costs less than hashing
            (child,) = node.children.values()
            return None if self.is_tail(child) else child
        text, carried = self.cut(tokens, extras, at, at + self.block)
        return node.children.get(self.chain.block(node.last_digest, text, carried))

    def nearest(
        self, node: Node, inside: Node | None, common: int, tokens: Buffer, extras: Extras | None, at: int, most: int
    ) -> tuple[Node, int, int] | None:
        """The block behind token `at` that shares most tokens with the prompt, where `walk` has ended.

        Returns the node it lies in, the token of that node where it begins, and the shared tokens (at most
        `most`, at least one); None when there is none. Of equal ones the first inserted. O(1) in the children.
        """
        if inside is not None:
            shared = self.common(inside, common, tokens, extras, at, min(most, self.block))
            return (inside, common, shared) if shared else None
        text, carried = self.cut(tokens, extras, at, at + min(most, self.block))
        found = self.best_child(node, text, carried)
        return None if found is None else (found[0], 0, found[1])

    def best_child(self, node: Node, text: bytes, extras: Extras | None) -> tuple[Node, int] | None:
        """The child whose first block shares the longest beginning with these tokens (at most a block).

        Returns it and the shared tokens, at least one. Of equal ones the first inserted.
        """
        if node.index is not None:
            if node.index.unit == TOKEN_BYTES:
                return node.index.best(before_extras(text, extras))
            return node.index.best(typed(text, extras))
        for child in node.children.values():
            shared = self.common(child, 0, text, extras, 0, len(text) // TOKEN_BYTES)
            return (child, shared) if shared else None
        return None

    def alike(self, node: Node, text: bytes, extras: Extras | None) -> Iterator[tuple[Node, int]]:
        """All children whose first block shares tokens with these (at most a block): how many, most first."""
        if node.index is None:
            found = self.best_child(node, text, extras)
            return iter(() if found is None else (found,))
        if node.index.unit != TOKEN_BYTES:
            return node.index.alike(typed(text, extras))
        return node.index.alike(before_extras(text, extras))

    def common(self, node: Node, skip: int, tokens: Buffer, extras: Extras | None, at: int, most: int) -> int:
        """Tokens that `node` from its token `skip` on shares with the prompt from `at` on, at most `most`."""
        most = min(len(node.tokens) // TOKEN_BYTES - skip, most)
        common = common_tokens(node.tokens, skip, tokens, at, most)
        if extras is not None or node.extras is not None:
            own = extras.cut(at, at + common) if extras is not None else None
            theirs = node.extras.cut(skip, skip + common) if node.extras is not None else None
            common = common_extras(own, theirs, common)
        return common

    def is_tail(self, node: Node) -> bool:
        """Whether the node is a partial block."""
        return len(node.tokens) < self._block_bytes

    @staticmethod
    def cut(tokens: Buffer, extras: Extras | None, start: int, end: int) -> tuple[bytes, Extras | None]:
        """The tokens [start, end) and what they carry."""
        carried = extras.cut(start, end) if extras is not None else None
        return bytes(tokens[start * TOKEN_BYTES : end * TOKEN_BYTES]), carried

    # -- changing the tree --------------------------------------------------------------------------

    def root(self, scope: bytes) -> Node:
        """The root of a scope, made when it is missing."""
        root = self.roots.get(scope)
        if root is None:
            root = self.roots[scope] = Node(None, b"", self.chain.root(scope), array("i"), None, 0, (0, None), 0)
            self._scopes[root] = scope
        return root

    def attach(self, node: Node) -> None:
        """Register a new node with its parent, as the last of its children."""
        parent = node.parent
        assert parent is not None
        if parent.children is NO_CHILDREN:
            parent.children = {}
        parent.children[node.first_digest] = node
        if not self.indexed or len(parent.children) < 2:
            return
        index = parent.index
        if index is None or (index.unit == TOKEN_BYTES and self._carried(node) is not None):
            self._build_index(parent)
        else:
            index.add(self._name(node, index.unit), node)

    def _build_index(self, parent: Node) -> None:
        """Index all children, by tokens alone when none of their first blocks carries anything more."""
        children = parent.children.values()
        typed = any(self._carried(child) is not None for child in children)
        parent.index = ChildIndex(TYPED_BYTES if typed else TOKEN_BYTES)
        for child in children:
            parent.index.add(self._name(child, parent.index.unit), child)

    def _carried(self, node: Node) -> Extras | None:
        """What the first block of a node carries."""
        return node.extras.cut(0, self.block) if node.extras is not None else None

    def _name(self, node: Node, unit: int) -> bytes:
        """The first block of a node as its parent's index has it."""
        text = node.tokens[: self._block_bytes]
        return text if unit == TOKEN_BYTES else typed(text, self._carried(node))

    def detach(self, node: Node, keep_root: bool = False) -> Node:
        """Take a node without children out of the tree; returns its parent. A root without children goes too."""
        parent = node.parent
        assert parent is not None
        del parent.children[node.first_digest]
        if len(parent.children) < 2:
            parent.index = None
        elif parent.index is not None:
            parent.index.discard(self._name(node, parent.index.unit))
        if not parent.children:
            parent.children = NO_CHILDREN
            if parent.parent is None and not keep_root:
                del self.roots[self._scopes.pop(parent)]
        return parent

    def split(self, child: Node, at: int) -> Node:
        """Cut `child` behind its first `at` tokens; returns the new upper node, equal in pins and age.

        Holders of the child keep it: it becomes the lower part, so letting go of it passes both halves. O(tokens).
        """
        parent = child.parent
        assert parent is not None
        blocks = at // self.block
        text, digests = at * TOKEN_BYTES, blocks * DIGEST_BYTES
        upper = Node(
            parent,
            child.tokens[:text],
            child.digests[:digests],
            child.blocks[:blocks],
            None,
            parent.end + at,
            (child.priority, child.ttl),
            child.created,
        )
        upper.pins, upper.last_access = child.pins, child.last_access
        if child.extras is not None:
            upper.extras = child.extras.cut(0, at)
            child.extras = child.extras.cut(at, len(child.tokens) // TOKEN_BYTES)
        parent.children[upper.first_digest] = upper
        if parent.index is not None:
            parent.index.replace(self._name(upper, parent.index.unit), upper)
        child.tokens = child.tokens[text:]
        child.digests = child.digests[digests:]
        child.blocks = child.blocks[blocks:]
        child.parent = upper
        upper.children = {child.first_digest: child}
        return upper

    def shorten(self, node: Node, blocks: int) -> None:
        """Cut all but the first `blocks` blocks off a node without children."""
        tokens = blocks * self.block
        node.end -= len(node.tokens) // TOKEN_BYTES - tokens
        node.tokens = node.tokens[: tokens * TOKEN_BYTES]
        node.digests = node.digests[: blocks * DIGEST_BYTES]
        node.extras = node.extras.cut(0, tokens) if node.extras is not None else None
        del node.blocks[blocks:]

    def clear(self) -> None:
        """Forget everything."""
        for node in list(self.nodes()):
            node.parent = None
        self.roots.clear()
        self._scopes.clear()

    # -- for explanations ---------------------------------------------------------------------------

    def agreeing(self, scope: bytes, tokens: Buffer, extras: Extras | None, limit: int) -> int:
        """How many of the first `limit` tokens agree with something stored, reusable or not. May scan children."""
        root = self.roots.get(scope)
        if root is None:
            return 0
        path, inside, common = self.walk(root, tokens, extras, 0, limit - limit % self.block)
        node = path[-1] if path else root
        at = node.end + common
        places = [(inside, common)] if inside is not None else [(child, 0) for child in node.children.values()]
        most = min(self.block, limit - at)
        return at + max((self.common(child, skip, tokens, extras, at, most) for child, skip in places), default=0)

    def keys_at(self, scope: bytes, tokens: Buffer, extras: Extras | None, start: int) -> list[bytes]:
        """Keys of the block that begins at token `start`: as long as the prompt fills it, then the shorter ones."""
        root = self.chain.root(scope)
        before = self.chain.blocks(root, tokens, 0, start // self.block, extras)
        parent = before[-1] if before else root
        end = min(len(tokens) // TOKEN_BYTES, start + self.block)
        return [self.chain.block(parent, *self.cut(tokens, extras, start, stop)) for stop in range(end, start, -1)]

    # -- looking at all of it -----------------------------------------------------------------------

    def nodes(self) -> Iterator[Node]:
        """Every node but the roots, parents before children; no recursion, however deep the tree."""
        yield from self.below(*self.roots.values())

    @staticmethod
    def below(*roots: Node) -> Iterator[Node]:
        """Every node below these, parents before children."""
        stack = [child for root in roots for child in root.children.values()]
        while stack:
            node = stack.pop()
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
            tokens, blocks = len(node.tokens) // TOKEN_BYTES, len(node.blocks)
            if not blocks or not (tokens == blocks * self.block or (blocks == 1 and 0 < tokens < self.block)):
                raise InvariantError(f"{node!r} has {tokens} tokens for {blocks} blocks")
            if self.is_tail(node) and node.children:
                raise InvariantError(f"{node!r} is a partial block with children")
            if len(node.digests) != blocks * DIGEST_BYTES or parent.children.get(node.first_digest) is not node:
                raise InvariantError(f"{node!r} is not registered under its own digest")
            if node.end != parent.end + tokens:
                raise InvariantError(f"{node!r} ends at {node.end}, its parent at {parent.end}")
            self._check_index(node)

    def _check_index(self, node: Node) -> None:
        index = node.index
        if (index is not None) != (self.indexed and len(node.children) > 1):
            raise InvariantError(f"{node!r} has {len(node.children)} children and {'an' if index else 'no'} index")
        if index is None:
            return
        index.check()
        if {id(child) for child in index} != {id(child) for child in node.children.values()}:
            raise InvariantError(f"{node!r} has other children in its index than by digest")
        for child in node.children.values():
            best = index.best(self._name(child, index.unit))
            if best is None or best[0] is not child:
                raise InvariantError(f"{child!r} is covered by another child of {node!r}")
