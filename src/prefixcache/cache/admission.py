"""Admission: match, pin and allocate as one step, or nothing at all.

The order is what makes it safe: first everything that was matched is pinned, then room is made. So nothing
that is brought in for a request can push out what the same request, or another one of its batch, has matched.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from prefixcache.blocks.retention import Retention
from prefixcache.cache.books import Copy, Hit
from prefixcache.cache.core import Core
from prefixcache.cache.prompts import Asked
from prefixcache.designs import Match, Partial
from prefixcache.errors import NoSpace

if TYPE_CHECKING:
    from prefixcache.cache.request import Request


@dataclass(slots=True)
class Ask:
    """One checked call of `open`: nothing in it refers to the caller's data.

    Attributes:
        reserve: tokens to find room for, None for all.
        must_fit: refuse unless the whole prompt would fit.
    """

    asked: Asked
    retention: Retention
    read: bool = True
    store: bool = True
    reserve: int | None = None
    must_fit: bool = False


@dataclass(slots=True)
class Plan:
    """What an admission would do now.

    Attributes:
        match: the whole blocks found.
        partial: the hit inside the next block that will be used, if any.
        take: the partial's source is taken over in place instead of copied.
        new: blocks to allocate.
        need: blocks drawn from free + idle: new ones, matched idle ones, a copied idle source.
        dropped: matched tokens not used because a draft model looks one token ahead.
        reason: why not more.
    """

    match: Match
    partial: Partial | None
    take: bool
    new: int
    need: int
    dropped: int
    reason: str

    @property
    def cached(self) -> int:
        """Tokens that need not be computed."""
        return self.match.tokens + (self.partial.tokens if self.partial is not None else 0)


class Admission:
    """Plans and carries out admissions. Every method is called under the cache's lock."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self._promised = 0  # blocks that requests of a batch have claimed room for but not yet allocated

    @property
    def available(self) -> int:
        """Blocks that another admission can draw."""
        return self.core.design.available - self._promised

    # -- planning: changes nothing ------------------------------------------------------------------

    def probe(self, ask: Ask) -> Hit:
        """What `open` would find and need now."""
        if not ask.asked.length:
            return Hit(0, 0, {"device": 0}, "empty")
        plan = self.plan(ask)
        return Hit(plan.cached, plan.need, {"device": plan.cached}, plan.reason)

    def plan(self, ask: Ask) -> Plan:
        """Look up a prompt and do the arithmetic of its admission."""
        core, asked = self.core, ask.asked
        why_not = self._why_not_read(ask)
        limit = 0 if why_not else asked.length - 1
        match = core.design.match(asked.prompt, limit)
        dropped = 0
        if core.options.lookahead and (found := _found(match)):
            match = core.design.match(asked.prompt, found - 1)
            dropped = found - _found(match)
        plan = self._fit(match, asked.length if ask.reserve is None else ask.reserve)
        plan.dropped = dropped
        plan.reason = why_not or self._reason(plan, asked.length)
        return plan

    def _why_not_read(self, ask: Ask) -> str:
        if ask.asked.why_not:
            return ask.asked.why_not
        if self.is_old(ask.asked):
            return "old generation"
        return "" if ask.read else "read off"

    def is_old(self, asked: Asked) -> bool:
        """Whether the prompt names a generation whose weights are gone."""
        generation = asked.given_scope.generation
        return generation is not None and generation < self.core.generation

    def _fit(self, match: Match, reserve: int) -> Plan:
        """Choose what to do with a hit inside a block so that it never causes a refusal."""
        size = self.core.design.block_size
        available = self.available
        whole = len(match.blocks)
        new = max(-(-reserve // size) - whole, 0)
        need = new + match.idle
        partial = match.partial
        if partial is None:
            return Plan(match, None, False, new, need, 0, "")
        new = max(new, 1)
        if self.core.options.partial == "take" and partial.takeable:
            return Plan(match, partial, True, new - 1, new + match.idle, 0, "")
        copying = new + match.idle + partial.idle
        if copying <= available:
            return Plan(match, partial, False, new, copying, 0, "")
        if partial.takeable:
            return Plan(match, partial, True, new - 1, new + match.idle, 0, "")
        return Plan(match, None, False, max(-(-reserve // size) - whole, 0), need, 0, "")

    def _reason(self, plan: Plan, length: int) -> str:
        size = self.core.design.block_size
        if plan.cached == length - 1:
            return "complete"
        if plan.dropped:
            return "lookahead"
        if plan.cached + size > length - 1:
            return "boundary" if length % size else "last token"
        return "not found"

    # -- doing ------------------------------------------------------------------------------------

    def admit(self, request: Request, ask: Ask, again: bool = False) -> None:
        """Match, pin and allocate for `request`. Raises `NoSpace` without a trace.

        Afterwards the request pins what it matched (the index owns it) and owns its new blocks alone.
        """
        plan = self.plan(ask)
        self.require_room(plan, ask)
        self.claim(request, ask, plan)
        self.settle(request, ask, plan, again)

    def admit_batch(self, requests: list[Request], asks: list[Ask]) -> list[NoSpace | None]:
        """Admit a batch in two phases: claim every match of every request, then allocate.

        A request that does not fit with those admitted before it is refused, and the others are served as if
        it had not been there.
        """
        outcomes: list[NoSpace | None] = []
        claimed: list[tuple[Request, Ask, Plan]] = []
        try:
            for request, ask in zip(requests, asks, strict=True):
                plan = self.plan(ask)
                try:
                    self.require_room(plan, ask)
                except NoSpace as refusal:
                    outcomes.append(refusal)
                    continue
                self.claim(request, ask, plan)
                self._promised += plan.new
                claimed.append((request, ask, plan))
                outcomes.append(None)
        finally:
            self._promised = 0
        for request, ask, plan in claimed:
            self.settle(request, ask, plan, False)
        return outcomes

    def require_room(self, plan: Plan, ask: Ask) -> None:
        """Raises `NoSpace` when the plan does not fit now."""
        available, need = self.available, plan.need
        if ask.must_fit and ask.reserve is not None:
            need = max(need, self._fit(plan.match, max(ask.asked.length, ask.reserve)).need)
        if need > available:
            raise NoSpace(need, available)

    def claim(self, request: Request, ask: Ask, plan: Plan) -> None:
        """Phase one: pin all that was matched. No allocation, no eviction, no copy."""
        design, holding = self.core.design, request.holding
        holding.prompt = ask.asked.prompt
        holding.generation = self.core.generation
        holding.store = ask.store and not ask.asked.why_not and plan.reason != "old generation"
        holding.retention = ask.retention
        design.claim(holding, plan.match)
        partial = plan.partial
        if partial is not None and plan.take:
            design.take(holding, partial)
        elif partial is not None:
            design.hold(partial.handle)

    def settle(self, request: Request, ask: Ask, plan: Plan, again: bool) -> None:
        """Phase two: allocate what is new, say what is to be copied, record the admission once."""
        design, holding = self.core.design, request.holding
        at = len(holding.table)
        holding.table.extend(design.allocate(plan.new))
        partial = plan.partial
        if partial is not None and not plan.take:
            copy = Copy(partial.source, holding.table[at], partial.tokens)
            request.pending.append((copy, partial.handle))
            self.core.counters.copied_blocks += 1
        request.begin(plan.cached)
        length = ask.asked.length
        queries = 0 if plan.reason == "read off" or ask.asked.why_not else length
        counters = self.core.counters
        if again:
            counters.preempted_requests += 1
            counters.preempted_queries += queries
            counters.preempted_hits += plan.cached
            return
        counters.requests += 1
        counters.queries += queries
        counters.hits += plan.cached
        counters.prompt_tokens += length
        counters.cached_tokens += plan.cached
        counters.lookahead_tokens += plan.dropped


def _found(match: Match) -> int:
    return match.tokens + (match.partial.tokens if match.partial is not None else 0)
