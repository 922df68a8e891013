"""What lies behind a match of whole pages, or beside its way: the beginning of one more page, to be copied."""

from __future__ import annotations

from collections.abc import Iterator

from prefixcache.designs.base import Match, Partial, Prompt
from prefixcache.designs.radix.node import Node, Place
from prefixcache.designs.radix.tree import RadixTree


def look_behind(tree: RadixTree, prompt: Prompt, limit: int, match: Match, partial: bool) -> None:
    """Add to a match what the page behind it offers, and what is missed for the token ahead alone.

    O(log children). Changes nothing but the match.

    Args:
        tree, prompt, limit: where the match was made.
        match: of whole pages, less than `limit` tokens.
        partial: whether a part of a page may be reused.
    """
    at, size, ahead = match.tokens, tree.page, tree.ahead
    node, inside, common = match.anchor
    found = tree.nearest(node, inside, common, prompt.tokens, prompt.extras, at, limit - at + ahead)
    if found is None:
        return
    child, begin, shared = found
    without = min(shared, limit - at)  # if the token ahead did not matter
    if not partial:
        match.dropped = without - without % size
        return
    shared = max(min(shared - ahead, limit - at), 0)
    match.dropped = without - shared
    if not shared:
        return
    assert child.parent is not None
    end = child.parent.end + begin + size
    idle = not child.pins
    takeable = idle and end == child.end and not child.children
    match.partial = Partial(child.blocks[begin // size], shared, idle, takeable, Place(child, end))


def look_beside(tree: RadixTree, prompt: Prompt, limit: int, least: int) -> Iterator[tuple[int, Iterator[Partial]]]:
    """See `Design.beside`. O(nodes) lookups; O(log children) more for each branch that is looked at."""
    root = tree.roots.get(prompt.root)
    if root is None:
        return
    path, inside, _ = tree.walk(root, prompt.tokens, prompt.extras, 0, limit - limit % tree.page)
    onward = [*path, inside]
    for node, follow in zip(reversed([root, *path]), reversed(onward), strict=True):
        if node.end < least:
            return
        if len(node.children) > (follow is not None):
            yield node.end, _others(tree, prompt, limit, node, follow)


def _others(tree: RadixTree, prompt: Prompt, limit: int, node: Node, follow: Node | None) -> Iterator[Partial]:
    """The first pages of the children, but for the one with which the match goes on."""
    at, ahead = node.end, tree.ahead
    for child, common in tree.alike(node, prompt.tokens, prompt.extras, at, limit - at + ahead):
        shared = min(common - ahead, limit - at)
        if child is not follow and shared > 0:
            yield Partial(child.blocks[0], shared, not child.pins, False, Place(child, at + tree.page))


def last_page(match: Match, tokens: int) -> Partial:
    """See `Design.last_block`."""
    node, inside, _ = match.anchor
    holder = inside or node
    return Partial(match.blocks[-1], tokens, not holder.pins, False, Place(holder, match.tokens))


def agreeing(tree: RadixTree, prompt: Prompt, limit: int, match: Match) -> int:
    """See `Design.agreeing`."""
    at = match.tokens
    if match.anchor is None or at >= limit:
        return at
    node, inside, common = match.anchor
    found = tree.nearest(node, inside, common, prompt.tokens, prompt.extras, at, limit - at)
    return at if found is None else at + found[2]
