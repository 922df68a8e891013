"""Embed the cache in a scheduler of your own: the whole loop, with a toy in the place of the model.

Run it with `python examples/scheduler.py`; what each line prints stands behind it.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress

import numpy as np

from prefixcache import NoSpace, PrefixCache, Request

BLOCK, BLOCKS, ANSWER = 4, 24, 12
cache = PrefixCache("radix", block_size=BLOCK, capacity=BLOCKS, partial="copy")
kv = np.zeros((BLOCKS, BLOCK), dtype=np.int64)  # your KV memory: here one number per token


def forward(request: Request) -> int:
    """Your model. It reads and writes KV through the block table, and computes only what is not there."""
    slots = [(request.block_table[at // BLOCK], at % BLOCK) for at in range(request.length)]
    for at in range(request.computed_tokens, request.length):
        kv[slots[at]] = ((kv[slots[at - 1]] if at else 0) * 31 + int(request.tokens[at])) % 1009
    request.computed(request.length)  # from now on others can find it
    return int(kv[slots[-1]] % 50)


def admit(entry: list[int] | Request) -> Request:
    """Match, pin and allocate in one call, or `NoSpace` and nothing has changed."""
    request = entry.resume() if isinstance(entry, Request) else cache.open(entry)
    for copy in request.copies:  # a hit that ends inside a block: copy its beginning before anything is computed
        kv[copy.target, : copy.tokens] = kv[copy.source, : copy.tokens]
    request.copied()
    return request


def serve(prompts: list[list[int]]) -> list[list[int]]:
    """Each prompt with its answer, in the order in which they finish; as many run at once as there are blocks for."""
    waiting: deque[list[int] | Request] = deque(prompts)
    running: list[Request] = []
    finished = []
    while waiting or running:
        with suppress(NoSpace):  # whoever finishes makes room
            while waiting:
                running.append(admit(waiting[0]))
                waiting.popleft()
        for request in list(running):
            token = forward(request)
            try:
                request.append(token)
            except NoSpace:  # its blocks may serve others; it keeps its tokens, the refused one too
                request.preempt()
                waiting.append(request)
                running.remove(request)
                continue
            if request.length == request.prompt_length + ANSWER:
                finished.append(request.tokens.tolist())
                request.close()
                running.remove(request)
    return finished


if __name__ == "__main__":
    system_prompt = list(range(100, 126))
    print(len(serve([[*system_prompt, *range(start, start + 6)] for start in range(0, 48, 6)])), "answers")  # 8 answers
    print(cache.stats().hits, "of", cache.stats().queries, "tokens reused")  # 130 of 256 tokens reused
    print(cache.stats().preempted_requests, "preemptions")  # 6 preemptions
    print(cache.books().pinned, "blocks are still in use")  # 0 blocks are still in use
