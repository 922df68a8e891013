"""What the calls of a request do in the attention groups beside the tree. Only where a cache has such groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prefixcache.cache.core import Core
from prefixcache.designs.groups import Back, Groups, Wanted
from prefixcache.errors import RequestError

if TYPE_CHECKING:
    from prefixcache.cache.request import Request


def computed_in_groups(core: Core, groups: Groups, request: Request, length: int, went_on: bool) -> None:
    """The tree has what it takes of the first `length` computed tokens: the groups follow.

    Unless the request `went_on` somebody only asks whether it may. Then its state stays with it: handed over, it would
    have to be copied between the question and the step.
    """
    computed = request.computed_tokens
    _store(core, groups, request, length, computed if went_on else -1, ended=False)
    core.await_copies(request, groups.move_on(request.holding, computed))


def release_groups(core: Core, groups: Groups, request: Request, length: int, in_flight: bool) -> None:
    """The groups leave in the tree what is worth it of the first `length` tokens, and let go of the rest."""
    computed = request.computed_tokens
    # With copies unfinished nobody knows what is written, and a step in flight goes on in the same state.
    unsure = bool(request.pending) or in_flight
    if request.pending:
        groups.forget_twins(request.holding)
    _store(core, groups, request, length, -1 if unsure else computed, ended=not in_flight)
    targets = {(copy.group, copy.target) for copy, _ in request.pending} if in_flight else None
    written = max(computed - core.design.ahead, 0)
    request.given_up_in_groups += groups.release(request.holding, written, targets)
    if request.given_up_in_groups:
        core.quarantine.add(request)


def _store(core: Core, groups: Groups, request: Request, length: int, computed: int, ended: bool) -> None:
    if core.stores(request.holding):
        groups.store(request.holding, length, computed, ended)


def go_back(core: Core, groups: Groups, request: Request, length: int) -> list[tuple[int, Wanted]]:
    """Take the groups back to `length` tokens, or raise and change nothing; (group, copy) to be made."""
    if request.pending:
        raise RequestError(f"rewind({length}): copies are pending; do them, then copied()")
    computed = request.computed_tokens
    after = min(computed, length - core.design.ahead)
    back = Back(length, computed, after, lambda: groups.homes(request.holding))
    if why := groups.why_not_back(request.holding, back):
        raise RequestError(f"rewind({length}): {why}; close it, and open its first {length} tokens instead")
    return groups.go_back(request.holding, back)
