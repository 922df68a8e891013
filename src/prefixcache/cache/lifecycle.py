"""The life of a request after admission. Every way out ends in one idempotent release."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

from prefixcache.cache.admission import Admission
from prefixcache.cache.attention import computed_in_groups, go_back, release_groups
from prefixcache.cache.books import Copy
from prefixcache.cache.core import Core
from prefixcache.cache.plans import Ask
from prefixcache.cache.prompts import Asked, locate, refresh
from prefixcache.cache.request import Pin, Request, extended
from prefixcache.cache.tiers import DEVICE
from prefixcache.designs import Holding
from prefixcache.errors import NoSpace, RequestError, ScopeError, whole_number
from prefixcache.keys.extras import pack_extra_ids
from prefixcache.keys.tokens import TOKEN_BYTES, TokenLike, as_tokens


class Lifecycle:
    """Carries out what requests ask for, each call under the lock."""

    def __init__(self, core: Core, admission: Admission) -> None:
        self.core = core
        self._admission = admission

    # -- computing ----------------------------------------------------------------------------------

    def computed(self, request: Request, n: int) -> None:
        with self.core.lock:
            self._require_open(request, "computed")
            holding, size = request.holding, self.core.design.block_size
            n = whole_number(n, "computed: n", request.computed_tokens, request.length, RequestError)
            if n > len(holding.table) * size:
                raise RequestError(
                    f"computed({n}): the table covers {len(holding.table) * size} tokens; reserve({n}) first"
                )
            if request.pending:
                raise RequestError(f"computed({n}): {len(request.pending)} copies are pending; do them, then copied()")
            if self.core.copying:
                self._require_copied(holding, n)
            went_on, request._computed = n > request.computed_tokens, n
            holding.step = self.core.design.step
            length = self._publishable(request, n)
            self._publish(request, length)
            if self.core.groups is not None:
                computed_in_groups(self.core, self.core.groups, request, length, went_on)

    def _require_copied(self, holding: Holding, n: int) -> None:
        """Raises `RequestError` while any request has yet to copy out of a block of this table.

        A reuser must not overwrite what an earlier request of its batch still needs.
        """
        sources = {
            (copy.group, copy.source)
            for other in self.core.copying
            for copy in other.unfinished_copies()
            if copy.source_tier == copy.target_tier
        }
        tables: list[tuple[int, Sequence[int]]] = [(self.core.tree_group, holding.table)]
        if self.core.groups is not None:
            tables += self.core.groups.tables(holding)
        for group, table in tables:
            for block in table:
                if (group, block) in sources:
                    raise RequestError(
                        f"computed({n}): another request has yet to copy out of block {block} of this table"
                    )

    def _publishable(self, request: Request, n: int) -> int:
        """How many of n computed tokens may be published."""
        core = self.core
        if core.options.store_last or (core.groups is not None and core.groups.checkpoints(request.holding, n - 1, n)):
            return n  # a state is kept where it is: one token earlier there is none
        # The last token is withheld, of an unfinished prompt the last computed one; whoever went back has published it.
        withheld = n - 1 if n < request._admitted_length else min(n, request.length - 1)
        return max(withheld, request.holding.held * core.design.block_size)

    def _publish(self, request: Request, length: int, tail: bool = False) -> None:
        holding = request.holding
        if not self.core.stores(holding):
            return
        before, kept = holding.held, self.core.design.kept
        moves = self.core.design.publish(holding, length, tail)
        if moves:
            request.moves.append(moves)
        duplicates = len(moves) + self.core.design.kept - kept
        if holding.held == before and not duplicates:
            return
        published = holding.table[before : holding.held]
        if duplicates > len(moves):
            own = set(self.core.design.private(holding))
            published = array("i", (block for block in published if block not in own))
        self.core.pool.note_written(published)
        self.core.counters.published_blocks += holding.held - before - duplicates
        self.core.counters.duplicate_blocks += duplicates

    def copied(self, request: Request) -> None:
        with self.core.lock:
            done, request.pending = request.pending, []
            if any(copy.source_tier != DEVICE for copy, _ in done):
                self._publish(request, request.computed_tokens)  # before the tier lets go of what is loaded
            for copy, handle in done if self.core.tiers is None else reversed(done):  # tail first, as in a release
                self.core.drop_source(copy, handle, done=True)
            self.core.note_copies(request)

    # -- growing ------------------------------------------------------------------------------------

    def append(self, request: Request, tokens: int | TokenLike, extra_ids: int | Sequence[int] | None) -> None:
        single = hasattr(tokens, "__index__") and not hasattr(tokens, "__len__")  # numpy's integers too
        new = as_tokens((tokens,) if single else tokens)  # type: ignore[arg-type]
        with self.core.lock:
            self._require_open(request, "append")
            count = len(new) // TOKEN_BYTES
            ids = self._extra_ids(request, count, extra_ids)
            try:
                self._cover(request, request.length + count)
            except NoSpace:
                request.owed, request.owed_ids = new, ids
                raise
            request.owed, request.owed_ids = b"", ()
            request.holding.step = self.core.design.step
            prompt = request.holding.prompt
            if not isinstance(prompt.tokens, bytearray):
                prompt.tokens = bytearray(prompt.tokens)
            prompt.tokens += new
            prompt.extras = extended(prompt.extras, ids)

    @staticmethod
    def _extra_ids(request: Request, count: int, extra_ids: int | Sequence[int] | None) -> Sequence[int]:
        if extra_ids is None:
            return [0] * count
        if request.extra_ids is None:
            raise ScopeError("extra_ids: this request was opened without extra ids")
        ids = [extra_ids] if isinstance(extra_ids, int) else list(extra_ids)
        pack_extra_ids(ids, count)
        return ids

    def reserve(self, request: Request, n: int) -> None:
        with self.core.lock:
            self._require_open(request, "reserve")
            n = whole_number(n, "reserve: n", error=RequestError)
            self._cover(request, n)

    def _cover(self, request: Request, tokens: int) -> None:
        """Make the table cover this many tokens, or raise `NoSpace` and change nothing."""
        table = request.holding.table
        more = -(-tokens // self.core.design.block_size) - len(table)
        if more <= 0:
            return
        self.core.require_no_copies(request)
        available = self.core.design.available
        if more > available:
            raise NoSpace(more, available)
        groups, cover = self.core.groups, (len(table) + more) * self.core.design.block_size
        if groups is not None:
            groups.require_more(request.holding, cover)
        self._extend(request, more)
        if groups is not None:
            groups.extend(request.holding, cover)

    def _extend(self, request: Request, blocks: int) -> None:
        """Private blocks behind the table; the caller has checked the room."""
        core, table = self.core, request.holding.table
        new = core.design.allocate_more(request.holding, blocks)
        core.count_allocated(request, len(table), new)
        table.extend(new)
        request.pending += core.tiers.take_spills(new) if core.tiers is not None else ()

    # -- branching and going back ---------------------------------------------------------------------

    def fork(self, request: Request) -> Request:
        with self.core.lock:
            self._require_open(request, "fork")
            if request.pending:
                raise RequestError("fork: copies are pending; do them, then copied()")
            core, holding = self.core, request.holding
            size = core.design.block_size
            computed = request.computed_tokens
            full = max(computed - core.design.ahead, 0) // size
            # A private full block that will never be published can be shared by count; others are copied.
            kept = holding.held if self.core.stores(holding) else max(full, holding.held)
            new = -(-request.length // size) - kept
            available = core.design.available
            if new > available:
                raise NoSpace(new, available, "the fork")
            if core.groups is not None:
                core.groups.require_fork(holding, (kept + new) * size)
            child = self._child(request)
            core.design.share(holding, child.holding, min(holding.held, kept))
            for index in range(holding.held, kept):
                core.pool.share(holding.table[index])
                child.holding.table.append(holding.table[index])
            self._extend(child, new)
            for index in range(kept, -(-computed // size)):
                source = holding.table[index]
                core.pool.share(source)
                tokens = min(computed - index * size, size)
                copy = Copy(source, child.holding.table[index], tokens, core.tree_group)
                core.await_tree_copy(child, copy, None)
            if core.groups is not None:
                core.await_copies(child, core.groups.fork(holding, child.holding, computed))
            return child

    def _child(self, request: Request) -> Request:
        parent = request.holding
        prompt = parent.prompt
        twin = type(prompt)(bytes(prompt.tokens), prompt.root, prompt.scope, prompt.extras, None)
        twin.keys = list(prompt.keys) if prompt.keys is not None else None
        holding = Holding(
            twin,
            generation=parent.generation,
            store=parent.store,
            retention=parent.retention,
            prompt_length=parent.prompt_length,
            step=parent.step,
        )
        child = self.new_request(request._scope, holding)
        child.reads, child.stores, child.why_not = request.reads, request.stores, request.why_not
        child.begin(request.computed_tokens)
        child._prompt_length, child._admitted_length = request._prompt_length, request._admitted_length
        self.core.live.add(child)
        return child

    def rewind(self, request: Request, length: int) -> None:
        with self.core.lock:
            self._require_open(request, "rewind")
            length = whole_number(length, "rewind: length", 1, request.length, RequestError)
            if length == request.length:
                return
            core, holding = self.core, request.holding
            size = core.design.block_size
            whole = (length - core.design.ahead) // size
            rest = length - whole * size  # kept tokens that share their block with forgotten ones
            owned = rest > 0 and core.design.owns(holding, whole)
            # A fork may have the block in its table, or may yet copy from it: what is computed there must stay.
            there = rest > 0 and request.computed_tokens > length
            inside = owned or (there and core.pool.shared(holding.table[whole]))
            private = core.design.private(holding, whole + (rest > 0))
            if inside:
                core.require_no_copies(request)
            if inside and not core.design.available and all(map(core.pool.shared, private)):
                raise NoSpace(1, core.design.available, "the private copy of the block that is cut")
            wanted = go_back(core, core.groups, request, length) if core.groups is not None else ()
            self._forget_copies(request, whole + (rest > 0))
            source = holding.table[whole] if inside else -1
            handle = core.design.handle(holding, whole) if owned else None
            if owned:
                core.design.hold(handle)
            core.design.shrink(holding, whole, whole + (rest > 0))
            del holding.table[whole + (0 if inside or not rest else 1) :]
            if inside:
                self._extend(request, 1)
                core.await_tree_copy(request, Copy(source, holding.table[whole], rest, core.tree_group), handle)
            core.await_copies(request, wanted)
            self._truncate(request, length)

    def _forget_copies(self, request: Request, blocks: int) -> None:
        """Drop pending copies into table positions from `blocks` on."""
        dropped = set(request.holding.table[blocks:])
        gone = [entry for entry in request.pending if entry[0].own in dropped]
        request.pending = [entry for entry in request.pending if entry[0].own not in dropped]
        for copy, handle in gone:
            self.core.drop_source(copy, handle)
        self.core.note_copies(request)

    def _truncate(self, request: Request, length: int) -> None:
        request.owed, request.owed_ids = b"", ()
        prompt = request.holding.prompt
        prompt.tokens = prompt.tokens[: length * TOKEN_BYTES]
        if prompt.extras is not None:
            prompt.extras = prompt.extras.cut(0, length)
        if prompt.keys is not None:
            del prompt.keys[max(length - self.core.design.ahead, 0) // self.core.design.block_size :]
        request._computed = min(request._computed, length - self.core.design.ahead)
        request._admitted_length = min(request._admitted_length, length)

    # -- the end ------------------------------------------------------------------------------------

    def release(self, request: Request, state: str, in_flight: bool) -> None:
        with self.core.lock:
            if request.state != "open":
                if request.state == "preempted" and state != "preempted":
                    request._state = state
                return
            core, holding = self.core, request.holding
            if any(copy.target_tier == DEVICE for copy, _ in request.pending):
                computed = holding.held * core.design.block_size  # what a missing copy leaves unwritten stays out
            else:
                computed = request.computed_tokens
            finished = state == "closed" or (state == "aborted" and request.computed_tokens >= request.prompt_length)
            holding.used = finished
            length = self._unshared(request, self._publishable(request, computed))
            self._publish(request, length, not in_flight)
            if core.groups is not None:
                release_groups(core, core.groups, request, length, in_flight)
            written = self._still_written(request) if in_flight else set()
            sources = request.pending
            request.pending = []
            private = core.design.let_go(holding, in_flight)
            holding.table = array("i")
            if in_flight:
                held = [block for block in private if block in written]
                core.design.give_back([block for block in private if block not in written])
                core.pool.quarantine(held)
                request.given_up += held
                request.given_up_copies += sources
                core.quarantine.add(request)
            else:
                for copy, handle in sources:
                    core.drop_source(copy, handle)
            if core.groups is not None:
                core.groups.forget_unused()
            core.note_copies(request)
            core.live.discard(request)
            request._state = state

    def _still_written(self, request: Request) -> set[int]:
        """Blocks that work in flight may write: those not fully computed, and targets of unfinished copies."""
        design = self.core.design
        blocks = set(request.holding.table[max(request.computed_tokens - design.ahead, 0) // design.block_size :])
        group = self.core.tree_group
        return blocks.union(copy.own for copy, _ in request.pending if copy.group == group)

    def _unshared(self, request: Request, length: int) -> int:
        """`length`, cut before the first private block that a fork has yet to copy out of."""
        holding, size = request.holding, self.core.design.block_size
        if not self.core.pool.any_shared(holding.table[holding.held :]):
            return length
        for index in range(holding.held, len(holding.table)):
            if self.core.pool.shared(holding.table[index]):
                return min(length, index * size)
        return length

    def settled(self, request: Request) -> None:
        with self.core.lock:
            if request not in self.core.quarantine:
                return
            self.core.quarantine.discard(request)
            self.core.pool.settle(request.given_up)
            request.given_up = []
            for side, blocks in request.given_up_in_groups:
                side.values.pool.settle(blocks)
            request.given_up_in_groups = []
            for copy, handle in request.given_up_copies:
                self.core.drop_source(copy, handle)
            request.given_up_copies = []
            self.core.note_copies(request)

    def resume(self, request: Request, append: TokenLike | None, reserve: int | None) -> None:
        if reserve is not None:
            reserve = whole_number(reserve, "reserve")
        given = as_tokens(append) if append is not None else b""
        with self.core.lock:
            if request.state != "preempted":
                raise RequestError(f"resume: the request is {request.state}, expected preempted")
            old = request.holding
            new = given or request.owed
            ids = request.owed_ids if not given else [0] * (len(new) // TOKEN_BYTES)
            tokens = bytes(old.prompt.tokens) + new
            length = len(tokens) // TOKEN_BYTES
            extras = extended(old.prompt.extras, ids)
            uses_ids = extras is not None and bool(extras.ids)
            prompt = locate(tokens, request._scope, extras, uses_ids, self.core.generation)
            ask = Ask(
                Asked(prompt, length, request._scope, self.core.generation, request.why_not),
                old.retention,
                read=request.reads,
                store=request.stores,
                reserve=reserve,
            )
            request.holding = Holding(prompt, prompt_length=old.prompt_length)
            try:
                self._admission.admit(request, ask, again=True)
            except NoSpace:
                request.holding = old
                raise
            request.owed, request.owed_ids = b"", ()
            self.core.live.add(request)

    # -- pins ---------------------------------------------------------------------------------------

    def pin(self, asked: Asked) -> Pin:
        with self.core.lock:
            refresh(asked, self.core.generation)
            holding = Holding(asked.prompt, generation=self.core.generation)
            if not asked.why_not and not self._admission.is_old(asked):
                match = self.core.match_whole(asked.prompt, asked.length)
                if self.core.groups is not None:
                    self.core.groups.claim(holding, match, None)
                self.core.design.claim(holding, match)
            pin = Pin(self, holding)
            self.core.pins.add(pin)
            return pin

    def unpin(self, pin: Pin) -> None:
        with self.core.lock:
            if pin in self.core.pins:
                self.core.pins.discard(pin)
                if self.core.groups is not None:
                    self.core.groups.release(pin.holding, 0, None)
                self.core.design.release(pin.holding)

    # -- making -------------------------------------------------------------------------------------

    def new_request(self, scope: Any, holding: Holding) -> Request:
        """A request that is not yet admitted."""
        self.core.next_request += 1
        return Request(self, self.core.next_request, scope, holding)

    def open(self, ask: Ask) -> Request:
        """Admit one request. Raises `NoSpace` without a trace."""
        with self.core.lock:
            request = self._asked_for(ask)
            self._admission.admit(request, ask)
            self.core.live.add(request)
            return request

    def open_batch(self, asks: list[Ask], claim: bool) -> list[Request | NoSpace]:
        """Admit several requests, as one two-phase claim or in a loop; refusals come back as values."""
        with self.core.lock:
            if not claim:
                return [self._opened(ask) for ask in asks]
            requests = [self._asked_for(ask) for ask in asks]
            outcomes = self._admission.admit_batch(requests, asks)
            self.core.live.update(r for r, refusal in zip(requests, outcomes, strict=True) if refusal is None)
            return [r if refusal is None else refusal for r, refusal in zip(requests, outcomes, strict=True)]

    def _opened(self, ask: Ask) -> Request | NoSpace:
        try:
            return self.open(ask)
        except NoSpace as refusal:
            return refusal

    def _asked_for(self, ask: Ask) -> Request:
        """The request of a call of `open`, not yet admitted."""
        asked = ask.asked
        refresh(asked, self.core.generation)
        request = self.new_request(asked.given_scope, Holding(asked.prompt, prompt_length=asked.length))
        request.why_not, request.reads, request.stores = asked.why_not, ask.read, ask.store
        return request

    @staticmethod
    def _require_open(request: Request, call: str) -> None:
        if request.state != "open":
            raise RequestError(f"{call}: the request is {request.state}")
