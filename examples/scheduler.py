"""Embed the cache in a scheduler of your own: the whole loop, with a toy in the place of the model.

Run it with `python examples/scheduler.py`; what each line prints stands behind it.
"""

from __future__ import annotations

from collections import deque

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
    return int(kv[slots[-1]] % 50)


def admit(entry: list[int] | Request) -> Request:
    """Match, pin and allocate in one call, or `NoSpace` and nothing has changed."""
    request = entry.resume() if isinstance(entry, Request) else cache.open(entry)
    for copy in request.copies:  # a hit that ends inside a block: copy its beginning before anything is computed
        kv[copy.target, : copy.tokens] = kv[copy.source, : copy.tokens]
    request.copied()
    return request


def serve(prompts: list[list[int]]) -> dict[tuple[int, ...], list[int]]:
    """Answer all prompts, as many at once as there are blocks for."""
    waiting: deque[list[int] | Request] = deque(prompts)
    running: list[Request] = []
    answers = {}
    while waiting or running:
        try:
            while waiting:
                running.append(admit(waiting[0]))
                waiting.popleft()
        except NoSpace:
            pass  # whoever finishes makes room
        for request in list(running):
            token = forward(request)
            request.computed(request.length)  # from now on others can find it
            try:
                request.append(token)
            except NoSpace:  # its blocks may serve others; it keeps its tokens, the refused one too
                request.preempt()
                waiting.append(request)
                running.remove(request)
                continue
            if request.length == request.prompt_length + ANSWER:
                prompt, answer = np.split(request.tokens, [request.prompt_length])
                answers[tuple(prompt.tolist())] = answer.tolist()
                request.close()
                running.remove(request)
    return answers


def without_cache(prompt: list[int]) -> list[int]:
    """What the toy answers when it computes everything."""
    tokens = list(prompt)
    for _ in range(ANSWER):
        state = 0
        for token in tokens:
            state = (state * 31 + token) % 1009
        tokens.append(state % 50)
    return tokens[len(prompt) :]


system_prompt = list(range(100, 126))
questions = [[*system_prompt, *range(start, start + 6)] for start in range(0, 48, 6)]
answers = serve(questions)
assert all(answers[tuple(question)] == without_cache(question) for question in questions)
stats = cache.stats()
print(f"{len(answers)} answers, {stats.hits} of {stats.queries} tokens reused")  # 8 answers, 130 of 256 tokens reused
print(f"{stats.preempted_requests} preemptions, {stats.copied_blocks} copies")  # 6 preemptions, 10 copies
print(cache.books().pinned, "blocks are still in use")  # 0 blocks are still in use
cache.check()
