"""A run of the trie: nodes of one block each that follow each other without a branch, stored together.

blocks   [1 2 3 4] [5 6 7 8] [9 9]          as runs    root ── 1 2 3 4 5 6 7 8 ─┬─ 9 9      (a tail)
         [1 2 3 4] [5 6 7 8] [7 7 7 7]                                           └─ 7 7 7 7
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

from prefixcache.blocks.retention import DEFAULT_PRIORITY
from prefixcache.designs.children import TYPED_BYTES, ChildIndex, before_extras, typed
from prefixcache.keys.extras import Extras, common_extras
from prefixcache.keys.scope import Scope
from prefixcache.keys.tokens import TOKEN_BYTES, common_tokens

# Most runs are leaves: they share this one until they get a child, which saves a dict per leaf.
_NO_CHILDREN: Final[Mapping[Hashable, Run]] = MappingProxyType({})


class Run:
    """Blocks in a row, all full, or one partial block: the tail of a request.

    What is said of its blocks is true of all of them: pinned alike, of one priority, released together.

    Attributes:
        parent: None for the root of a scope, and for a run that is no longer in the trie.
        tokens: the tokens of its blocks, joined.
        extras: media and extra ids of these tokens.
        blocks: one block id per block; none for a hole: evicted, while something behind it is still cached.
        end: tokens from the beginning of the prompt to the end of the run.
        children: by the full key of their first block.
        index: the same, ordered by tokens, those that may be matched in part; None with fewer than two.
        keys: chained digests of the blocks, for events only.
        pins: who uses it: requests, pins, sources of unfinished copies.
        priority, ttl: retention; `since` is when its last user let go of it.
        last_access, created, hits: for eviction policies.
    """

    __slots__ = (
        "blocks",
        "children",
        "created",
        "end",
        "extras",
        "hits",
        "index",
        "keys",
        "last_access",
        "parent",
        "pins",
        "priority",
        "since",
        "tokens",
        "ttl",
    )

    def __init__(
        self, parent: Run | None, tokens: bytes, extras: Extras | None, blocks: array[int], end: int, tick: int
    ) -> None:
        self.parent = parent
        self.tokens = tokens
        self.extras = extras
        self.blocks = blocks
        self.end = end
        self.children: Mapping[Hashable, Run] = _NO_CHILDREN
        self.index: ChildIndex[Run] | None = None
        self.keys: list[bytes] = []
        self.pins = 0
        self.priority = DEFAULT_PRIORITY
        self.ttl: float | None = None
        self.since = 0.0
        self.last_access = self.created = tick
        self.hits = 0

    def __repr__(self) -> str:
        return f"Run(end={self.end}, blocks={list(self.blocks)}, pins={self.pins}, children={len(self.children)})"

    @property
    def length(self) -> int:
        """Its tokens."""
        return len(self.tokens) // TOKEN_BYTES

    @property
    def start(self) -> int:
        """Tokens of the prompt before it."""
        return self.end - len(self.tokens) // TOKEN_BYTES

    def key_before(self, block: int) -> bytes | None:
        """The key of the block before this one of its own; None at the beginning of a prompt."""
        if block:
            return self.keys[block - 1]
        return self.parent.keys[-1] if self.parent is not None and self.parent.keys else None

    def cut(self, start: int, end: int) -> tuple[bytes, Extras | None]:
        """Its tokens [start, end), counted from its own beginning, and what they carry."""
        extras = self.extras.cut(start, end) if self.extras is not None else None
        return self.tokens[start * TOKEN_BYTES : end * TOKEN_BYTES], extras

    def common(self, start: int, tokens: bytes, extras: Extras | None) -> int:
        """Leading ones of these tokens (at most a block) that the run has from its token `start` on."""
        most = min(self.length - start, len(tokens) // TOKEN_BYTES)
        same = common_tokens(self.tokens, start, tokens, 0, most)
        if extras is None and self.extras is None:
            return same
        own = self.extras.cut(start, start + same) if self.extras is not None else None
        theirs = extras.cut(0, same) if extras is not None else None
        return common_extras(own, theirs, same)


class Root(Run):
    """Where the prompts of one scope begin.

    Attributes:
        name: the encoded scope.
        scope: the same for events.
    """

    __slots__ = ("name", "scope")

    def __init__(self, name: bytes, scope: Scope) -> None:
        super().__init__(None, b"", None, array("i"), 0, 0)
        self.name = name
        self.scope = scope


def key_of(tokens: bytes, extras: Extras | None) -> Hashable:
    """The full key of a block below its parent. The scope, with adapter, salt and whether extra ids are used,
    is the root's: so every dimension of a block's key is compared on every path."""
    return tokens if extras is None else (tokens, extras)


def carries_media(extras: Extras | None) -> bool:
    """Whether a media item lies over any of the tokens."""
    return extras is not None and bool(extras.runs)


class Family:
    """Children of a run and their order: what is added to one is added to the other.

    Args:
        block_tokens: tokens per block.
        indexed: whether hits inside a block are wanted at all.
        media_whole: a block that a media item touches is matched whole or not at all.
    """

    def __init__(self, block_tokens: int, indexed: bool, media_whole: bool) -> None:
        self._block = block_tokens
        self._indexed = indexed
        self._media_whole = media_whole

    def key(self, run: Run) -> Hashable:
        """What a parent finds the run by."""
        return key_of(*run.cut(0, self._block))

    def add(self, parent: Run, child: Run) -> None:
        """A new child, the last in order of insertion."""
        if not parent.children:
            parent.children = {}
        assert isinstance(parent.children, dict)
        parent.children[self.key(child)] = child
        if parent.index is not None:
            self.show(child)
        elif self._indexed and len(parent.children) > 1:
            self._build(parent, TOKEN_BYTES)

    def remove(self, child: Run) -> None:
        """The child is gone."""
        parent = child.parent
        assert parent is not None and isinstance(parent.children, dict)
        self.hide(child)
        del parent.children[self.key(child)]
        if len(parent.children) < 2:
            parent.index = None
        if not parent.children:
            parent.children = _NO_CHILDREN

    def replace(self, old: Run, new: Run) -> None:
        """`new` has the same first block and takes the place of `old`, in its turn among equals too."""
        parent = new.parent
        assert parent is not None and isinstance(parent.children, dict)
        parent.children[self.key(new)] = new
        if parent.index is not None and self.matchable(old):
            parent.index.replace(self._ordered(old, parent.index.unit), new)

    def show(self, child: Run) -> None:
        """The child may be matched in part from now on."""
        parent = child.parent
        if parent is None or parent.index is None or not self.matchable(child):
            return
        if parent.index.unit == TOKEN_BYTES and child.cut(0, self._block)[1] is not None:
            self._build(parent, TYPED_BYTES)
        else:
            parent.index.add(self._ordered(child, parent.index.unit), child)

    def hide(self, child: Run) -> None:
        """The child may not be matched in part any more."""
        parent = child.parent
        if parent is None or parent.index is None or not self._may_match(child):
            return
        if parent.index.unit != TOKEN_BYTES or child.cut(0, self._block)[1] is None:
            parent.index.discard(self._ordered(child, parent.index.unit))

    def best(self, parent: Run, tokens: bytes, extras: Extras | None) -> tuple[Run, int] | None:
        """The child whose first block shares the longest beginning with these tokens, and how much.

        The first inserted one of several; None without a common token. Costs the tokens of a block,
        however many children there are.
        """
        if self._media_whole and carries_media(extras):
            return None
        index = parent.index
        if index is None:
            for child in parent.children.values():
                common = child.common(0, tokens, extras) if self.matchable(child) else 0
                return (child, common) if common else None
            return None
        if index.unit == TOKEN_BYTES:
            return index.best(before_extras(tokens, extras))
        return index.best(typed(tokens, extras))

    def alike(self, parent: Run, tokens: bytes, extras: Extras | None) -> Iterator[tuple[Run, int]]:
        """All children whose first block shares tokens with these: how many, most first. As `best` otherwise."""
        index = parent.index
        if index is None or (self._media_whole and carries_media(extras)):
            found = self.best(parent, tokens, extras)
            return iter(() if found is None else (found,))
        if index.unit != TOKEN_BYTES:
            return index.alike(typed(tokens, extras))
        return index.alike(before_extras(tokens, extras))

    def matchable(self, child: Run) -> bool:
        """Whether the child may be matched in part: it holds a block, and no media that forbid it."""
        return bool(child.blocks) and self._may_match(child)

    def _may_match(self, child: Run) -> bool:
        return not (self._media_whole and carries_media(child.cut(0, self._block)[1]))

    def _build(self, parent: Run, unit: int) -> None:
        children = [child for child in parent.children.values() if self.matchable(child)]
        children.sort(key=lambda child: child.created)  # a hole that was filled again counts from then on
        if unit == TOKEN_BYTES and any(child.cut(0, self._block)[1] is not None for child in children):
            unit = TYPED_BYTES
        parent.index = ChildIndex(unit)
        for child in children:
            parent.index.add(self._ordered(child, unit), child)

    def _ordered(self, child: Run, unit: int) -> bytes:
        """The first block of a child as its parent's index has it."""
        tokens, extras = child.cut(0, self._block)
        return tokens if unit == TOKEN_BYTES else typed(tokens, extras)
