"""Shared prefixes for free on a model of transformers.

Run it with `python examples/engine/three_lines.py`; it needs the extra `prefixcache[engine]`.
"""

from __future__ import annotations

from prefixcache.engine import CachedModel, load

# In your program: AutoModelForCausalLM.from_pretrained(...) and AutoTokenizer.from_pretrained(...).
model, tokenizer = load("random-llama")

cached = CachedModel(model, tokenizer, memory=2**28)
policy = "You answer questions about flights. " * 20
answers = cached.generate([policy + question for question in ("When?", "Where to?", "How much?")], max_new_tokens=4)
print(len(answers))  # 3

# The policy was computed once: 720 bytes, which are the tokens of this tokenizer, less what does not fill a block.
stats = cached.engine.cache.stats()
print(stats.hits, "of", stats.prompt_tokens)  # 1440 of 2186

# The second time only the end of each prompt is computed. Arguments are those of transformers' generate; one that
# cannot be honoured, such as num_beams=4, is refused by name.
before = cached.engine.computed_tokens
cached.generate(policy + "When?", max_new_tokens=1)
print(cached.engine.computed_tokens - before)  # 6
