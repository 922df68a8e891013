"""Where reuse goes: every token that a request shares with an earlier one is reused, or lost for one reason.

The losses of a request are subtracted from the ceiling in a fixed order, each from what the one before
has left. With `shared` = tokens shared with any earlier request, `own` = with one of the same scope,
n = length of the prompt:

    shared                                            the ceiling
      - last_token   min(shared, n-1)                 one token must be computed, else there are no logits
      - scope        min(own, n-1)                    what another model, adapter or tenant has is not ours
      - limit        what a rule of the design, such as child_limit, hides even if nothing is ever evicted
      - boundary     what lies beyond the design's grain: the beginning of a block that is not all the same
      - eviction     what was cached and no longer is
      - refused      all that is left, when the request found no room
    = reused

They add up exactly and none is negative. What a design without such rules finds while nothing is evicted
is arithmetic: min(own, n-1) rounded down to its grain. One with such rules is asked: it is replayed a second
time beside the first, with unbounded capacity.
"""

from __future__ import annotations

from dataclasses import dataclass

from prefixcache.errors import InvariantError


@dataclass(slots=True)
class Losses:
    """Tokens lost, by reason, in the order of subtraction."""

    last_token: int = 0
    scope: int = 0
    limit: int = 0
    boundary: int = 0
    eviction: int = 0
    refused: int = 0

    def total(self) -> int:
        """The ceiling minus what was reused."""
        return self.last_token + self.scope + self.limit + self.boundary + self.eviction + self.refused

    def add(self, other: Losses) -> None:
        """Sum up, reason by reason."""
        self.last_token += other.last_token
        self.scope += other.scope
        self.limit += other.limit
        self.boundary += other.boundary
        self.eviction += other.eviction
        self.refused += other.refused


def explain(*, length: int, shared: int, own: int, grain: int, unbounded: int | None, hit: int | None) -> Losses:
    """The losses of one request.

    Args:
        length: tokens of the prompt.
        shared, own: tokens shared with any earlier request, with one of the same scope.
        grain: tokens that a hit of the design is a multiple of.
        unbounded: the hit of the same design without bounds; None when `grain` alone decides it.
        hit: the tokens reused; None when the request was refused.

    Raises `InvariantError` when more was reused than there was: a fault of the design.
    """
    usable = min(shared, length - 1)
    allowed = min(own, length - 1)
    reused = hit or 0
    if reused > allowed:
        raise InvariantError(f"{reused} tokens of a prompt were reused, only {allowed} were ever computed")
    rounded = max(allowed // grain * grain, reused)
    # A cache that evicts can find more than one that does not, where many children hide a match.
    found = rounded if unbounded is None else max(unbounded, reused)
    lost = found - reused
    return Losses(
        last_token=shared - usable,
        scope=usable - allowed,
        limit=rounded - found,
        boundary=allowed - rounded,
        eviction=lost if hit is not None else 0,
        refused=lost if hit is None else 0,
    )
