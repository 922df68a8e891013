"""Admission: match, pin and allocate as one step, or nothing at all.

The order is what makes it safe: first everything that was matched is pinned, then room is made. So nothing
that is brought in for a request can push out what the same request, or another one of its batch, has matched.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from prefixcache.cache.books import BlockCounters, Copy, Hit, Planned
from prefixcache.cache.core import Core
from prefixcache.cache.plans import Ask, Plan, Room
from prefixcache.cache.prompts import Asked, Block, next_block
from prefixcache.designs import Match, Partial, Prompt
from prefixcache.designs.groups import Groups, SideNeed
from prefixcache.errors import NoSpace

if TYPE_CHECKING:
    from prefixcache.cache.request import Request


class Admission:
    """Plans and carries out admissions. Every method is called under the cache's lock."""

    def __init__(self, core: Core) -> None:
        self.core = core

    def room(self) -> Room:
        """The room for a batch that begins now."""
        groups = self.core.groups
        return Room(self.core.design.available, sides=groups.room() if groups is not None else ())

    # -- planning: changes nothing ------------------------------------------------------------------

    def probe(self, ask: Ask) -> Hit:
        """What `open` would find and need now."""
        if not ask.asked.length:
            return Hit(0, 0, self._by_tier(0, 0), "empty")
        plan = self.plan(ask, self.room())
        by_tier = self._by_tier(plan.cached, plan.match.loaded)
        return Hit(plan.cached, self._drawn(plan.need, plan.sides), by_tier, plan.reason)

    def _by_tier(self, cached: int, loaded: int) -> dict[str, int]:
        tiers = self.core.tiers
        return {"device": cached - loaded} | ({tiers.tier.name: loaded} if tiers is not None else {})

    def _drawn(self, need: int, sides: Sequence[SideNeed]) -> int:
        """Blocks drawn of full attention, or of the first group where the tree's blocks stand for no memory."""
        return need if self.core.tree_group >= 0 else sides[0].need

    def plan_batch(self, asks: list[Ask]) -> list[Planned]:
        """What `admit_batch` would do now with each of these. Changes nothing."""
        core, room, planned = self.core, self.room(), []
        size, ahead = core.design.block_size, self._ahead()
        underway = {self._to_publish(live) for live in core.live if core.stores(live.holding)}
        for ask in asks:
            plan = self.plan(ask, room)
            need = self._needed(plan, ask, room)
            fits = need <= room.left and self._groups_fit(plan, ask, room)
            found = (plan.match.found + (0 if plan.match.cut or ahead else plan.dropped)) // size * size
            following = next_block(ask.asked.prompt, found, size, ahead)
            awaited = following is not None and following in underway
            wait = awaited and not self._why_not_read(ask) and self._could_reuse(plan, found, ask)
            if fits:
                room.admit(plan, core.design.idle_blocks(plan.match))
                if self._publishes(ask) and self._shows(following, ask.asked.prompt):
                    underway.add(following)
            planned.append(Planned(plan.cached, self._drawn(need, plan.sides), fits, wait, plan.reason))
        return planned

    def _to_publish(self, live: Request) -> Block | None:
        """The next full block that others will find when `live` has computed more; None when there is none."""
        done, prompt, ahead = live.computed_tokens, live.holding.prompt, self._ahead()
        if done > live.cached and (self.core.design.withheld or not self.core.options.store_last):
            done -= 1  # a block that ends with the last computed token is found when there is another one
        block = next_block(prompt, done, self.core.design.block_size, ahead)
        return block if self._shows(block, prompt) else None

    def _ahead(self) -> int:
        """Tokens behind a block that are part of its identity."""
        return int(self.core.options.lookahead > 0 and self.core.options.lookahead_by == "key")

    def _shows(self, block: Block | None, prompt: Prompt) -> bool:
        """Whether others find this block of the prompt once it is computed: the last known token may be withheld."""
        return block is not None and (self.core.options.store_last or len(block[1]) < len(prompt.tokens))

    def _publishes(self, ask: Ask) -> bool:
        return ask.store and not ask.asked.why_not and not self.is_old(ask.asked)

    def _could_reuse(self, plan: Plan, found: int, ask: Ask) -> bool:
        """Whether the hit would be longer if the block behind `found` tokens were cached too."""
        options, size, length = self.core.options, self.core.design.block_size, ask.asked.length
        inside, end = options.partial != "off", found + size
        if plan.match.cut:
            return end < length or (inside and end == length)
        unit = 1 if inside else size
        if options.lookahead and options.lookahead_by == "drop":
            later = (min(length - 1, end) // unit * unit - 1) // unit * unit
        else:
            later = min(length - 1, end - options.backoff) // unit * unit
        return later > self._match(ask.asked, length - 1)[0].found

    def plan(self, ask: Ask, room: Room) -> Plan:
        """Look up a prompt and do the arithmetic of its admission."""
        asked = ask.asked
        why_not = self._why_not_read(ask)
        limit = 0 if why_not else asked.length - 1
        match, dropped = self._match(asked, limit)
        reserve = asked.length if ask.reserve is None else ask.reserve
        plan = self._fit(match, reserve, room)
        if self.core.groups is not None:
            plan = self._fit_groups(self.core.groups, asked, plan, reserve, room)
        plan.dropped = dropped
        plan.reason = why_not or self._reason(plan, asked.length)
        return plan

    def _match(self, asked: Asked, limit: int) -> tuple[Match, int]:
        """The hit within the first `limit` tokens, and what a draft model costs of it."""
        core, options = self.core, self.core.options
        if core.groups is not None:
            return self._match_in_groups(core.groups, asked, limit)
        if options.backoff and limit:
            first = core.match(asked.prompt, asked.length)
            match = core.match(asked.prompt, max(min(limit, first.found - options.backoff), 0))
            _leave_to_draft(match, first, options.backoff)
            return match, min(limit, first.found) - match.found
        match = core.match(asked.prompt, limit)
        if options.lookahead and options.lookahead_by == "drop" and match.found:
            first, match = match, core.match(asked.prompt, match.found - 1)
            _leave_to_draft(match, first, 1)
            return match, first.found - match.found
        return match, match.dropped

    def _match_in_groups(self, groups: Groups, asked: Asked, limit: int) -> tuple[Match, int]:
        """The same with attention groups: a draft model's tokens are the last of what the tree has of the whole prompt.

        So where a group ends the hit before them, nothing more is lost.
        """
        prompt, options, tree = asked.prompt, self.core.options, self.core.design
        behind = options.backoff or int(options.lookahead > 0 and options.lookahead_by == "drop")
        if not behind:
            match = groups.match(prompt, limit)
            return match, match.dropped
        known = tree.match(prompt, asked.length).found
        match = groups.match(prompt, max(min(limit, known - behind), 0))
        within = known if known <= limit else tree.match(prompt, limit).found
        return match, max(within - match.found - match.cut, 0)  # `child_limit` may hide more of a longer beginning

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

    def _fit(self, match: Match, reserve: int, room: Room) -> Plan:
        """Choose what to do with a hit inside a block so that it never causes a refusal."""
        new = max(-(-reserve // self.core.design.block_size) - len(match.blocks), 0)
        idle = match.idle
        if room.claimed:
            idle = sum(block not in room.claimed for block in self.core.design.idle_blocks(match))
        overruled: Sequence[Plan] = ()
        if room.takers:
            overruled = [taker for source, taker in room.takers.items() if taker is not None and source in match.blocks]
            idle += len(overruled)
        if len(match.loads) > new:  # what is not asked for is loaded as far as there is room: it never causes a refusal
            new = max(min(len(match.loads), room.left - idle), new)
            match.cut_loads(new, self.core.design.block_size)
        partial = match.partial
        if partial is None:
            return Plan(match, None, False, new, new + idle, overruled)
        earlier = room.takers.get(partial.source)
        unclaimed = partial.idle and partial.source not in room.claimed
        partial.idle = partial.idle or partial.source in room.claimed  # a claim of this batch is no use yet
        takeable = earlier is not None or (partial.takeable and unclaimed)
        # Taking over needs the source itself; where an earlier request of the batch would have taken it, that
        # one needs a block to copy into instead. Either way it draws as much as having no such hit.
        inside = max(new, 1)
        taking, copying = inside + idle, inside + idle + unclaimed
        if not new and taking > room.left:  # it asks for no block: without the hit it draws less
            return Plan(match, None, False, new, new + idle, overruled)
        take = Plan(match, partial, True, inside - 1, taking, [*overruled, earlier] if earlier else overruled)
        if self.core.options.partial == "take" and takeable:
            return take
        if copying <= room.left:
            return Plan(match, partial, False, inside, copying, overruled)
        if taking > room.left:  # refused in any case: going without the hit draws as much
            return Plan(match, partial, False, inside, taking, overruled)
        # An idle source with children can be taken over when everything else that is idle has to go anyway.
        if takeable or (unclaimed and taking == room.left and self.core.groups is None):
            return take
        return Plan(match, None, False, new, new + idle, overruled)

    def _fit_groups(self, groups: Groups, asked: Asked, plan: Plan, reserve: int, room: Room) -> Plan:
        """Add what the other attention groups need. Here too a hit inside a block never causes a refusal."""
        if plan.partial is None and plan.match.partial is not None:
            plan = self._fit(self._whole(asked.prompt, plan.match), reserve, room)
        plan.sides = groups.needs(plan.match, plan.partial, self._cover(plan), room.sides)
        if plan.partial is not None and not groups.fits(plan.sides, room.sides):
            whole = self._fit(self._whole(asked.prompt, plan.match), reserve, room)
            whole.sides = groups.needs(whole.match, whole.partial, self._cover(whole), room.sides)
            if groups.fits(whole.sides, room.sides):  # else it is refused in any case
                return whole
        return plan

    def _whole(self, prompt: Prompt, match: Match) -> Match:
        """The hit without what lies inside a block: every group must be able to resume there instead.

        What is lost by that is lost for want of room, and no group's fault.
        """
        whole = self.core.match_whole(prompt, match.tokens)
        whole.cut, whole.cut_by, whole.cut_group = match.cut, match.cut_by, match.cut_group
        return whole

    def _cover(self, plan: Plan) -> int:
        """Tokens that the request's table of tree blocks will cover."""
        return (len(plan.match.blocks) + plan.new) * self.core.design.block_size

    def _reason(self, plan: Plan, length: int) -> str:
        size = self.core.design.block_size
        if plan.cached == length - 1:
            return "complete"
        if plan.match.cut:
            return plan.match.cut_by
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
        room = self.room()
        plan = self.plan(ask, room)
        self.require_room(plan, ask, room)
        self.core.design.expire()
        self.claim(request, ask, plan)
        self.settle(request, ask, plan, [], again)

    def admit_batch(self, requests: list[Request], asks: list[Ask]) -> list[NoSpace | None]:
        """Admit a batch in two phases: claim every match of every request, then allocate.

        A request that does not fit with those admitted before it is refused, and the others are served as if
        it had not been there.
        """
        outcomes: list[NoSpace | None] = []
        claimed: list[tuple[Request, Ask, Plan]] = []
        room = self.room()
        for request, ask in zip(requests, asks, strict=True):
            plan = self.plan(ask, room)
            try:
                self.require_room(plan, ask, room)
            except NoSpace as refusal:
                outcomes.append(refusal)
                continue
            if not claimed:
                self.core.design.expire()
            room.admit(plan, self.core.design.idle_blocks(plan.match))
            self.claim(request, ask, plan)
            claimed.append((request, ask, plan))
            outcomes.append(None)
        copiers: dict[int, list[tuple[Request, Plan]]] = {}
        for request, _, plan in claimed:
            if plan.partial is not None and not plan.take:
                copiers.setdefault(plan.partial.source, []).append((request, plan))
        for request, ask, plan in claimed:
            source = plan.partial.source if plan.partial is not None else -1
            self.settle(request, ask, plan, copiers.get(source, []), False)
        return outcomes

    def require_room(self, plan: Plan, ask: Ask, room: Room) -> None:
        """Raises `NoSpace` when the plan does not fit now."""
        need = self._needed(plan, ask, room)
        if need > room.left:
            raise NoSpace(need, room.left, capacity=self.core.pool.capacity)
        if self.core.groups is not None:
            self.core.groups.require(self._needed_in_groups(self.core.groups, plan, ask, room), room.sides)

    def _needed(self, plan: Plan, ask: Ask, room: Room) -> int:
        """Blocks that must be there: what is drawn, or what the whole prompt would draw if it must fit."""
        if ask.reserve is not None and (ask.must_fit or self.core.options.must_fit):
            return max(plan.need, self._fit(plan.match, max(ask.asked.length, ask.reserve), room).need)
        return plan.need

    def _needed_in_groups(self, groups: Groups, plan: Plan, ask: Ask, room: Room) -> Sequence[SideNeed]:
        """The same for the attention groups beside the tree."""
        if ask.reserve is not None and (ask.must_fit or self.core.options.must_fit):
            whole = self._fit(plan.match, max(ask.asked.length, ask.reserve), room)
            return groups.needs(plan.match, plan.partial, self._cover(whole), room.sides, self._cover(plan))
        return plan.sides

    def _groups_fit(self, plan: Plan, ask: Ask, room: Room) -> bool:
        groups = self.core.groups
        return groups is None or groups.fits(self._needed_in_groups(groups, plan, ask, room), room.sides)

    def claim(self, request: Request, ask: Ask, plan: Plan) -> None:
        """Phase one: pin all that was matched. No allocation, no eviction, no copy.

        A source that will be taken over stays in the index: a later request of the batch may match it too.
        """
        design, holding = self.core.design, request.holding
        holding.prompt = ask.asked.prompt
        holding.generation = self.core.generation
        holding.store = self._publishes(ask)
        holding.retention = ask.retention
        holding.step = design.step
        if self.core.groups is not None:
            self.core.groups.claim(holding, plan.match, plan.partial)
        if self.core.tiers is not None:
            self.core.tiers.claim(plan.match)
        design.claim(holding, plan.match)
        if plan.partial is not None:
            design.claim_source(holding, plan.partial)

    def settle(self, request: Request, ask: Ask, plan: Plan, copiers: list[tuple[Request, Plan]], again: bool) -> None:
        """Phase two: allocate what is new, say what is to be copied, record the admission once.

        Args:
            request, ask, plan: what was claimed.
            copiers: requests of the batch that copy out of the source of this one's hit inside a block.
            again: the request was preempted and is resumed.
        """
        design, holding = self.core.design, request.holding
        at = len(holding.table)
        partial = plan.partial
        # Room for the copy is made first and apart: where a victim takes others along, the rest may need none.
        first = 1 if partial is not None and not plan.take else plan.new
        new = design.allocate(holding, at + plan.take, first)
        if first < plan.new:
            new.extend(design.allocate(holding, at + first, plan.new - first))
        if partial is not None and plan.take:
            self._take_over(request, partial, copiers)
        holding.table.extend(new)
        if self.core.tiers is not None:  # first what is spilled out of these blocks, then what is loaded into them
            request.pending += self.core.tiers.take_spills(new)
            request.pending += self.core.tiers.loads(plan.match, holding.table[at : at + len(plan.match.loads)])
        if partial is not None and not plan.take:
            target = holding.table[at]
            if partial.handle is not None:
                design.inherit(partial, target)
            copy = Copy(partial.source, target, partial.tokens, self.core.tree_group)
            self.core.await_tree_copy(request, copy, partial.handle)
        if self.core.groups is not None:
            self.core.await_copies(request, self.core.groups.open(holding, len(plan.match.blocks)))
            self._count_cut(plan)
        request.begin(plan.cached)
        self._count_blocks(request, ask.asked.length, plan, new)
        length = ask.asked.length
        queries = 0 if plan.reason == "read off" or ask.asked.why_not else length
        counters = self.core.counters
        counters.block_queries += queries // design.block_size
        counters.block_hits += plan.cached // design.block_size
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

    def _count_cut(self, plan: Plan) -> None:
        counters = self.core.counters
        if plan.match.cut_by == "no checkpoint":
            counters.no_checkpoint_tokens += plan.match.cut
        else:
            counters.anchor_missing_tokens += plan.match.cut

    def _count_blocks(self, request: Request, length: int, plan: Plan, new: Sequence[int]) -> None:
        """Where the blocks of a prompt come from. Its last token is never reusable: a block for it alone is empty."""
        core, table, size = self.core, request.holding.table, self.core.design.block_size
        request.block_counters = BlockCounters()
        core.count_allocated(request, len(table) - len(new), new)
        if core.pool.any_blank:
            core.pool.note_written(table[len(plan.match.blocks) : -(-(length - 1) // size)])
        reused = len(plan.match.blocks) + len(plan.match.loads) + (plan.partial is not None)
        missed = -(-length // size) - reused
        counts, all_counts = request.block_counters, core.block_counters
        counts.reused, counts.missed = reused, missed
        all_counts.reused += reused
        all_counts.missed += missed

    def _take_over(self, request: Request, partial: Partial, copiers: list[tuple[Request, Plan]]) -> None:
        """The source leaves the index and is the request's own, which others of the batch may still copy from.

        Their pins end with the index's ownership: instead each has a claim on the private block, which keeps
        it from being written before it is copied.
        """
        design = self.core.design
        design.drop(partial.handle)
        for copier, plan in copiers:
            assert plan.partial is not None
            pin, plan.partial.handle = plan.partial.handle, None
            design.drop(pin)
            self.core.pool.share(partial.source)
            copier.pending = [(copy, None if handle is pin else handle) for copy, handle in copier.pending]
        design.take(request.holding, partial)


def _leave_to_draft(match: Match, first: Match, tokens: int) -> None:
    """Leave the last tokens of a hit inside a block to a draft model, where the longer hit `first` was to be loaded.

    What is loaded cannot be used in part. So the shorter hit may lie in another block, which parts from the prompt
    where it ends.
    """
    if first.loads and match.partial is not None:
        match.partial.tokens -= tokens
        if match.partial.tokens <= 0:
            match.partial = None
