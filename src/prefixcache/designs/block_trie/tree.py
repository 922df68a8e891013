"""The trie itself: what is where. Who uses it, and who goes first, is the design's business."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from prefixcache.designs.base import Prompt
from prefixcache.designs.block_trie.run import Family, Root, Run, carries_media, key_of
from prefixcache.errors import InvariantError
from prefixcache.keys.extras import Extras, common_extras
from prefixcache.keys.tokens import TOKEN_BYTES, Buffer, common_tokens


class Trie:
    """A trie of full blocks and tails per scope, its branchless stretches stored as runs.

    Args:
        block_tokens: tokens per block.
        partial: whether hits inside a block are wanted.
        media_whole: a block that a media item touches is matched whole or not at all.
        child_limit: from this many children on there is no hit inside a block; None: never.
    """

    def __init__(self, block_tokens: int, partial: bool, media_whole: bool, child_limit: int | None) -> None:
        self.block_tokens = block_tokens
        self.partial_hits = partial
        self._block_bytes = block_tokens * TOKEN_BYTES
        self._media_whole = media_whole
        self._child_limit = child_limit
        self.roots: dict[bytes, Root] = {}
        self.family = Family(block_tokens, partial, media_whole)

    # -- finding ------------------------------------------------------------------------------------

    def walk(
        self, node: Run, tokens: Buffer, extras: Extras | None, start: int, end: int
    ) -> tuple[list[Run], Run | None, int]:
        """Follow the prompt's tokens [start, end) down from `node`, which ends at start; holes are passed.

        Returns the runs matched whole, and the one that is left in the middle with the number of its leading
        tokens that match (whole blocks, at least one), or (None, 0). One dict lookup per run, then one
        comparison of all its blocks.
        """
        path: list[Run] = []
        at, stop, block = start * TOKEN_BYTES, end * TOKEN_BYTES, self._block_bytes
        while at < stop:
            text = bytes(tokens[at : at + block])
            if extras is None:
                child = node.children.get(text)
            else:
                first = at // TOKEN_BYTES
                child = node.children.get(key_of(text, extras.cut(first, first + self.block_tokens)))
            if child is None:
                break
            known = child.tokens
            plain = extras is None and child.extras is None
            if not (plain and at + len(known) <= stop and tokens.startswith(known, at)):
                common = self._common(child, tokens, extras, at // TOKEN_BYTES, end)
                if common * TOKEN_BYTES < len(known):
                    return path, child, common
            at += len(known)
            path.append(child)
            node = child
        return path, None, 0

    def _common(self, child: Run, tokens: Buffer, extras: Extras | None, at: int, end: int) -> int:
        """Leading tokens of `child` that the prompt has at token `at`, in whole blocks."""
        common = common_tokens(child.tokens, 0, tokens, at, min(child.length, end - at))
        if extras is not None or child.extras is not None:
            own = extras.cut(at, at + common) if extras is not None else None
            theirs = child.extras.cut(0, common) if child.extras is not None else None
            common = common_extras(own, theirs, common)
        return common - common % self.block_tokens

    def partial(self, run: Run, at: int, tokens: bytes, extras: Extras | None) -> tuple[Run, int, int] | None:
        """The best hit inside the block behind token `at` of the prompt, which `run` reaches.

        Args:
            run: where the whole blocks end: at its end or, when it goes on differently, inside it.
            at: tokens matched in whole blocks.
            tokens, extras: what the prompt has next, at most a block.

        Returns (run that holds the block, tokens of the prompt to the block's end, tokens that match). A tail
        of exactly these tokens beats any longer block.
        """
        length = len(tokens) // TOKEN_BYTES
        if run.end > at:
            common = self._inside(run, at - run.start, tokens, extras)
            return (run, at + self.block_tokens, common) if common else None
        if length < self.block_tokens:
            tail = run.children.get(key_of(tokens, extras))
            if tail is not None:
                return tail, tail.end, length
        if self.crowded(run):
            return None
        found = self.family.best(run, tokens, extras) if run.children else None
        if found is None:
            return None
        child, common = found
        return child, at + min(child.length, self.block_tokens), common

    def _inside(self, run: Run, start: int, tokens: bytes, extras: Extras | None) -> int:
        """Tokens shared with the block at token `start` of a run: the only child that its block before has."""
        if not run.blocks or self._child_limit == 1:
            return 0
        if self.whole_only(extras) or self.whole_only(run.cut(start, start + self.block_tokens)[1]):
            return 0
        return run.common(start, tokens, extras)

    def crowded(self, run: Run) -> bool:
        """Whether it has so many children that none but a tail of just these tokens is looked for."""
        return self._child_limit is not None and len(run.children) >= self._child_limit

    def whole_only(self, carried: Extras | None) -> bool:
        """Whether a block that carries this is matched whole or not at all."""
        return self._media_whole and carries_media(carried)

    def root(self, prompt: Prompt) -> Root:
        """The root of the prompt's scope, made when there is none."""
        root = self.roots.get(prompt.root)
        if root is None:
            root = self.roots[prompt.root] = Root(prompt.root, prompt.scope)
        return root

    @staticmethod
    def root_of(run: Run) -> Root:
        """The root above a run. O(runs above)."""
        while run.parent is not None:
            run = run.parent
        assert isinstance(run, Root)
        return run

    def runs(self) -> Iterator[Run]:
        """Every run but the roots, parents before children; no recursion, however deep the trie."""
        for root in self.roots.values():
            yield from self.below(root)

    @staticmethod
    def below(run: Run) -> Iterator[Run]:
        """Every run below this one, parents before children."""
        stack = list(run.children.values())
        while stack:
            run = stack.pop()
            yield run
            stack.extend(run.children.values())

    @staticmethod
    def reachable(run: Run) -> Iterator[Run]:
        """The runs below this one that no hole cuts off from it, parents before children."""
        stack = list(run.children.values())
        while stack:
            run = stack.pop()
            if run.blocks:
                yield run
                stack.extend(run.children.values())

    # -- changing -----------------------------------------------------------------------------------

    def split(self, run: Run, at: int) -> Run:
        """Cut a run behind its first `at` tokens; returns the new upper one.

        Whoever holds the run keeps it: it becomes the lower part. Everything that is said of the blocks holds
        for both parts.
        """
        parent = run.parent
        assert parent is not None
        upper = Run(parent, *run.cut(0, at), run.blocks[: at // self.block_tokens], run.start + at, run.created)
        upper.keys = run.keys[: at // self.block_tokens]
        upper.pins, upper.hits, upper.last_access = run.pins, run.hits, run.last_access
        upper.priority, upper.ttl, upper.since = run.priority, run.ttl, run.since
        self.family.replace(run, upper)
        run.tokens, run.extras = run.cut(at, run.length)
        run.blocks = run.blocks[at // self.block_tokens :]
        run.keys = run.keys[at // self.block_tokens :]
        run.parent = upper
        self.family.add(upper, run)
        return upper

    def append(
        self, parent: Run, tokens: bytes, extras: Extras | None, blocks: array[int], keys: list[bytes], tick: int
    ) -> Run:
        """A new run behind `parent`."""
        run = Run(parent, tokens, extras, blocks, parent.end + len(tokens) // TOKEN_BYTES, tick)
        run.keys = keys
        self.family.add(parent, run)
        return run

    def shorten(self, run: Run, blocks: int) -> None:
        """Forget the blocks of a leaf from index `blocks` on."""
        tokens = blocks * self.block_tokens
        run.end -= run.length - tokens
        run.tokens, run.extras = run.cut(0, tokens)
        del run.blocks[blocks:], run.keys[blocks:]

    def remove(self, run: Run) -> Run | None:
        """Take a leaf out, with the holes above it that lead nowhere else; the lowest run that stays, if any."""
        node = run
        while True:
            parent = node.parent
            assert parent is not None
            self.family.remove(node)
            node.parent = None
            if parent.children:
                return parent
            if parent.parent is None:
                assert isinstance(parent, Root)
                del self.roots[parent.name]
                return None
            if parent.blocks:
                return parent
            node = parent

    def check(self) -> None:
        """Assert the structure; raises `InvariantError` naming what is broken."""
        for name, root in self.roots.items():
            if root.name != name or not root.children or root.pins:
                raise InvariantError(f"the root of {root.scope} is empty, pinned or registered under another scope")
        for run in self.runs():
            parent, blocks = run.parent, -(-run.length // self.block_tokens)
            assert parent is not None
            if parent.children.get(self.family.key(run)) is not run:
                raise InvariantError(f"{run!r} is not registered under its own first block")
            if run.start != parent.end or not run.tokens:
                raise InvariantError(f"{run!r} begins at {run.start}, its parent ends at {parent.end}")
            if run.length % self.block_tokens and (run.length > self.block_tokens or run.children):
                raise InvariantError(f"{run!r} is a tail that is longer than a block or has children")
            if run.blocks and len(run.blocks) != blocks:
                raise InvariantError(f"{run!r} has {run.length} tokens")
            if not run.blocks and (run.pins or not run.children):
                raise InvariantError(f"{run!r} is a hole that is pinned or leads nowhere")
            if run.index is not None:
                run.index.check()
                self._check_index(run, list(run.index))
        for root in self.roots.values():
            if root.index is not None:
                self._check_index(root, list(root.index))

    def _check_index(self, run: Run, indexed: list[Run]) -> None:
        matchable = [child for child in run.children.values() if self.family.matchable(child)]
        if set(indexed) != set(matchable) or len(run.children) < 2:
            raise InvariantError(f"{run!r} indexes other children than those that may be matched in part")
