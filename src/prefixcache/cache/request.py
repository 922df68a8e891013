"""A live sequence that owns a block table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from prefixcache.cache.books import BlockCounters, Copy, RequestStats, snapshot
from prefixcache.designs import Holding
from prefixcache.designs.groups import Side, Source
from prefixcache.keys.extras import Extras
from prefixcache.keys.scope import Scope
from prefixcache.keys.tokens import TOKEN_BYTES, TokenLike, to_numpy

if TYPE_CHECKING:
    from prefixcache.cache.lifecycle import Lifecycle


class Request:
    """One sequence from admission to release. Made by `PrefixCache.open`; every call is atomic.

    Its table changes only inside its own calls. After close, abort or preempt it owns nothing any more,
    except blocks in quarantine until `settled()`.
    """

    def __init__(self, life: Lifecycle, number: int, scope: Scope, holding: Holding) -> None:
        self._life = life
        self._scope = scope
        self.id = number
        self.holding = holding
        self.pending: list[tuple[Copy, Any]] = []  # unfinished copies, each with what its source is pinned by
        self.given_up: list[int] = []  # blocks in quarantine
        self.given_up_copies: list[tuple[Copy, Any]] = []  # the same, in flight when the request was released
        self.given_up_in_groups: list[tuple[Side, list[int]]] = []  # blocks of other attention groups in quarantine
        self.moves: list[Sequence[tuple[int, int, int]]] = []
        self.block_counters = BlockCounters()
        self.reads = self.stores = True
        self.why_not = ""
        self.owed = b""  # tokens that a refused append still owes, with their extra ids
        self.owed_ids: Sequence[int] = ()
        self._state = "open"
        self._cached = 0
        self._computed = 0
        self._prompt_length = 0
        self._admitted_length = 0

    # -- what it is ---------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        """ "open", "closed", "aborted" or "preempted"."""
        return self._state

    @property
    def scope(self) -> Scope:
        """The scope it was opened under, with its generation filled in."""
        return self.holding.prompt.scope

    @property
    def media(self) -> tuple[tuple[int, int, bytes, int], ...]:
        """Media runs as (first token, end token, digest, offset in the item), sorted."""
        extras = self.holding.prompt.extras
        return extras.runs if extras is not None else ()

    @property
    def extra_ids(self) -> tuple[int, ...] | None:
        """One id per token, or None when the request uses none."""
        extras = self.holding.prompt.extras
        if extras is None or not extras.ids:
            return None
        return tuple(np.frombuffer(extras.ids, dtype="<u8").tolist())

    @property
    def block_size(self) -> int:
        """Tokens per block."""
        return self._life.core.design.block_size

    @property
    def tokens(self) -> np.ndarray[Any, np.dtype[np.uint32]]:
        """All known tokens, a read-only uint32 snapshot of shape (length,)."""
        return to_numpy(self.holding.prompt.tokens)

    @property
    def length(self) -> int:
        """Known tokens: the prompt and what was appended."""
        return len(self.holding.prompt.tokens) // TOKEN_BYTES

    @property
    def prompt_length(self) -> int:
        """Tokens of the prompt at the first admission."""
        return self._prompt_length

    @property
    def cached(self) -> int:
        """Tokens that did not have to be computed at (the last) admission."""
        return self._cached

    @property
    def computed_tokens(self) -> int:
        """Tokens whose KV is written, the cached ones included."""
        return self._computed

    @property
    def block_table(self) -> np.ndarray[Any, np.dtype[np.int32]]:
        """Block ids in order, a read-only int32 snapshot; empty once released.

        Of full attention, or of the first group where there is none.
        """
        core = self._life.core
        with core.lock:
            return snapshot(self.holding.table) if core.tree_group >= 0 else self.tables[0]

    @property
    def tables(self) -> tuple[np.ndarray[Any, np.dtype[np.int32]], ...]:
        """One block table per attention group, in the order of the groups.

        Of a window, -1 stands where the request needs no block any more. Of a recurrent group, the one state that the
        request works on.
        """
        core = self._life.core
        with core.lock:
            if core.groups is None:
                return (snapshot(self.holding.table),)
            found = dict(core.groups.tables(self.holding))
            found[core.tree_group] = self.holding.table
            return tuple(snapshot(found.get(group, ())) for group in range(len(core.groups.kinds)))

    @property
    def checkpoints(self) -> tuple[int, ...]:
        """Where the next steps of the known tokens should end, so that a recurrent state can be kept; ascending."""
        core = self._life.core
        with core.lock:
            if core.groups is None:
                return ()
            return core.groups.checkpoints(self.holding, self._computed, self.length)

    @property
    def copies(self) -> tuple[Copy, ...]:
        """KV to copy before anything of this request is computed, in this order; sources stay pinned until `copied()`.

        With a tier below every call that gives the request blocks may add some: what these held is spilled first.
        """
        with self._life.core.lock:
            return tuple(copy for copy, _ in self.pending)

    @property
    def stats(self) -> RequestStats:
        """Its blocks since the latest admission."""
        with self._life.core.lock:
            return RequestStats(**asdict(self.block_counters))

    def __repr__(self) -> str:
        return (
            f"Request(id={self.id}, state={self._state}, length={self.length}, "
            f"cached={self._cached}, computed={self._computed})"
        )

    # -- what it does -------------------------------------------------------------------------------

    def take_moves(self) -> tuple[tuple[int, int, int], ...]:
        """(table index, old block, new block) of every move onto another request's equal block since the last call."""
        with self._life.core.lock:
            moves, self.moves = tuple(chain.from_iterable(self.moves)), []
            return moves

    def copied(self) -> None:
        """All of `copies` are done: their sources are released, what was loaded can be found. No effect without any."""
        self._life.copied(self)

    def computed(self, n: int) -> None:
        """The KV of the first n tokens is written: full blocks become findable now.

        n is absolute. The index owns what it stores; where it had an equal block already, the table moves
        onto that one (`take_moves`). Raises `RequestError` when n goes back, exceeds the known tokens or the
        table, or while copies into or out of its own blocks are pending. O(new blocks).
        """
        self._life.computed(self, n)

    def append(self, tokens: int | TokenLike, extra_ids: int | Sequence[int] | None = None) -> None:
        """Decode: one or more new tokens, whose KV does not exist yet.

        May need blocks, which the request then owns; raises `NoSpace` without a trace, except that a preempted
        request remembers these tokens for `resume`. A request with extra
        ids gives new tokens the id 0 unless told otherwise.
        """
        self._life.append(self, tokens, extra_ids)

    def rewind(self, length: int) -> None:
        """Forget the tokens from position `length` on, with every key made from them.

        Published full blocks stay in the index. A cut inside one takes a private copy of its beginning
        (see `copies`), which may raise `NoSpace` without a trace.
        """
        self._life.rewind(self, length)

    def fork(self) -> Request:
        """Another sample on the same tokens: shares all full blocks, copies the rest of what is computed.

        Raises `NoSpace` without a trace, and `RequestError` while copies are pending.
        """
        return self._life.fork(self)

    def reserve(self, n: int) -> None:
        """Make the table cover the first n tokens (absolute). Raises `NoSpace` without a trace."""
        self._life.reserve(self, n)

    def close(self, in_flight: bool = False) -> None:
        """The sequence is finished: what was computed stays findable, the rest is gone. Idempotent.

        With `in_flight`, blocks that unfinished work may still write are quarantined until `settled()`.
        """
        self._life.release(self, "closed", in_flight)

    def abort(self, in_flight: bool = False) -> None:
        """As `close`, for a sequence that nobody wants any more."""
        self._life.release(self, "aborted", in_flight)

    def preempt(self, in_flight: bool = False) -> None:
        """As `close`, but the tokens are kept for `resume`."""
        self._life.release(self, "preempted", in_flight)

    def settled(self) -> None:
        """The work in flight at the release is over: quarantined blocks are free again. Idempotent."""
        self._life.settled(self)

    def resume(self, append: TokenLike | None = None, *, reserve: int | None = None) -> Request:
        """Open a preempted sequence again, with the tokens that a refused append still owes.

        `append`, when given, takes the place of those; `reserve` is that of `open`. Returns this request with a new
        hit in `cached`. Raises `NoSpace` and stays preempted.
        """
        self._life.resume(self, append, reserve)
        return self

    # -- for the cache itself -------------------------------------------------------------------------

    def begin(self, cached: int) -> None:
        """Admitted: `cached` tokens need not be computed."""
        self._cached = self._computed = cached
        self._state = "open"
        self._admitted_length = self.length
        self._prompt_length = self._prompt_length or self.length

    def private_blocks(self) -> Iterator[int]:
        """Blocks of the table that the index does not own."""
        design = self._life.core.design
        return iter(design.private(self.holding))

    def unfinished_copies(self) -> Iterator[Copy]:
        """Copies that may still read their source: pending ones, and those in flight at the release."""
        for copy, _ in (*self.pending, *self.given_up_copies):
            yield copy

    def claimed_sources(self) -> Iterator[int]:
        """Private blocks of other requests that unfinished copies read."""
        for copy, handle in (*self.pending, *self.given_up_copies):
            if handle is None:
                yield copy.source

    def private_in_groups(self) -> Iterator[tuple[int, int]]:
        """(group, block) of other attention groups that this request owns, holds back, or copies out of."""
        groups = self._life.core.groups
        if groups is not None:
            yield from groups.private(self.holding)
        for side, blocks in self.given_up_in_groups:
            for block in blocks:
                yield side.group, block
        for copy, handle in (*self.pending, *self.given_up_copies):
            if isinstance(handle, Source) and handle.private:
                yield copy.group, copy.source

    def quarantined_blocks(self) -> list[int]:
        """Blocks held back until `settled()`."""
        return self.given_up


class Pin:
    """A cached prefix kept from eviction. The index owns the blocks; `release` lets them go, once."""

    def __init__(self, life: Lifecycle, holding: Holding) -> None:
        self._life = life
        self.holding = holding
        groups = life.core.groups
        lead = holding.table if groups is None or groups.tree_group >= 0 else groups.tables(holding)[0][1]
        self.blocks = snapshot(lead)

    def release(self) -> None:
        """Let the blocks be evicted again. Idempotent."""
        self._life.unpin(self)

    def __enter__(self) -> Pin:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def extended(extras: Extras | None, ids: Iterable[int]) -> Extras | None:
    """Extras of a prompt that grows by tokens with these extra ids."""
    if extras is None or not extras.ids:
        return extras
    return Extras(extras.runs, extras.ids + np.array(list(ids), dtype="<u8").tobytes())
