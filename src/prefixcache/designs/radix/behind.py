"""What lies behind a match of whole pages: the beginning of one more page, to be copied."""

from __future__ import annotations

from prefixcache.designs.base import Match, Partial, Prompt
from prefixcache.designs.radix.node import Place
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
