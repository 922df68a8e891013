"""Stored blocks that a request reuses in part, but for the first choice of a match: beside its way, or on it."""

from __future__ import annotations

from collections.abc import Iterator

from prefixcache.designs.base import Match, Partial, Prompt
from prefixcache.designs.block_trie.run import Run, key_of
from prefixcache.designs.block_trie.store import cut_prompt
from prefixcache.designs.block_trie.tree import Trie
from prefixcache.keys.extras import Extras


class Source:
    """A stored block that a request reuses in part: the one that ends at token `end`, in `run`.

    `run` is kept right while the block is held, whatever is split above or below.
    """

    __slots__ = ("end", "run")

    def __init__(self, run: Run, end: int) -> None:
        self.run = run
        self.end = end

    def carried(self, block_size: int) -> Extras | None:
        """What the block carries."""
        end = self.end - self.run.start
        return self.run.cut((end - 1) // block_size * block_size, end)[1]


def look_beside(
    trie: Trie, prompt: Prompt, limit: int, least: int, ends: bool
) -> Iterator[tuple[int, Iterator[Partial]]]:
    """See `Design.beside`. O(runs) lookups; O(block) more for each branch that is looked at."""
    root = trie.roots.get(prompt.root)
    if root is None:
        return
    path, inside, _ = trie.walk(root, prompt.tokens, prompt.extras, 0, limit - limit % trie.block_tokens)
    onward = [*path, inside]
    for run, follow in zip(reversed([root, *path]), reversed(onward), strict=True):
        if run.end < least:
            return
        if len(run.children) > (follow is not None):
            yield run.end, _others(trie, prompt, limit, run, follow, ends or trie.crowded(run))


def _others(trie: Trie, prompt: Prompt, limit: int, run: Run, follow: Run | None, ends: bool) -> Iterator[Partial]:
    """The first blocks of the children, but for the one with which the match goes on."""
    at, size = run.end, trie.block_tokens
    if trie.whole_only(cut_prompt(prompt, at, min(at + size, limit))[1]):
        return
    for child, shared in _tails(prompt, limit, run, size) if ends else _alike(trie, prompt, limit, run):
        if child is not follow:
            source = Source(child, at + min(child.length, size))
            yield Partial(child.blocks[0], shared, not child.pins, False, source)


def _alike(trie: Trie, prompt: Prompt, limit: int, run: Run) -> Iterator[tuple[Run, int]]:
    return trie.family.alike(run, *cut_prompt(prompt, run.end, min(run.end + trie.block_tokens, limit)))


def _tails(prompt: Prompt, limit: int, run: Run, size: int) -> Iterator[tuple[Run, int]]:
    """The tails behind a run all of whose tokens the prompt has, the longest first."""
    at = run.end
    for end in range(min(at + size - 1, limit), at, -1):
        tail = run.children.get(key_of(*cut_prompt(prompt, at, end)))
        if tail is not None:
            yield tail, end - at


def last_block(trie: Trie, match: Match, tokens: int) -> Partial | None:
    """See `Design.last_block`."""
    run, end = match.anchor
    source = Source(run, end)
    if trie.whole_only(source.carried(trie.block_tokens)):
        return None
    return Partial(match.blocks[-1], tokens, not run.pins, False, source)
