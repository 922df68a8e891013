"""The hit of a prompt: the longest cached length that is safe for every group.

    design.match     the longest cached prefix                  [0 ......................... 96 .. 103)
    window           safe at                                     0 16 32 .. .. .. 80 96 .. 102
    recurrent        safe at                                     0 .. .. .. 64 .. .. 96
    the hit          the longest length safe for every group     96; without the last state 64, if safe there

Most hits are cut by no group, and cost one question to each. Else every end of a block is asked for at once, and then
whatever could end inside a block behind the last safe one: the block that the design has chosen, those of the match
itself where a window has finer blocks, and those that part from the match on its way. Of each the groups are asked in
turn for the most that is safe, until all agree.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from prefixcache.designs.base import Design, Match, Partial, Prompt
from prefixcache.designs.groups.recurrent import RecurrentSide
from prefixcache.designs.groups.side import Side
from prefixcache.designs.groups.values import Present

_MOST_TRIED = 256  # sources in one lookup: behind a token that all prompts begin with there can be very many


class Inside(NamedTuple):
    """A hit that ends inside a block: tokens before the block, and what is used of it."""

    at: int
    partial: Partial

    @property
    def tokens(self) -> int:
        return self.at + self.partial.tokens


class Found(NamedTuple):
    """What the design has of a prompt.

    Attributes:
        prompt: whose.
        match: the longest cached prefix.
        blocks: its whole blocks.
        tokens: its length, the part inside a block included.
        inside: whether a hit may end inside a block.
    """

    prompt: Prompt
    match: Match
    blocks: Sequence[int]
    tokens: int
    inside: bool


class Lookup:
    """See the module."""

    def __init__(self, design: Design, sides: Sequence[Side]) -> None:
        self._design = design
        self._sides = sides
        self._partial = design.options.partial != "off" and design.block_size > 1

    def match(self, prompt: Prompt, limit: int, whole: bool = False) -> Match:
        """The longest cached prefix of the first `limit` tokens that is safe for every group. Changes nothing.

        O(lookup + blocks of the prefix); with windows of finer blocks O(tokens) when they cut. `Match.cut` says how
        many tokens more the tree has, `cut_by` why they cannot be used, `branch` how much longer the hit would be if
        states were kept everywhere.

        Args:
            whole: only lengths at the end of a block.
        """
        match = self._design.match(prompt, limit)
        if whole:
            match.partial = None
        partial = match.partial
        if not match.tokens and partial is None:
            return match
        blocks = match.blocks[:]
        if partial is not None:
            partial.takeable = False
            if all(side.safe_inside(blocks, partial.source, partial.tokens) == partial.tokens for side in self._sides):
                return match
        elif all(side.safe_at_the_end(blocks) for side in self._sides):
            return match
        tokens = match.tokens + (partial.tokens if partial is not None else 0)
        return self._cut(Found(prompt, match, blocks, tokens, self._partial and not whole))

    def _cut(self, found: Found) -> Match:
        """The longest that is safe of a prefix that is not safe as a whole."""
        size = self._design.block_size
        masks = [side.safe(found.blocks) for side in self._sides]
        tokens = _last(masks) * size
        inside = self._longest_inside(self._sides, found, tokens)
        match = self._design.match(found.prompt, inside.at if inside is not None else tokens)
        if inside is not None:
            match.partial, tokens = inside.partial, inside.tokens
        match.cut = found.tokens - tokens
        if match.cut:
            side = self._cutting(found, masks)
            match.cut_by, match.cut_group = side.reason, side.group
        stateless = [mask for mask, side in zip(masks, self._sides, strict=True) if not isinstance(side, RecurrentSide)]
        if len(stateless) < len(masks):
            match.branch = (_last(stateless) if stateless else len(found.blocks)) * size
        return match

    def _cutting(self, found: Found, masks: Sequence[Present]) -> Side:
        """The group that alone would have cut most."""
        if len(self._sides) == 1:
            return self._sides[0]
        reach = []
        for side, mask in zip(self._sides, masks, strict=True):
            tokens = _last([mask]) * self._design.block_size
            inside = self._longest_inside((side,), found, tokens)
            reach.append(inside.tokens if inside is not None else tokens)
        return self._sides[reach.index(min(reach))]

    # -- inside a block -----------------------------------------------------------------------------

    def _longest_inside(self, sides: Sequence[Side], found: Found, least: int) -> Inside | None:
        """The longest hit inside a block that is longer than `least`, the last end of a block that is safe."""
        if not found.inside:
            return None
        size, longest, tried = self._design.block_size, least, 0
        may = np.logical_and.reduce([side.may_end_behind(found.blocks) for side in sides])
        best: Inside | None = None
        if not may[least // size :].any():
            return None
        for at, sources in self._sources(sides, found, least):
            if at + size - 1 <= longest or not may[at // size]:
                continue
            before = found.blocks[: at // size]
            for partial in sources:
                if at + partial.tokens <= longest or tried == _MOST_TRIED:
                    break
                tried += 1
                tokens = _agreed(sides, before, partial)
                if tokens < partial.tokens and not self._design.divisible(partial):
                    continue
                if tokens and at + tokens > longest:
                    longest = at + tokens
                    best = Inside(at, replace(partial, tokens=tokens))
        return best

    def _sources(self, sides: Sequence[Side], found: Found, least: int) -> Iterator[tuple[int, Iterator[Partial]]]:
        """Blocks inside which a hit could end, by the tokens before them; those that share most come first."""
        match = found.match
        if match.partial is not None:
            yield match.tokens, iter((match.partial,))
        states = any(isinstance(side, RecurrentSide) for side in sides)
        if not states and any(side.values.per_block > 1 for side in sides):
            yield from self._of_the_match(sides, found, least)
        yield from self._design.beside(found.prompt, found.tokens, least, ends=states)

    def _of_the_match(self, sides: Sequence[Side], found: Found, least: int) -> Iterator[tuple[int, Iterator[Partial]]]:
        """The block of the match in which the last length lies that is safe.

        Only a window of finer blocks has more in such a block than at its end.
        """
        size = self._design.block_size
        safe = np.logical_and.reduce([side.safe_within(found.blocks, least) for side in sides])
        ends = np.flatnonzero(safe) + least
        while (tokens := int(ends[-1])) > least:
            at = tokens // size * size
            partial = self._design.last_block(self._design.match(found.prompt, at + size), tokens - at)
            if partial is not None:
                yield at, iter((partial,))
                return
            ends = ends[ends <= at]


def _agreed(sides: Sequence[Side], before: Sequence[int], partial: Partial) -> int:
    """The most tokens of a source that are safe for all groups, 0 for none."""
    tokens = partial.tokens
    while tokens:
        least = tokens
        for side in sides:
            least = side.safe_inside(before, partial.source, least) if least else 0
        if least == tokens:
            break
        tokens = least
    return tokens


def _last(masks: Sequence[Present]) -> int:
    """The last place that all have marked."""
    return int(np.flatnonzero(np.logical_and.reduce(masks))[-1])
