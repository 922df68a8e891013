"""The KV oracle: stub KV memory in which every slot says what prefix its content was computed from.

The stub KV of position i stands for (scope, media, extra ids, tokens[0..i]): for all that real KV
of position i depends on. Before a request uses its table each of its slots must hold exactly that,
so that "wrong output" becomes an assertion that needs no model.

Contents are interned instead of hashed: each distinct prefix gets the next number, found by
(number of the prefix before it, last position). Two contents are equal exactly when the numbers
are, collisions do not exist, a longer prefix costs one dictionary step per new position, and an
error can spell out what prefix a slot holds instead of showing two digests.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from prefixcache.blocks.kv_store import BlockCopy
from prefixcache.designs.groups import Full, Kind, Recurrent, Window
from prefixcache.errors import PrefixCacheError

_Tokens = npt.NDArray[np.uint32]

_SHOWN = 12  # tokens of a prefix that an error message shows from its end


class OracleError(PrefixCacheError, AssertionError):
    """A slot does not hold the KV that its reader needs: a request would have produced wrong output."""


class Owner(Protocol):
    """What the oracle reads of a request.

    `media` holds runs as (first token, end token, digest, offset in the item). A request may also say
    `why_not` it is cacheable: then nobody knows what its KV depends on, and it is good for itself alone.
    """

    @property
    def id(self) -> int: ...
    @property
    def tokens(self) -> Any: ...
    @property
    def scope(self) -> Any: ...
    @property
    def media(self) -> Sequence[tuple[int, int, bytes, int]]: ...
    @property
    def extra_ids(self) -> Any: ...
    @property
    def tables(self) -> Any: ...


class _Position(NamedTuple):
    """What one position adds to the prefix before it."""

    token: int
    extra: int
    media: Hashable

    def __str__(self) -> str:
        extra = f" with extra id {self.extra}" if self.extra else ""
        return f"{self.token}{extra}" + (f" under media {self.media}" if self.media else "")


class _Root(NamedTuple):
    """What KV depends on besides the tokens and what lies under them."""

    model: Hashable
    generation: Hashable
    adapter: Hashable
    salt: Hashable
    request: int | None  # the only request that this KV is good for, None for everybody's

    def __str__(self) -> str:
        given = [f"{name} {value!r}" for name, value in self._asdict().items() if value not in (None, "")]
        return ", ".join(given)


@dataclass(slots=True)
class _Chain:
    """The contents of one request's positions, as far as they were asked for."""

    root: int
    media: tuple[Hashable, ...]
    tokens: _Tokens
    extra_ids: tuple[int, ...]
    contents: list[int] = field(default_factory=list)


class KVOracle:
    """Stub KV memory for one cache.

    Args:
        block_size: slots of a block.
        groups: attention groups, in the order of the tables. A window's slots are checked where a layer would read
            them; a block of a recurrent group holds one state, which stands for all tokens before it.

    It owns no blocks and never asks the cache anything: it sees only tables, tokens and copies.
    Memory grows with the distinct prefixes that were written, not with the cache's capacity.
    """

    def __init__(self, block_size: int, groups: Sequence[Kind] = (Full(),)) -> None:
        self._groups = groups
        self._sizes = [_slots_of(kind, block_size) for kind in groups]
        self._memory: dict[tuple[str, int, int], list[int | None]] = {}  # (tier, group, block) -> content per slot
        self._numbers: dict[tuple[int, Hashable], int] = {}
        self._origins: list[tuple[int, Hashable]] = []  # content -> (content before it, last position)
        self._chains: dict[int, _Chain] = {}
        self._alone: dict[int, int] = {}  # fork -> first ancestor, for KV that is good for one request alone

    def copy(self, copies: Iterable[BlockCopy]) -> None:
        """Do the moves in order. O(tokens copied).

        Raises:
            OracleError: a source slot was never written.
        """
        for move in copies:
            source = self._slots(move.group, move.source, move.source_tier)
            for offset in range(move.tokens):
                if source[offset] is None:
                    raise OracleError(
                        f"copy of {move.tokens} tokens from block {move.source} to block {move.target}: "
                        f"source slot {move.source * self._sizes[move.group] + offset} was never written"
                    )
            self._slots(move.group, move.target, move.target_tier)[: move.tokens] = source[: move.tokens]

    def write(self, request: Owner, start: int, stop: int) -> None:
        """Write the KV of positions [start, stop) where the request's table says. O(stop - start).

        Raises:
            OracleError: a position lies behind the request's tokens or outside its table.
        """
        contents = self._contents(request, stop)
        for group, kind in enumerate(self._groups):
            if isinstance(kind, Recurrent):
                if start < stop:
                    self._state(request, group)[0] = contents[stop - 1]
                continue
            for position, slots, offset in self._walk(request, group, range(start, stop)):
                slots[offset] = contents[position]

    def verify(self, request: Owner, length: int, computed: int | None = None) -> None:
        """Check that what the next step reads holds exactly this request's KV. O(length).

        That is the slots of positions [0, length) for full attention, the window of the position behind `computed`
        (`length` unless given) and its sinks, and the state of recurrent layers when all `computed` are checked.

        A block that `computed` moved the request onto is checked like any other: it must hold the
        same content as the block that was given back.

        Raises:
            OracleError: names the first wrong position, its slot, the expected and the found content.
        """
        contents = self._contents(request, length)
        computed = length if computed is None else computed
        for group, kind in enumerate(self._groups):
            if isinstance(kind, Recurrent):
                if length == computed and length and (state := self._state(request, group)[0]) != contents[length - 1]:
                    raise OracleError(
                        f"request {request.id}, group {group}: expected the state of "
                        f"{self._describe(contents[length - 1])}, found {self._describe(state)}"
                    )
                continue
            for position, slots, offset in self._walk(request, group, _read(kind, length, computed)):
                if slots[offset] != contents[position]:
                    size = self._sizes[group]
                    block = int(request.tables[group][position // size])
                    raise OracleError(
                        f"request {request.id}, position {position}, slot {block * size + offset} "
                        f"(block {block}): expected {self._describe(contents[position])}, "
                        f"found {self._describe(slots[offset])}"
                    )

    def verify_source(self, request: Owner, copy: BlockCopy, computed: int) -> None:
        """Check that a copy into the request's table, made now, would bring it the KV of its own prefix. O(tokens).

        As far as it counts: of the first `computed` tokens. A rewind may have forgotten the rest.

        Raises:
            OracleError: names the first wrong position, the expected and the found content.
        """
        if isinstance(self._groups[copy.group], Recurrent):
            return  # a state is checked where it is used
        size = self._sizes[copy.group]
        begin = [int(block) for block in request.tables[copy.group]].index(copy.target) * size
        end = max(min(begin + copy.tokens, computed), begin)
        contents = self._contents(request, end)
        found = self._slots(copy.group, copy.source, copy.source_tier)
        for offset in range(end - begin):
            if found[offset] != contents[begin + offset]:
                raise OracleError(
                    f"request {request.id}, position {begin + offset}, to be copied out of {copy.source_tier} block "
                    f"{copy.source}: expected {self._describe(contents[begin + offset])}, "
                    f"found {self._describe(found[offset])}"
                )

    def fork(self, parent: Owner, child: Owner) -> None:
        """`child` is another sample of `parent`: it may read its KV even where that is good for nobody else."""
        self._alone[child.id] = self._alone.get(parent.id, parent.id)

    def _walk(
        self, request: Owner, group: int, positions: Sequence[int]
    ) -> Iterable[tuple[int, list[int | None], int]]:
        """Yield (position, slots of its block, offset in the block)."""
        table, size = [int(block) for block in request.tables[group]], self._sizes[group]
        if len(positions) and (positions[0] < 0 or positions[-1] >= len(table) * size):
            raise OracleError(
                f"request {request.id}: positions {positions[0]}..{positions[-1]} are not all in its table of "
                f"{len(table)} blocks of {size}"
            )
        at, slots = -1, list[int | None]()
        for position in positions:
            if position // size != at:
                at = position // size
                if table[at] < 0:
                    raise OracleError(f"request {request.id}: position {position} has no block in group {group}")
                slots = self._slots(group, table[at])
            yield position, slots, position % size

    def _state(self, request: Owner, group: int) -> list[int | None]:
        return self._slots(group, int(request.tables[group][0]))

    def _slots(self, group: int, block: int, tier: str = "device") -> list[int | None]:
        slots = self._memory.get((tier, group, block))
        if slots is None:
            slots = self._memory[tier, group, block] = [None] * self._sizes[group]
        return slots

    def _contents(self, request: Owner, length: int) -> list[int]:
        """The right content of positions [0, length) at least.

        A rewind followed by other tokens shows as a difference in the tokens or extra ids: the
        chain is cut there and grown again.
        """
        tokens = np.asarray(request.tokens, dtype=np.uint32)
        if length > len(tokens):
            raise OracleError(f"request {request.id} knows {len(tokens)} tokens, {length} were asked for")
        extra_ids = () if request.extra_ids is None else tuple(int(extra) for extra in request.extra_ids)
        media = tuple(request.media)
        root = self._root(request)
        chain = self._chains.get(request.id)
        if chain is None or chain.root != root or chain.media != media:
            chain = self._chains[request.id] = _Chain(root, media, tokens[:0], ())
        same = min(len(chain.contents), _common(chain.tokens, tokens), len(tokens))
        if chain.extra_ids != extra_ids:
            same = min(same, _first_difference(chain.extra_ids, extra_ids))
        del chain.contents[same:]
        chain.tokens, chain.extra_ids = tokens.copy(), extra_ids
        if same < length:
            covers = _covers(media, length)
            content = chain.contents[-1] if same else root
            for position in range(same, length):
                # A missing extra id and 0 are the same to a model: the id 0 stands for "none".
                extra = extra_ids[position] if position < len(extra_ids) else 0
                content = self._number(content, _Position(int(tokens[position]), extra, covers.get(position)))
                chain.contents.append(content)
        return chain.contents

    def _root(self, request: Owner) -> int:
        scope = request.scope
        alone = self._alone.get(request.id, request.id) if getattr(request, "why_not", "") else None
        # The contract: an empty adapter or salt means none.
        identity = _Root(scope.model, scope.generation, scope.adapter or None, scope.salt or None, alone)
        return self._number(-1, identity)

    def _number(self, before: int, last: Hashable) -> int:
        key = (before, last)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._origins)
            self._origins.append(key)
        return number

    def _describe(self, content: int | None) -> str:
        if content is None:
            return "nothing (never written)"
        tokens: list[str] = []
        before, last = self._origins[content]
        while before >= 0:
            tokens.append(str(last))
            before, last = self._origins[before]
        shown = ", ".join(reversed(tokens[:_SHOWN]))
        if len(tokens) > _SHOWN:
            shown = f"{len(tokens) - _SHOWN} tokens, " + shown
        return f"the KV of [{shown}] under {last}"


def _slots_of(kind: Kind, block_size: int) -> int:
    """Slots of one block of a group."""
    if isinstance(kind, Recurrent):
        return 1
    return (kind.block_size if isinstance(kind, Window) else None) or block_size


def _read(kind: Kind, length: int, computed: int) -> Sequence[int]:
    """Of the first `length` positions, those that layers of this kind read when they compute position `computed`."""
    if not isinstance(kind, Window):
        return range(length)
    first = min(kind.first_read(computed), length)
    return (*range(min(kind.sinks, first)), *range(first, length))


def _covers(media: Sequence[tuple[int, int, bytes, int]], length: int) -> dict[int, Hashable]:
    """Position -> (digest, offset in the item) for the positions below `length` under a media item."""
    return {
        position: (digest, offset + position - start)
        for start, end, digest, offset in media
        for position in range(start, min(length, end))
    }


def _common(left: _Tokens, right: _Tokens) -> int:
    size = min(len(left), len(right))
    differences = np.flatnonzero(left[:size] != right[:size])
    return int(differences[0]) if len(differences) else size


def _first_difference(left: Sequence[int], right: Sequence[int]) -> int:
    size = max(len(left), len(right))
    for position in range(size):
        here = left[position] if position < len(left) else 0
        there = right[position] if position < len(right) else 0
        if here != there:
            return position
    return size
