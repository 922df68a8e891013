"""Why a prompt is not reused beyond some token: where the match ends, and what stands in its way.

tokens   0 ........................ cached ......................... length
         reused                     the first token that is not:
                                    what would have to be different for it to be reused?
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prefixcache.blocks.retention import Retention
from prefixcache.cache.admission import Admission
from prefixcache.cache.plans import Ask, Plan
from prefixcache.cache.prompts import Asked
from prefixcache.designs import Prompt
from prefixcache.keys.extras import ID_BYTES, Extras, common_extras
from prefixcache.keys.scope import Scope
from prefixcache.keys.tokens import TOKEN_BYTES, common_tokens

if TYPE_CHECKING:
    from prefixcache.cache.core import Core
    from prefixcache.cache.request import Request

_SCOPE_FIELDS = ("model", "generation", "adapter", "salt")


@dataclass(frozen=True, slots=True)
class Explanation:
    """Where the match of a prompt ends and why.

    Attributes:
        cached: tokens that could be reused now; the token at this position is the first that is not.
        reason: "complete" (all but the last token are), "last token" (the rest of the prompt is cached, but one
            token must be computed), "lookahead" (a draft model's token), "limit" (a rule of the design hides
            it), "anchor missing" and "no checkpoint" (a window or recurrent layers cannot go on where more is cached),
            "no room" (for the copy of a part of a block), "spilled" (on its way to the tier below), "evicted",
            "not computed" (a live request is about to), "boundary" (more tokens agree, or none are left to fill a
            block, but hits end at block ends), "media" (cached without these media), "scope" (cached in another scope),
            "never seen",
            "not found" (never seen, or removed too long ago to know), "empty", "uncacheable", "old generation".
        detail: the same as a sentence, with positions and times.
        agreeing: leading tokens that agree with something cached in the same scope, as far as the design can see.
        evicted_at: clock time of the eviction, for the reason "evicted".
        differs: what the other scope has otherwise, for the reason "scope": "model", "generation", "adapter",
            "salt", "extra ids".
    """

    cached: int
    reason: str
    detail: str
    agreeing: int = 0
    evicted_at: float | None = None
    differs: tuple[str, ...] = ()


class Explainer:
    """Looks for the reason. Changes nothing; every method is called under the cache's lock."""

    def __init__(self, core: Core, admission: Admission) -> None:
        self._core = core
        self._admission = admission

    def explain(self, asked: Asked, tenant: bool) -> Explanation:
        """The explanation for one prompt; with `tenant` nothing beyond its own scope shows in it.

        O(lookup) for most reasons; a scan of the live requests and, for operators, of the scopes in the index before
        it says that nothing is known.
        """
        if not asked.length:
            return Explanation(0, "empty", "the prompt has no tokens")
        plan = self._admission.plan(Ask(asked, Retention()), self._admission.room())
        if asked.why_not:
            return Explanation(0, "uncacheable", asked.why_not)
        if self._admission.is_old(asked):
            return Explanation(0, "old generation", "the weights that the scope names are gone")
        if plan.cached == asked.length - 1:
            return Explanation(plan.cached, "complete", "all but the last token, which must be computed", plan.cached)
        for found in self._own_reasons(asked, plan):
            return found
        if not tenant:
            for found in self._other_scopes(asked, plan):
                return found
        return self._unknown(asked, plan, tenant)

    def _own_reasons(self, asked: Asked, plan: Plan) -> Iterator[Explanation]:
        """Reasons within the prompt's own scope, the most telling first."""
        prompt, at, length = asked.prompt, plan.cached, asked.length
        design = self._core.design
        size = design.block_size
        agreeing = max(design.agreeing(prompt, length), at)

        def because(reason: str, detail: str, evicted_at: float | None = None) -> Explanation:
            return Explanation(at, reason, detail, agreeing, evicted_at)

        if self._core.groups is not None and plan.match.cut:
            yield because(plan.match.cut_by, self._core.groups.why_cut(plan.match))
        if plan.dropped:
            yield because("lookahead", f"{plan.dropped} tokens behind token {at} are left to the draft model")
        whole = self._core.find(prompt, length)
        if whole.tokens + whole.loaded == length and length - at <= size:
            yield because("last token", f"all {length} tokens are cached, but the last one must be computed")
        with_room = self._core.find(prompt, length - 1).found
        if with_room > at and not plan.dropped:
            yield because("no room", f"tokens {at} to {with_room - 1} would have to be copied, and no block is free")
        elif min(agreeing, length - 1) > at and design.options.partial != "off" and size > 1:
            yield because("limit", f"tokens {at} to {agreeing - 1} are cached, but a rule of the design hides them")
        if self._core.tiers is not None and self._core.tiers.in_transit(prompt, at):
            yield because("spilled", f"the block of token {at} has left the device, and is not yet in the tier below")
        evicted_at = self._evicted_at(prompt, at)
        if evicted_at is not None:
            ago = self._core.clock() - evicted_at
            yield because("evicted", f"the block of token {at} was removed {ago:.1f} s ago", evicted_at)
        for request in self._core.live:
            known = self._shared_with(request, prompt)
            if known > at and request.stores and not request.why_not:
                yield because("not computed", f"a live request shares {known} tokens; {_progress(request, at)}")
        if agreeing > at:
            yield because("boundary", f"tokens {at} to {agreeing - 1} are cached in a block that ends otherwise")
        if at + size > length - 1 and design.options.partial == "off":
            yield because("boundary", f"what is left before the last token does not fill a block of {size}")
        if prompt.extras is not None and prompt.extras.runs:
            plain = Prompt(prompt.tokens, prompt.root, prompt.scope)
            if (text := design.agreeing(plain, length)) > at and not prompt.extras.ids:
                yield because("media", f"tokens up to {text} are cached as plain text or with other media")

    def _evicted_at(self, prompt: Prompt, at: int) -> float | None:
        """When the block that holds token `at` left, in any of the forms in which it may have been stored."""
        journal, size = self._core.journal, self._core.design.block_size
        if journal is None:
            return None
        start = at - at % size
        # Longest first: what ends before the token, a tail that gave way to a longer one, held other tokens.
        keys = self._core.design.keys_at(prompt, start)[: min(len(prompt.tokens) // TOKEN_BYTES, start + size) - at]
        return next((when for key in keys if (when := journal.removals.when(key)) is not None), None)

    def _shared_with(self, request: Request, prompt: Prompt) -> int:
        """Tokens that the prompt shares with a live request of the same scope."""
        theirs = request.holding.prompt
        if theirs.root != prompt.root:
            return 0
        most = min(len(theirs.tokens), len(prompt.tokens)) // TOKEN_BYTES
        common = common_tokens(theirs.tokens, 0, prompt.tokens, 0, most)
        own = prompt.extras.cut(0, common) if prompt.extras is not None else None
        other = theirs.extras.cut(0, common) if theirs.extras is not None else None
        return common_extras(own, other, common)

    def _other_scopes(self, asked: Asked, plan: Plan) -> Iterator[Explanation]:
        """The scope that has most of the prompt, if it has more than the prompt's own."""
        prompt, best, longest = asked.prompt, None, plan.cached
        for root in list(self._core.design.scopes()):
            if root == prompt.root:
                continue
            scope, uses_ids = Scope.decode(root)
            extras = _with_ids(prompt.extras, uses_ids, asked.length)
            agreeing = self._core.design.agreeing(Prompt(prompt.tokens, root, scope, extras), asked.length)
            if agreeing > longest:
                best, longest = root, agreeing
        if best is None:
            return
        scope, uses_ids = Scope.decode(best)
        differs = [field for field in _SCOPE_FIELDS if getattr(scope, field) != getattr(prompt.scope, field)]
        named = [f"{field} {getattr(scope, field)!r}" for field in differs]
        if uses_ids != _uses_ids(prompt.extras):
            differs.append("extra ids")
            named.append("extra ids" if uses_ids else "no extra ids")
        detail = f"{longest} tokens are cached in the scope with {' and '.join(named)}"
        yield Explanation(plan.cached, "scope", detail, plan.cached, None, tuple(differs))

    def _unknown(self, asked: Asked, plan: Plan, tenant: bool) -> Explanation:
        at, journal = plan.cached, self._core.journal
        if tenant:
            return Explanation(at, "not found", f"nothing is cached from token {at} on", at)
        block = f"a block of just these tokens around token {at}"
        if journal is not None and journal.removals.complete:
            return Explanation(at, "never seen", f"{block} was never cached behind this beginning", at)
        why = "or its removal is unknown: events are off" if journal is None else "or removed too long ago to know"
        return Explanation(at, "not found", f"{block} was never cached behind this beginning, {why}", at)


def _uses_ids(extras: Extras | None) -> bool:
    return extras is not None and bool(extras.ids)


def _with_ids(extras: Extras | None, uses_ids: bool, length: int) -> Extras | None:
    """The same prompt as a scope with or without extra ids would have it."""
    if uses_ids == _uses_ids(extras):
        return extras
    runs = extras.runs if extras is not None else ()
    return Extras(runs, bytes(ID_BYTES * length)) if uses_ids else (Extras(runs) if runs else None)


def _progress(request: Request, at: int) -> str:
    computed = request.computed_tokens
    if computed > at:
        return f"it has computed {computed}, which become visible when its block is full or the step ends"
    return f"it has computed {computed}"
