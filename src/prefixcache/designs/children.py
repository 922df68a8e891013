"""The children of one node, found by the beginning of their tokens: the best partial match without a scan.

A small trie whose branches say where children part, not what they share. A lookup follows the query's own
tokens from branch to branch without checking what lies between, and compares once, with the child it
arrives at: children that part behind the common prefix are all on the way, so the length is right whichever
of them it was. The answer is then the first child under the last branch that the common prefix reaches.

    children  [1 2 3 4]  [1 2 9 9]  [7 7 7 7]          at token 0 ─┬─ 1 ── at token 2 ─┬─ 3 ── [1 2 3 4]
    query      1 2 5 5   → [1 2 3 4], 2 tokens                     └─ 7 ── [7 7 7 7]   └─ 9 ── [1 2 9 9]

The index holds only children that may be used: the caller adds and discards them as that changes. Where more
than the token decides about a match (extra ids, media), the caller encodes each token with what it carries in
`unit` bytes; two tokens match when these bytes are equal.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from heapq import heapify, heappop, heappush
from typing import Generic, TypeAlias, TypeVar

from prefixcache.errors import InvariantError
from prefixcache.keys.extras import Extras
from prefixcache.keys.tokens import TOKEN_BYTES

Child = TypeVar("Child")

_NOTHING = bytes(sha256().digest_size)
TYPED_BYTES = TOKEN_BYTES + len(_NOTHING)  # a token with the digest of what it carries
_FEW = 2  # up to here a list is as fast as a trie, and smaller
_NARROW = 16  # up to here the oldest child of a branch is found by looking at each


class _Leaf(Generic[Child]):
    """One child. `order` counts insertions, so that ties go to the first inserted."""

    __slots__ = ("child", "order", "tokens")

    def __init__(self, tokens: bytes, order: int, child: Child) -> None:
        self.tokens = tokens
        self.order = order
        self.child = child

    @property
    def first(self) -> _Leaf[Child]:
        return self


class _Branch(Generic[Child]):
    """Where children part that share their first `depth` tokens.

    Attributes:
        turns: by the token at `depth`; b"" for a child that ends here.
        first: the first inserted of all children below.
        oldest: (order of the first child, turn) of every turn and stale entries; None while not needed.
    """

    __slots__ = ("depth", "first", "oldest", "turns")

    def __init__(self, depth: int, turns: dict[bytes, _Node[Child]], first: _Leaf[Child]) -> None:
        self.depth = depth
        self.turns = turns
        self.first = first
        self.oldest: list[tuple[int, bytes]] | None = None


_Node: TypeAlias = _Leaf[Child] | _Branch[Child]


class ChildIndex(Generic[Child]):
    """Children by their tokens, each token string once.

    Args:
        unit: bytes per token in all strings that come in.

    Every operation costs O(branches on the way), which is at most the tokens of a block and about the
    logarithm of the number of children; a discarded first child costs O(log children) more to replace.
    """

    __slots__ = ("_few", "_inserted", "_root", "_size", "unit")

    def __init__(self, unit: int = TOKEN_BYTES) -> None:
        self.unit = unit
        self._few: list[_Leaf[Child]] | None = []
        self._root: _Node[Child] | None = None
        self._inserted = 0
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Child]:
        """All children, in no particular order."""
        if self._few is not None:
            yield from (leaf.child for leaf in self._few)
            return
        stack = [self._root] if self._root is not None else []
        while stack:
            node = stack.pop()
            if isinstance(node, _Branch):
                stack.extend(node.turns.values())
            else:
                yield node.child

    def best(self, tokens: bytes) -> tuple[Child, int] | None:
        """The child with the longest common prefix and how many tokens that is; None without a common token.

        Of several with the same length it is the one that was added first.
        """
        unit = self.unit
        if self._few is not None:
            best, longest = None, 0
            for leaf in self._few:
                common = _common(leaf.tokens, tokens, unit)
                if common > longest:
                    best, longest = leaf, common
            return None if best is None else (best.child, longest)
        top = node = self._root
        assert top is not None and node is not None
        while isinstance(node, _Branch):
            at = node.depth * unit
            turn = node.turns.get(tokens[at : at + unit])
            if turn is None:
                break
            node = turn
        common = _common(node.first.tokens, tokens, unit)
        if not common:
            return None
        node = top
        while isinstance(node, _Branch) and node.depth < common:
            at = node.depth * unit
            node = node.turns[tokens[at : at + unit]]
        return node.first.child, common

    def alike(self, tokens: bytes) -> Iterator[tuple[Child, int]]:
        """All children with a common token and how many they share, most first; of equal ones in no particular order.

        One by one: who stops early pays for the branches on the way and for what was looked at.
        """
        unit = self.unit
        if self._few is not None:
            few = [(leaf.child, _common(leaf.tokens, tokens, unit)) for leaf in self._few]
            yield from sorted((found for found in few if found[1]), key=lambda found: -found[1])
            return
        path, reached = self._path(tokens)
        common = _common(reached.first.tokens, tokens, unit)
        path = [branch for branch in path if branch.depth < common]
        below, passed = self._root if not path else path[-1].turns[_token(tokens, path[-1].depth, unit)], None
        while common and below is not None:
            for child in _children_below(below, passed):
                yield child, common
            below, passed = (path.pop() if path else None), below
            common = below.depth if isinstance(below, _Branch) else 0

    def add(self, tokens: bytes, child: Child) -> None:
        """Add a child that may be used from now on. Raises `InvariantError` when its tokens are here already."""
        leaf = _Leaf(tokens, self._inserted, child)
        self._inserted += 1
        self._size += 1
        if self._few is None:
            self._insert(leaf)
            return
        if any(other.tokens == tokens for other in self._few):
            raise InvariantError("two children have the same tokens")
        self._few.append(leaf)
        if self._size > _FEW:
            few, self._few = self._few, None
            self._root = few[0]
            for other in few[1:]:
                self._insert(other)

    def _insert(self, leaf: _Leaf[Child]) -> None:
        tokens, unit = leaf.tokens, self.unit
        path, reached = self._path(tokens)
        common = _common(reached.first.tokens, tokens, unit)
        if common * unit == len(tokens) == len(reached.first.tokens):
            raise InvariantError("two children have the same tokens")
        # A new child is the last inserted one, so it is first nowhere but in its own leaf.
        at = common * unit
        turn = tokens[at : at + unit]
        depth = 0
        while depth < len(path) and path[depth].depth < common:
            depth += 1
        if depth < len(path) and path[depth].depth == common:
            branch = path[depth]
            branch.turns[turn] = leaf
            if branch.oldest is not None:
                heappush(branch.oldest, (leaf.order, turn))
            return
        below = path[depth] if depth < len(path) else reached
        first = below.first
        branch = _Branch(common, {first.tokens[at : at + unit]: below, turn: leaf}, first)
        self._put(path[depth - 1] if depth else None, tokens, branch)

    def _path(self, tokens: bytes) -> tuple[list[_Branch[Child]], _Node[Child]]:
        """The branches along these tokens, and the last node reached."""
        unit = self.unit
        path: list[_Branch[Child]] = []
        node = self._root
        assert node is not None
        while isinstance(node, _Branch):
            path.append(node)
            at = node.depth * unit
            turn = node.turns.get(tokens[at : at + unit])
            if turn is None:
                break
            node = turn
        return path, node

    def _put(self, parent: _Branch[Child] | None, tokens: bytes, node: _Node[Child]) -> None:
        """Put `node` where the way of `tokens` leaves `parent` (None: at the top)."""
        if parent is None:
            self._root = node
        else:
            unit = self.unit
            at = parent.depth * unit
            parent.turns[tokens[at : at + unit]] = node

    def discard(self, tokens: bytes) -> None:
        """Take the child of these tokens out. No error when there is none."""
        unit = self.unit
        if self._few is not None:
            for i, one in enumerate(self._few):
                if one.tokens == tokens:
                    del self._few[i]
                    self._size -= 1
                    return
            return
        path, leaf = self._path(tokens)
        if isinstance(leaf, _Branch) or leaf.tokens != tokens:
            return
        self._size -= 1
        if not path:
            self._root, self._few = None, []
            return
        last = path.pop()
        at = last.depth * unit
        del last.turns[tokens[at : at + unit]]
        if len(last.turns) == 1:
            (only,) = last.turns.values()
            self._put(path[-1] if path else None, tokens, only)
        if last.first is not leaf:
            return
        if len(last.turns) > 1:
            last.first = _first(last)
        for branch in reversed(path):
            if branch.oldest is not None:
                at = branch.depth * unit
                turn = tokens[at : at + unit]
                heappush(branch.oldest, (branch.turns[turn].first.order, turn))
            if branch.first is not leaf:
                return
            branch.first = _first(branch)

    def replace(self, tokens: bytes, child: Child) -> None:
        """Put another child in the place of the one with these tokens, in its turn among equals too."""
        leaf: _Leaf[Child] | None
        if self._few is not None:
            leaf = next((one for one in self._few if one.tokens == tokens), None)
        else:
            _, reached = self._path(tokens)
            leaf = None if isinstance(reached, _Branch) else reached
        if leaf is None or leaf.tokens != tokens:
            raise InvariantError("a child to be replaced is not in the index")
        leaf.child = child

    def check(self) -> None:
        """Assert the structure; raises `InvariantError` naming what is broken."""
        found, unit = 0, self.unit
        stack = [self._root] if self._root is not None else []
        while stack:
            node = stack.pop()
            if not isinstance(node, _Branch):
                found += 1
                continue
            if len(node.turns) < 2:
                raise InvariantError(f"a branch at token {node.depth} has {len(node.turns)} turns")
            at = node.depth * unit
            for turn, below in node.turns.items():
                if below.first.tokens[at : at + unit] != turn:
                    raise InvariantError(f"a branch at token {node.depth} leads to other tokens than it says")
                if below.first.tokens[:at] != node.first.tokens[:at]:
                    raise InvariantError(f"children part before token {node.depth}, where their branch is")
            if node.first is not min((below.first for below in node.turns.values()), key=lambda leaf: leaf.order):
                raise InvariantError(f"a branch at token {node.depth} names another child as the first inserted")
            stack.extend(node.turns.values())
        if found + len(self._few or ()) != self._size:
            raise InvariantError(f"{found} children are indexed, {self._size} were added")


def _first(branch: _Branch[Child]) -> _Leaf[Child]:
    """The first inserted child below a branch. O(1) for narrow branches, O(log turns) amortised for others."""
    turns = branch.turns
    if len(turns) <= _NARROW:
        branch.oldest = None
        return min((below.first for below in turns.values()), key=lambda leaf: leaf.order)
    if branch.oldest is None or len(branch.oldest) > 2 * len(turns):
        branch.oldest = [(below.first.order, turn) for turn, below in turns.items()]
        heapify(branch.oldest)
    while True:
        order, turn = branch.oldest[0]
        current = turns.get(turn)
        if current is not None and current.first.order == order:
            return current.first
        heappop(branch.oldest)


def _children_below(node: _Node[Child], passed: _Node[Child] | None) -> Iterator[Child]:
    """The children below a node, but for those below one that has been passed."""
    ways = [iter((node,))]
    while ways:
        below = next(ways[-1], None)
        if below is None:
            ways.pop()
        elif isinstance(below, _Leaf):
            if below is not passed:
                yield below.child
        elif below is not passed:
            ways.append(iter(below.turns.values()))


def _token(tokens: bytes, at: int, unit: int) -> bytes:
    """One token of a query, b"" behind its end."""
    return tokens[at * unit : (at + 1) * unit]


def _common(a: bytes, b: bytes, unit: int) -> int:
    """Leading tokens that two short buffers share: the lowest bit in which they differ, found in one go."""
    differ = int.from_bytes(a, "little") ^ int.from_bytes(b, "little")
    most = min(len(a), len(b)) // unit
    if not differ:
        return most
    return min(((differ & -differ).bit_length() - 1) // (8 * unit), most)


def typed(tokens: bytes, extras: Extras | None) -> bytes:
    """Each token followed by the digest of what it carries, zeros for nothing: `TYPED_BYTES` each."""
    parts = []
    for i in range(len(tokens) // TOKEN_BYTES):
        carried = extras.cut(i, i + 1) if extras is not None else None
        parts.append(tokens[i * TOKEN_BYTES : (i + 1) * TOKEN_BYTES])
        parts.append(_NOTHING if carried is None else sha256(carried.encode()).digest())
    return b"".join(parts)


def before_extras(tokens: bytes, extras: Extras | None) -> bytes:
    """Those of the tokens that come before the first one that carries anything."""
    return tokens if extras is None else tokens[: extras.first * TOKEN_BYTES]


def asked(unit: int, tokens: bytes, extras: Extras | None) -> bytes:
    """These tokens as an index with so many bytes per token is asked for them."""
    return before_extras(tokens, extras) if unit == TOKEN_BYTES else typed(tokens, extras)
