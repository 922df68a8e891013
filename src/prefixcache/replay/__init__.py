"""The laboratory on paper: traces in, what each design would have reused out; no model and no memory.

trace = read_trace("trace.jsonl.zst")          # or built_in("chat", seed=7)
compared = compare(trace, [Setup("radix", 1, 4_000_000), Setup("hash_chain", 16, None)])
for row in compared.rows:
    print(row.design, row.hit_tokens / row.prompt_tokens, row.losses)
"""

from prefixcache.replay.losses import Losses
from prefixcache.replay.results import Comparison, Example, Row
from prefixcache.replay.setups import Setup
from prefixcache.replay.simulate import compare
from prefixcache.replay.traces import Trace, TraceError, TraceRequest, read_trace
from prefixcache.replay.workloads import built_in

__all__ = [
    "Comparison",
    "Example",
    "Losses",
    "Row",
    "Setup",
    "Trace",
    "TraceError",
    "TraceRequest",
    "built_in",
    "compare",
    "read_trace",
]
