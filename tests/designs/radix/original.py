"""The preset `sglang` beside SGLang's own RadixCache, where its package can be had.

    python -m tests.designs.radix.original --sglang FOLDER [--seed 1] [--histories 200] [--steps 60]

FOLDER holds the unpacked package; the interpreter needs torch (`bench/rivals/sglang.py` makes both). Plays the same
random histories that `test_sglang.py` plays beside the model of the rules, and ends with the first difference.
"""

from __future__ import annotations

import argparse
import sys
import time
from array import array
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from bench.rivals import sglang

from tests.designs.radix.histories import SCOPES, Draw, compare_many
from tests.designs.radix.model_sglang import RANKS, Refused


class Slots:
    """The pool of slots: hands them out in pages, refuses to take one back twice."""

    device = "cpu"

    def __init__(self, page: int, pages: int) -> None:
        self.page = page
        self.free_pages = set(range(1, pages + 1))

    def take(self, pages: int) -> list[int]:
        return [self.free_pages.pop() for _ in range(pages)]

    def free_segment(self, indices: Any, start_pos: int = 0) -> None:
        for page in {int(slot) // self.page for slot in indices}:
            assert page not in self.free_pages, f"page {page} is freed twice"
            self.free_pages.add(page)


class Rows:
    """Which slots a request uses, one row each."""

    def __init__(self, rows: int, width: int, torch: Any) -> None:
        self.req_to_token = torch.zeros((rows, width), dtype=torch.int64)

    def write(self, where: Any, values: Any) -> None:
        self.req_to_token[where] = values


class Original:
    """RadixCache under a pool, driven through the words of our contract."""

    def __init__(self, draw: Draw) -> None:
        import torch
        from sglang.srt.mem_cache.base_prefix_cache import EvictParams, MatchPrefixParams
        from sglang.srt.mem_cache.cache_init_params import CacheInitParams
        from sglang.srt.mem_cache.radix_cache import RadixCache, RadixKey

        self.page, self.ahead = draw.page, draw.ahead
        self.slots = Slots(draw.page, draw.capacity)
        self.rows = Rows(400, 200, torch)
        self.tree = RadixCache(
            CacheInitParams(
                disable=False,
                req_to_token_pool=self.rows,
                token_to_kv_pool_allocator=self.slots,
                page_size=draw.page,
                eviction_policy=draw.policy,
                is_eagle=bool(draw.ahead),
            )
        )
        self._evict, self._match, self._key, self._torch = EvictParams, MatchPrefixParams, RadixKey, torch
        self.live: dict[int, Any] = {}

    def key(self, scope: str, tokens: list[int], limit: int | None = None) -> Any:
        salt = SCOPES[scope].salt
        return self._key(
            array("q", tokens),
            SCOPES[scope].adapter,
            is_bigram=bool(self.ahead),
            limit=limit,
            cache_salt=None if salt is None else str(salt),
        )

    def books(self) -> tuple[int, int]:
        return len(self.slots.free_pages), self.tree.evictable_size() // self.page

    def probe(self, scope: str, tokens: list[int]) -> int:
        return self.found(scope, tokens)[0]

    def found(self, scope: str, tokens: list[int]) -> tuple[int, int]:
        """(tokens cached, of which idle pages) of all but the last token, read off the nodes without a match."""
        key = self.key(scope, tokens, len(tokens) - 1 + self.ahead).page_aligned(self.page)
        node, at, idle = self.tree.root_node, 0, 0
        while at < len(key):
            child = node.children.get(key.child_key_at(at, self.page))
            if child is None:
                break
            common = child.key.match_at(key, at, self.page)
            at += common
            idle += 0 if child.lock_ref else common // self.page
            if common < len(child.key):
                break
            node = child
        return at, idle

    def require(self, need: int) -> None:
        available = sum(self.books())
        if need > available:
            raise Refused(need, available)

    def take(self, pages: int) -> list[int]:
        if pages > len(self.slots.free_pages):
            self.tree.evict(self._evict(num_tokens=(pages - len(self.slots.free_pages)) * self.page))
        return [page * self.page + i for page in self.slots.take(pages) for i in range(self.page)]

    def open(self, name: int, scope: str, tokens: list[int], priority: int, prompt: int | None = None) -> int:
        cached, idle = self.found(scope, tokens)
        fresh = -(-len(tokens) // self.page) - cached // self.page
        self.require(fresh + idle)
        match = self.tree.match_prefix(self._match(key=self.key(scope, tokens, len(tokens) - 1 + self.ahead)))
        assert match.device_prefix_len == cached
        salt = SCOPES[scope].salt
        request = SimpleNamespace(
            full_untruncated_fill_ids=array("q", tokens),
            origin_input_ids=array("q", tokens[: prompt or len(tokens)]),
            extra_key=SCOPES[scope].adapter,
            cache_salt=None if salt is None else str(salt),
            priority=priority,
            lock=self.tree.lock(match.last_device_node),
            last_node=match.last_device_node,
            kv=SimpleNamespace(req_pool_idx=name, cache_protected_len=cached, cache_inserted_len=0, swa_evict_floor=0),
            computed=cached,
            room=-(-len(tokens) // self.page) * self.page,
        )
        row = self.rows.req_to_token[name]
        row[:cached] = self.tree.path_device_indices(match.last_device_node)
        row[cached : request.room] = self._torch.tensor(self.take(fresh), dtype=self._torch.int64)
        self.live[name] = request
        return cached

    def computed(self, name: int, n: int) -> int:
        request = self.live[name]
        request.computed = n
        before = request.kv.cache_protected_len
        row = self.rows.req_to_token[name].clone()
        self.checkpoint(request)
        changed = (row[: request.room] != self.rows.req_to_token[name][: request.room]).nonzero().flatten()
        assert all(int(place) >= before for place in changed)
        return len(changed)

    def checkpoint(self, request: Any) -> None:
        # Its server never checkpoints a key that ends before what the request holds.
        up_to = max(request.computed, request.kv.cache_protected_len + self.ahead)
        self.tree.checkpoint(request, up_to=up_to)

    def append(self, name: int, token: int) -> None:
        request = self.live[name]
        length = len(request.full_untruncated_fill_ids) + 1
        more = -(-(length - request.room) // self.page)
        self.require(max(more, 0))
        if more > 0:
            self.rows.req_to_token[name][request.room : request.room + self.page] = self._torch.tensor(self.take(1))
            request.room += self.page
        request.full_untruncated_fill_ids.append(token)

    def end(self, name: int, how: str) -> None:
        request = self.live.pop(name)
        if how == "close" or (how == "abort" and request.computed >= len(request.origin_input_ids)):
            self.checkpoint(request)
        self.slots.free_segment(self.rows.req_to_token[name][request.kv.cache_protected_len : request.room])
        self.tree.unlock(request.lock)

    def evict(self, pages: int) -> int:
        return int(self.tree.evict(self._evict(num_tokens=pages * self.page)).num_tokens_evicted) // self.page


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sglang", type=Path, required=True, help="folder with the unpacked package")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--histories", type=int, default=200, help="of each policy")
    parser.add_argument("--steps", type=int, default=60)
    arguments = parser.parse_args()
    fault = sglang.load(arguments.sglang)
    if fault:
        sys.exit(f"not compared: {fault}")
    for policy in RANKS:
        start = time.perf_counter()
        compare_many(Original, policy, arguments.seed, arguments.histories, arguments.steps)
        seconds = time.perf_counter() - start
        print(
            f"{policy}: {arguments.histories} histories of {arguments.steps} operations, no difference, {seconds:.0f} s"
        )


if __name__ == "__main__":
    main()
