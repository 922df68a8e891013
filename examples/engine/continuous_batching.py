"""Many prompts at once: submit, step, cancel. What a server does, without the server.

Run it with `python examples/engine/continuous_batching.py`; it needs the extra `prefixcache[engine]`.
"""

from __future__ import annotations

from prefixcache.engine import Engine, SamplingParams, load

model, tokenizer = load("random-llama")
engine = Engine(model, tokenizer, design="hash_chain", block_size=16, memory=2**28, step_tokens=128)

document = list(range(3, 253)) * 2  # 500 tokens that all prompts begin with
params = SamplingParams(max_tokens=8, temperature=0.8, seed=1, ignore_eos=True)
jobs = [engine.submit([*document, 7, question], params) for question in (10, 20, 30)]

# One step runs at most 128 tokens: a token of everyone who decodes, and a chunk of one prompt.
steps = 0
while not engine.idle:
    for delta in engine.step():
        if delta.job is jobs[1] and not delta.job.finished:
            engine.cancel(jobs[1])  # from any thread, at any point
    steps += 1

print([job.completions[0].finish_reason for job in jobs])  # ['length', 'cancelled', 'length']
print([job.cached_tokens for job in jobs])  # [0, 496, 496]
print(sum(len(job.tokens) for job in jobs), "prompt tokens")  # 1506 prompt tokens
print(engine.computed_tokens, "run, those of the answers included")  # 528 run, those of the answers included
print(engine.cache.books().pinned)  # 0
