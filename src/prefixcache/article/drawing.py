"""Trees as text: one node a line, branches with box characters, several trees side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from prefixcache.designs import OutlineNode

_GAP = "  "


def draw(
    outline: Sequence[OutlineNode], tokens: Sequence[tuple[int, ...]], named: Callable[[Sequence[int]], str]
) -> list[str]:
    """The tree of an outline. An only child stands below its parent; brothers are in the order of their tokens.

    Args:
        tokens: of each node.
        named: what a node is called by its tokens.
    """
    children: dict[int, list[int]] = {}
    for place, node in enumerate(outline):
        children.setdefault(node.parent, []).append(place)
    lines = []
    stack = _branches(children.get(-1, []), tokens, "")
    while stack:
        place, first, indent = stack.pop()
        lines.append(first + named(tokens[place]))
        below = children.get(place, [])
        stack += [(below[0], indent, indent)] if len(below) == 1 else _branches(below, tokens, indent)
    return lines


def _branches(places: Sequence[int], tokens: Sequence[tuple[int, ...]], indent: str) -> list[tuple[int, str, str]]:
    """(node, what stands before it, what stands before all below it), the first one last: to be popped."""
    ordered = sorted(places, key=lambda place: tokens[place])
    drawn = [(place, f"{indent}├ ", f"{indent}│ ") for place in ordered[:-1]]
    drawn += [(place, f"{indent}└ ", f"{indent}  ") for place in ordered[-1:]]
    return drawn[::-1]


def side_by_side(columns: Sequence[Sequence[str]], width: int) -> list[str]:
    """The columns next to each other if each fits its share of the width, else one below the other."""
    each = (width + len(_GAP)) // len(columns) - len(_GAP)
    if max(len(line) for column in columns for line in column) > each:
        stacked = [line for column in columns for line in ["", *column]]
        return stacked[1:]
    height = max(map(len, columns))
    padded = [[*column, *[""] * (height - len(column))] for column in columns]
    return [_GAP.join(cell.ljust(each) for cell in row).rstrip() for row in zip(*padded, strict=True)]
