"""Prefix caching in five minutes: the life of a request, on two designs.

Run it with `python examples/quickstart.py`; what each line prints stands behind it.
"""

from __future__ import annotations

from prefixcache import NoSpace, PrefixCache, Scope

# Numbers stand for text: a system prompt that every request begins with, and questions behind it.
SYSTEM = list(range(1000, 1100))  # 100 tokens
QUESTION = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
OTHER_QUESTION = [11, 12, 13, 14, 15, 16]

# A cache owns block ids, not memory: here 64 blocks of 16 tokens. Where the KV of block 5 lies is the
# engine's business.
cache = PrefixCache("radix", block_size=16, capacity=64)

# The first request finds nothing. It gets a block table; its prompt is computed, then it generates.
first = cache.open(SYSTEM + QUESTION)
print(first.cached, first.block_table.tolist())  # 0 [0, 1, 2, 3, 4, 5, 6]
first.computed(110)  # the KV of 110 tokens is written: full blocks can be found from now on
first.append(42)  # a sampled token: its KV comes with the next step
first.computed(111)
first.close()  # the blocks stay findable until their room is needed

# The second one begins with the same 100 tokens: 96 of them fill whole blocks.
second = cache.open(SYSTEM + OTHER_QUESTION)
print(second.cached, second.block_table.tolist()[:6])  # 96 [0, 1, 2, 3, 4, 5]
second.computed(106)

# Looking changes nothing. At least one token is always computed: 95 of these 96 could be reused, and that is
# 80 in whole blocks.
print(cache.probe(SYSTEM[:96]).cached)  # 80

# Tenants with different salts share nothing, whatever their tokens.
print(cache.probe(SYSTEM + QUESTION, Scope(salt="another tenant")).cached)  # 0

# At one token per block nothing is rounded away. The hash chain answers the same calls.
for design in ("radix", "hash_chain"):
    fine = PrefixCache(design, block_size=1, capacity=1024)
    request = fine.open(SYSTEM + QUESTION)
    request.computed(110)
    request.close()
    assert fine.probe(SYSTEM + OTHER_QUESTION).cached == 100

# What does not fit is refused without a trace, and says what it lacked.
try:
    cache.open(range(5000, 7000))
except NoSpace as refusal:
    print(refusal.need, refusal.available)  # 125 57

# Every block is in one of four states.
print(cache.books())  # Books(free=57, idle=0, pinned=7, quarantined=0)
second.close()
cache.check()  # every invariant, asserted
