"""tlru: tail-optimised LRU (Zhang et al., arXiv:2510.15152).

Of a conversation with a history of L tokens, whose next prompt is expected to add q, only L + q - T tokens
need to stay so that the next prefill is no longer than T. What lies behind that budget cannot make any
request late, so it leaves before everything else; the rest is LRU. L is the longest the branch has ever
been: were it what is still cached, each pass would find the shortened branch over budget again.
"""

from __future__ import annotations

from prefixcache.blocks.eviction.base import Facts, Policy
from prefixcache.errors import OptionError


def tlru(threshold: int = 0, next_prompt: int = 0) -> Policy:
    """The policy with a latency budget; with a budget of 0 it is LRU.

    Args:
        threshold: tokens that a prefill may compute and still be in time (T), from 0 on.
        next_prompt: tokens that the next prompt of a conversation is expected to add (q), from 0 on.
    """
    for name, value in (("threshold", threshold), ("next_prompt", next_prompt)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise OptionError(f"tlru: {name} is {value!r}: expected a number of tokens from 0 on")

    def rank(facts: Facts) -> tuple[int, ...]:
        """Items behind their branch's budget first; otherwise the least recently used."""
        budget = max(facts.history + next_prompt - threshold, 0)
        return (facts.depth - facts.length < budget, facts.last_access)

    return Policy("tlru", rank, frozenset({"history"}))


TLRU = tlru()
