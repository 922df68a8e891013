"""The one door: a prefix cache of one design. See the contract of each call in its docstring."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from prefixcache.blocks.eviction import Policy
from prefixcache.blocks.retention import PriorityLike, Retention, read_retention
from prefixcache.cache.admission import Admission
from prefixcache.cache.books import Books, Hit, Planned, Stats
from prefixcache.cache.core import make_core
from prefixcache.cache.explain import Explainer, Explanation
from prefixcache.cache.lifecycle import Lifecycle
from prefixcache.cache.plans import Ask
from prefixcache.cache.presets import PRESETS
from prefixcache.cache.prompts import Asked, MediaLike, read_prompt, refresh, require_nonempty
from prefixcache.cache.request import Pin, Request
from prefixcache.cache.tiers import DEVICE, Spills
from prefixcache.designs import OutlineNode
from prefixcache.designs.groups import Full, Kind
from prefixcache.errors import NoSpace, OptionError, ScopeError, TokenError, whole_number
from prefixcache.events import Event
from prefixcache.keys.scope import Scope
from prefixcache.keys.tokens import TokenLike


class PrefixCache:
    """Finds the part of a prompt whose KV is cached, and says which blocks hold it.

    The cache owns block *ids*; the KV memory behind them is the caller's. Every call is atomic and may come
    from any thread.

    Args:
        design: a name of `prefixcache.DESIGNS`.
        block_size: tokens per block.
        capacity: blocks of KV memory, of each attention group; or one number for each of them.
        eviction: the policy that ranks what may go, by name (`prefixcache.POLICIES`) or as a value
            (`prefixcache.slru(3)`); None is the design's own.
        clock: seconds, for times to live.
        groups: kinds of attention of the model's layers (`Full`, `Window`, `Recurrent`), None when all attend to all
            earlier tokens. Each has memory, tables and books of its own.
        tiers: blocks of memory below the device, such as `{"host": 65536}`: what is evicted is copied there, and
            loaded from there, by the copies of requests (`Copy.source_tier`, `Copy.target_tier`).
        options: named options, see `prefixcache.Options`.

    Raises `OptionError` for what does not exist.
    """

    def __init__(
        self,
        design: str,
        *,
        block_size: int,
        capacity: int | Sequence[int],
        eviction: str | Policy | None = None,
        clock: Callable[[], float] = time.monotonic,
        groups: Sequence[Any] | None = None,
        tiers: Mapping[str, int] | None = None,
        **options: Any,
    ) -> None:
        self._core = make_core(design, block_size, capacity, groups, tiers, eviction, clock, options)
        self._admission = Admission(self._core)
        self._life = Lifecycle(self._core, self._admission)
        self._batch = "claim"

    @classmethod
    def preset(cls, name: str, *, block_size: int, capacity: int | Sequence[int], **changes: Any) -> PrefixCache:
        """A cache that makes the match and eviction decisions of an original; `changes` override its options."""
        if not isinstance(name, str) or name not in PRESETS:
            raise OptionError(f"preset is {name!r}: expected one of {', '.join(PRESETS)}")
        preset = PRESETS[name]
        arguments: dict[str, Any] = {"eviction": preset.eviction, **preset.options, **changes}
        cache = cls(preset.design, block_size=block_size, capacity=capacity, **arguments)
        cache._batch = preset.batch
        return cache

    # -- what it is ---------------------------------------------------------------------------------

    @property
    def design_name(self) -> str:
        """Name of the design."""
        return self._core.design.name

    @property
    def block_size(self) -> int:
        """Tokens per block."""
        return self._core.design.block_size

    @property
    def capacity(self) -> int:
        """Blocks of full attention, or of the first group where there is none."""
        groups = self._core.groups
        return self._core.pool.capacity if groups is None else groups.capacities[groups.lead]

    @property
    def groups(self) -> tuple[Kind, ...]:
        """The attention groups, in the order of `Request.tables`."""
        return self._core.groups.kinds if self._core.groups is not None else (Full(),)

    @property
    def options(self) -> Any:
        """The named options in force."""
        return self._core.options

    @property
    def generation(self) -> int:
        """The current weight generation."""
        return self._core.generation

    # -- asking -------------------------------------------------------------------------------------

    def probe(
        self,
        tokens: TokenLike,
        scope: Scope | None = None,
        *,
        media: MediaLike = (),
        extra_ids: Sequence[int] | None = None,
    ) -> Hit:
        """How many tokens of this prompt could be reused now, what admission would draw, and why not more.

        Changes nothing, recency included. 0 for an empty prompt. Costs one lookup of the design.
        """
        asked = self._asked(tokens, scope, media, extra_ids)
        with self._core.lock:
            refresh(asked, self._core.generation)
            return self._admission.probe(Ask(asked, Retention()))

    def explain(
        self,
        tokens: TokenLike,
        scope: Scope | None = None,
        *,
        media: MediaLike = (),
        extra_ids: Sequence[int] | None = None,
        tenant: bool = False,
    ) -> Explanation:
        """Where the match of this prompt would end now, and why it does not go on.

        A tool for operators: it may name other scopes and what is in them. With `tenant` the answer is made of
        the prompt's own scope alone, and what is unknown there is "not found". Changes nothing. Costs a few
        lookups, a look at each live request and, for operators, one lookup per scope in the index.
        """
        asked = self._asked(tokens, scope, media, extra_ids)
        with self._core.lock:
            refresh(asked, self._core.generation)
            return Explainer(self._core, self._admission).explain(asked, tenant)

    def _asked(
        self, tokens: TokenLike, scope: Scope | None, media: MediaLike, extra_ids: Sequence[int] | None
    ) -> Asked:
        return read_prompt(tokens, scope, media, extra_ids, self._core.generation)

    # -- requests -----------------------------------------------------------------------------------

    def open(
        self,
        tokens: TokenLike,
        scope: Scope | None = None,
        *,
        media: MediaLike = (),
        extra_ids: Sequence[int] | None = None,
        priority: PriorityLike = None,
        ttl: float | None = None,
        decode_priority: int | None = None,
        decode_ttl: float | None = None,
        read: bool = True,
        store: bool = True,
        reserve: int | None = None,
        must_fit: bool = False,
    ) -> Request:
        """Admit a request: match, pin and allocate as one step.

        At most n-1 of n tokens are reused. The request pins what it matched (the index owns it) and owns its
        new blocks alone. Raises `NoSpace` without a trace when the blocks are not to be had, `TokenError` for
        bad or no tokens, `ScopeError` and `OptionError` for other bad arguments.

        Args:
            tokens: the prompt.
            scope: all that KV depends on besides the tokens.
            media: the items that placeholder tokens stand for; malformed ones make the request uncacheable.
            extra_ids: one more id per token that KV depends on.
            priority: how long its blocks stay, 0..100, or [(start, end, priority, ttl)] over token ranges.
            ttl: seconds until the priority falls back to the default.
            decode_priority, decode_ttl: the same for generated blocks; by default as the prompt's.
            read: False takes nothing from the cache (prompt log-probs need all logits).
            store: False leaves nothing in it.
            reserve: tokens to find room for now, hit included; None is all.
            must_fit: with `reserve`: refuse unless the whole prompt would fit.
        """
        ask = self._ask(
            tokens=tokens,
            scope=scope,
            media=media,
            extra_ids=extra_ids,
            priority=priority,
            ttl=ttl,
            decode_priority=decode_priority,
            decode_ttl=decode_ttl,
            read=read,
            store=store,
            reserve=reserve,
            must_fit=must_fit,
        )
        return self._life.open(ask)

    def open_batch(self, requests: Sequence[Mapping[str, Any]]) -> list[Request | NoSpace]:
        """Admit several requests, each a dict of the arguments of `open`, as one two-phase claim.

        First every match of every request is pinned, then room is made: nothing that one request brings in
        evicts what another has matched. A request that does not fit with those admitted before it comes back
        as a `NoSpace` value; the rest is as if it had not been there. Bad arguments raise before anything is
        changed. Presets whose original has no such claim admit in a loop.
        """
        return self._life.open_batch(self._asks(requests), claim=self._batch == "claim")

    def plan(self, requests: Sequence[Mapping[str, Any]]) -> list[Planned]:
        """What `open_batch` would give each of these now, and which of them had better wait a step. Changes nothing.

        The hits and refusals are those of `open_batch` called next with the same batch. Presets that admit in a
        loop may do otherwise from the first request on that loses its match to what an earlier one brings in.
        """
        asks = self._asks(requests)
        with self._core.lock:
            for ask in asks:
                refresh(ask.asked, self._core.generation)
            return self._admission.plan_batch(asks)

    def _asks(self, requests: Sequence[Mapping[str, Any]]) -> list[Ask]:
        try:
            given = list(requests)
        except TypeError:
            raise OptionError(
                f"requests is {requests!r}: expected a list of dicts with the arguments of open"
            ) from None
        asks = []
        for i, arguments in enumerate(given):
            if not isinstance(arguments, Mapping):
                raise OptionError(
                    f"request {i} of the batch is {arguments!r}: expected a dict of the arguments of open"
                )
            try:
                asks.append(self._ask(**arguments))
            except (TokenError, ScopeError, OptionError) as error:
                raise type(error)(f"request {i} of the batch: {error}") from None
            except TypeError as error:
                told = str(error).replace("PrefixCache._ask()", "open()")
                raise OptionError(f"request {i} of the batch: {told}") from None
        return asks

    def _ask(
        self,
        tokens: TokenLike,
        scope: Scope | None = None,
        media: MediaLike = (),
        extra_ids: Sequence[int] | None = None,
        priority: PriorityLike = None,
        ttl: float | None = None,
        decode_priority: int | None = None,
        decode_ttl: float | None = None,
        read: bool = True,
        store: bool = True,
        reserve: int | None = None,
        must_fit: bool = False,
    ) -> Ask:
        for name, value in (("read", read), ("store", store), ("must_fit", must_fit)):
            if not isinstance(value, bool):
                raise OptionError(f"{name} is {value!r}: expected True or False")
        if reserve is not None:
            reserve = whole_number(reserve, "reserve")
        retention = read_retention(priority, ttl, decode_priority, decode_ttl, self._core.design.any_priority)
        asked = self._asked(tokens, scope, media, extra_ids)
        require_nonempty(asked)
        return Ask(asked, retention, read, store, reserve, must_fit)

    def pin(self, tokens: TokenLike, scope: Scope | None = None) -> Pin:
        """Keep the cached prefix of these tokens (whole blocks, up to all of them) from eviction until released."""
        return self._life.pin(self._asked(tokens, scope, (), None))

    # -- the whole ----------------------------------------------------------------------------------

    def evict(self, n_blocks: int, group: int | None = None) -> int:
        """Evict idle blocks, at least `n_blocks` unless there are fewer; returns how many became free.

        Of full attention, or of the first group where there is none; of another one with `group`. What leaves full
        attention takes along what other groups have there, and not the other way round. With a tier below, what the
        blocks held waits in them for `spill`, or for whoever is given them.
        """
        n_blocks = whole_number(n_blocks, "n_blocks")
        with self._core.lock:
            groups = self._core.groups
            side = groups.side(self._group(group)) if groups is not None else None
            return self._core.design.evict(n_blocks) if side is None else side.values.evict(n_blocks)

    def _group(self, group: int | None) -> int:
        """A checked group index; None is the leading one."""
        groups = self._core.groups
        if group is None:
            return groups.lead if groups is not None else 0
        return whole_number(group, "group", 0, len(self.groups) - 1)

    def reset(self) -> bool:
        """Forget everything. False, and nothing changed, while a block is pinned or quarantined."""
        core = self._core
        with core.lock:
            if any(books.pinned or books.quarantined for books in core.all_books()):
                return False
            core.design.end_step()
            if core.groups is not None:
                core.groups.clear()
            if core.tiers is not None:
                core.tiers.clear()
            core.design.clear()
            if core.journal is not None:
                core.journal.cleared()
            return True

    def new_generation(self) -> int:
        """The weights changed: nothing stored before can be reached again; returns the new generation.

        Requests opened earlier stop publishing. O(cached blocks).
        """
        core = self._core
        with core.lock:
            core.generation += 1
            if core.groups is not None:
                core.groups.retire()
            core.design.retire()
            if core.tiers is not None:
                core.tiers.retire()
            return core.generation

    def end_step(self) -> None:
        """The scheduling step is over (see the option `visibility`)."""
        with self._core.lock:
            self._core.design.end_step()

    def spill(self) -> Spills:
        """Take the copies of all that was evicted into empty blocks, to make them now and not when these are needed.

        A request that is given such a block makes the copy else, before anything of its own. Until then, and until
        `copied()` of what this returns, the block cannot be found.
        Raises `OptionError` without a tier to spill to.
        """
        if self._core.tiers is None:
            raise OptionError("there is no tier to spill to: build the cache with tiers={'host': blocks}")
        with self._core.lock:
            return Spills(self._core, self._core.tiers)

    def books(self, group: int | None = None, tier: str = DEVICE) -> Books:
        """Where the blocks are now; the four counts add up to the capacity.

        Of full attention, or of the first group where there is none; of another one with `group`, or of a tier below:
        there idle are those that can be loaded or wait to be filled, pinned those that are being read, quarantined
        those that are being written.
        """
        with self._core.lock:
            if tier == DEVICE:
                return self._core.books(self._group(group))
            if self._core.tiers is None or tier != self._core.tiers.tier.name:
                there = [DEVICE] if self._core.tiers is None else [DEVICE, self._core.tiers.tier.name]
                raise OptionError(f"tier is {tier!r}: expected {' or '.join(map(repr, there))}")
            if group is not None:
                raise OptionError(f"group is {group!r}: a tier below the device has no groups")
            return self._core.tiers.books()

    def stats(self) -> Stats:
        """Counters since construction."""
        with self._core.lock:
            return self._core.read_stats()

    def take_events(self) -> tuple[int, int, list[Event]]:
        """(epoch, sequence number of the first event, events) since the last call, oldest first.

        A first sequence number beyond the expected one says that events were dropped because nobody came.
        """
        with self._core.lock:
            if self._core.journal is None:
                raise OptionError("events are off: build the cache with events=True")
            return self._core.journal.take()

    def check(self) -> tuple[int, ...]:
        """Assert every invariant; raises `InvariantError` naming the broken one. O(cached blocks).

        Returns the cached blocks that no prompt can reach now, because one before them was evicted; there are
        none except with `evict_from="anywhere"` (preset trtllm). Such blocks are idle or pinned like others.
        """
        with self._core.lock:
            self._core.check()
            return tuple(sorted(self._core.design.unreachable()))

    def outline(self) -> list[OutlineNode]:
        """What is cached now, node by node, parents before children.

        A tool for operators: it shows the tokens of all scopes. Changes nothing. O(cached tokens).
        """
        with self._core.lock:
            return self._core.design.outline()

    def __repr__(self) -> str:
        return (
            f"PrefixCache({self.design_name!r}, block_size={self.block_size}, capacity={self.capacity}, {self.books()})"
        )
