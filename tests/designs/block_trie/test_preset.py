"""The preset `trtllm` under the oracles: no wrong KV, no lost block, and events that say what can be found."""

from __future__ import annotations

import random
from typing import Any

import pytest

from prefixcache import NoSpace, PrefixCache, Request, RequestError, Scope
from prefixcache.scenario.oracle import KVOracle
from tests.model.mirror import Mirror
from tests.model.setup import Clock

FRESH = 4_000_000_000


class History:
    """Random operations on one cache; copies are made late, work in flight writes late."""

    def __init__(self, seed: int) -> None:
        self.random = draw = random.Random(seed)
        self.size, self.capacity = draw.choice((2, 3, 4)), draw.choice((5, 8, 12))
        self.clock = Clock()
        self.cache = PrefixCache.preset("trtllm", block_size=self.size, capacity=self.capacity, clock=self.clock)
        self.oracle = KVOracle(self.size)
        self.mirror = Mirror(self.size, lambda scope, before, tokens: tuple((token, "", 0) for token in tokens))
        self.live: list[Request] = []
        self.preempted: list[Request] = []
        self.unsettled: list[tuple[Request, Any]] = []
        self.pins: list[Any] = []
        self.known: list[tuple[int, ...]] = [(0,)]

    def tokens(self) -> tuple[int, ...]:
        draw = self.random
        base = draw.choice(self.known)
        base = base[: draw.randrange(len(base) + 1)]
        prompt = base + tuple(draw.randrange(2) for _ in range(draw.randrange(2 * self.size) + (not base)))
        self.known.append(prompt)
        return prompt

    def arguments(self) -> dict[str, Any]:
        draw = self.random
        given: dict[str, Any] = {"tokens": list(self.tokens())}
        if draw.random() < 0.5:
            given |= {"priority": draw.choice((0, 20, 35, 60, 100)), "ttl": draw.choice((None, 1.0, 4.0))}
        if draw.random() < 0.2:
            given["decode_priority"] = draw.choice((5, 90))
        if draw.random() < 0.1:
            given["store"] = False
        return given

    def step(self) -> None:
        choices: list[Any] = [self.open] * 5 + [self.evict, self.advance, self.pin, self.unpin, self.settle]
        choices += [self.compute] * 7 + [self.append] * 3 + [self.end] * 5 + [self.fork, self.rewind, self.resume]
        if self.random.random() < 0.02:
            choices = [self.cache.new_generation]
        self.random.choice(choices)()
        self.check()

    def open(self) -> None:
        batch = [self.arguments() for _ in range(1 + self.random.randrange(3))]
        self.live += [request for request in self.cache.open_batch(batch) if isinstance(request, Request)]

    def compute(self) -> None:
        if not self.live:
            return
        request = self.random.choice(self.live)
        if self.random.random() < 0.6:
            self.oracle.copy(request.copies)
            request.copied()
        length = request.computed_tokens + self.random.randrange(request.length - request.computed_tokens + 1)
        waiting = {copy.source for other in self.live for copy in other.copies}
        waiting |= {copy.source for _, copies in self.unsettled for copy in copies}
        if request.copies or waiting.intersection(request.block_table.tolist()):
            with pytest.raises(RequestError):
                request.computed(length)
            return
        self.oracle.write(request, request.computed_tokens, length)
        request.computed(length)

    def append(self) -> None:
        if self.live:
            request = self.random.choice(self.live)
            try:
                request.append([self.random.randrange(2) for _ in range(1 + self.random.randrange(self.size))])
            except NoSpace:
                return
            self.known.append(tuple(request.tokens.tolist()))

    def fork(self) -> None:
        ready = [request for request in self.live if not request.copies]
        if ready:
            try:
                self.live.append(self.random.choice(ready).fork())
            except NoSpace:
                return

    def rewind(self) -> None:
        if self.live:
            request = self.random.choice(self.live)
            try:
                request.rewind(1 + self.random.randrange(request.length))
            except NoSpace:
                return

    def end(self) -> None:
        if not self.live:
            return
        request = self.live.pop(self.random.randrange(len(self.live)))
        how, in_flight = self.random.choice(("close", "abort", "preempt")), self.random.random() < 0.3
        copies = request.copies
        getattr(request, how)(in_flight=in_flight)
        if in_flight:
            self.unsettled.append((request, copies))
        elif how == "preempt":
            self.preempted.append(request)

    def settle(self) -> None:
        if self.unsettled:
            request, copies = self.unsettled.pop(self.random.randrange(len(self.unsettled)))
            self.oracle.copy(copies)
            request.settled()

    def resume(self) -> None:
        if self.preempted:
            request = self.preempted.pop(self.random.randrange(len(self.preempted)))
            try:
                self.live.append(request.resume())
            except NoSpace:
                self.preempted.append(request)

    def pin(self) -> None:
        self.pins.append(self.cache.pin(list(self.tokens())))

    def unpin(self) -> None:
        if self.pins:
            self.pins.pop().release()

    def evict(self) -> None:
        self.cache.evict(self.random.randrange(self.capacity))

    def advance(self) -> None:
        self.clock.now += self.random.choice((0.5, 2.0))

    def check(self) -> None:
        unreachable = self.cache.check()
        books = self.cache.books()
        assert books.free + books.idle + books.pinned + books.quarantined == self.capacity
        self.mirror.apply(*self.cache.take_events())
        found = self.mirror.prefixes()
        assert len(found) + len(unreachable) == sum(1 for _ in self.cache._core.design.blocks()) - self.stale()
        for _, generation, units in found:
            assert generation == self.cache.generation
            tokens = [token for token, _, _ in units]
            assert self.cache.probe([*tokens, FRESH]).cached == len(tokens), "stored, and not found"
        for prompt in self.random.sample(self.known, min(5, len(self.known))):
            best = max((common([u[0] for u in units], prompt) for _, _, units in found), default=0)
            hit = self.cache.probe([*prompt, FRESH]).cached
            assert hit == best or (unreachable and hit < best), "a hole ends the way; else the longest is found"
        for request in self.live:
            if not request.copies:
                self.oracle.verify(request, request.computed_tokens)

    def stale(self) -> int:
        """Blocks of old weights that can be reached from their own root, which no prompt names any more."""
        trie: Any = self.cache._core.design._trie
        old = [root for root in trie.roots.values() if root.scope.generation != self.cache.generation]
        return sum(len(run.blocks) for root in old for run in trie.reachable(root))

    def finish(self) -> None:
        for request in self.live:
            request.abort()
        for request, _ in self.unsettled:
            request.settled()
        for pin in self.pins:
            pin.release()
        self.cache.evict(self.capacity)
        self.cache.check()
        assert self.cache.books().free == self.capacity
        self.mirror.apply(*self.cache.take_events())
        assert not self.mirror.entries


def common(left: list[int], right: tuple[int, ...]) -> int:
    return next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))


@pytest.mark.parametrize("part", range(6))
def test_random_histories_keep_kv_blocks_and_events_right(part: int, seed: int) -> None:
    for number in range(15):
        history = History(seed + 1000 * part + number)
        for _ in range(70):
            history.step()
        history.finish()


def run(cache: PrefixCache, tokens: list[int], **given: Any) -> Request:
    request = cache.open(tokens, **given)
    request.copied()
    request.computed(len(tokens))
    request.close()
    return request


def priorities(cache: PrefixCache) -> list[int]:
    """Of the cached blocks of one chain, from inside the design."""
    design: Any = cache._core.design
    return [run.priority for run in design._trie.runs() for _ in run.blocks]


def make(capacity: int = 16, **changes: Any) -> PrefixCache:
    return PrefixCache.preset("trtllm", block_size=4, capacity=capacity, **changes)


def test_an_evicted_inner_block_hides_what_lies_behind_until_it_is_there_again() -> None:
    cache = make(capacity=5)
    prompt = list(range(13))
    run(cache, prompt, priority=[(0, 4, 50, None), (4, 8, 10, None), (8, None, 50, None)])
    assert cache.probe([*prompt, 99]).cached == 12
    cache.take_events()
    assert cache.evict(1) == 1
    assert cache.probe([*prompt, 99]).cached == 4
    (hidden,) = cache.check()
    assert cache.books().idle == 2, "what cannot be reached is idle all the same"
    (removed,) = cache.take_events()[2]
    assert len(removed.keys) == 2, "the evicted block, and the one behind it"
    run(cache, prompt[:9])
    assert cache.check() == ()
    assert cache.probe([*prompt, 99]).cached == 12
    stored = cache.take_events()[2]
    assert [len(event.keys) for event in stored] == [1, 1]
    assert hidden in cache.open([*prompt, 99]).block_table


def test_an_own_copy_stays_until_the_release_and_goes_back_then() -> None:
    cache = make()
    first, second = cache.open_batch([{"tokens": range(9)}, {"tokens": range(9)}])
    assert isinstance(first, Request) and isinstance(second, Request)
    first.computed(9)
    table = second.block_table.tolist()
    second.computed(9)
    assert second.take_moves() == ()
    assert second.block_table.tolist() == table
    assert cache.stats().duplicate_blocks == 2
    second.close()
    assert cache.books().idle == 0
    first.close()
    assert (cache.books().idle, cache.books().free) == (2, 14)


def test_old_weights_leave_first_whatever_their_priority() -> None:
    cache = make(capacity=8)
    request = cache.open(range(9), priority=100)
    old = set(request.block_table.tolist()[:2])
    request.computed(9)
    request.close()
    cache.new_generation()
    assert cache.probe([*range(8), 99]).cached == 0
    assert set(cache.open(range(20, 25)).block_table.tolist()) == old


def test_a_late_finisher_of_old_weights_publishes_nothing() -> None:
    cache = make()
    request = cache.open(range(9))
    cache.new_generation()
    request.computed(9)
    request.close()
    assert cache.books().free == 16


def test_the_reuser_waits_until_the_others_have_copied() -> None:
    cache = make()
    run(cache, list(range(7)))
    first, second = cache.open_batch([{"tokens": [0, 1, 2, 3, 4, 10]}, {"tokens": [0, 1, 2, 3, 4, 20]}])
    assert isinstance(first, Request) and isinstance(second, Request)
    assert (len(first.copies), len(second.copies)) == (1, 0)
    assert first.copies[0].source == second.block_table[1]
    with pytest.raises(RequestError, match="copy"):
        second.computed(6)
    first.copied()
    second.computed(6)
    first.computed(6)


def test_scopes_with_and_without_extra_ids_are_different() -> None:
    cache = make()
    run(cache, list(range(9)), extra_ids=[0] * 9)
    assert cache.probe([*range(8), 99]).cached == 0
    assert cache.probe([*range(8), 99], extra_ids=[0] * 9).cached == 8
    assert cache.probe([*range(8), 99], Scope(salt=0), extra_ids=[0] * 9).cached == 0


def test_the_retention_of_a_block_is_that_of_its_first_token() -> None:
    cache = PrefixCache.preset("trtllm", block_size=32, capacity=4)
    run(cache, list(range(128)), priority=[(0, 63, 80, None), (63, 127, 30, None)])
    assert priorities(cache) == [80, 80, 30, 30]
    other = PrefixCache.preset("trtllm", block_size=32, capacity=4)
    run(other, list(range(128)), priority=[(0, 1, 80, None), (1, 2, 5, None)])
    assert priorities(other) == [80, 35, 35, 35]


def test_requests_are_counted_in_blocks() -> None:
    cache = make()
    first = run(cache, list(range(9))).stats
    assert (first.allocated, first.new, first.reused, first.missed, first.hit_rate) == (3, 3, 0, 3, 0.0)
    again = run(cache, list(range(9))).stats
    assert (again.allocated, again.new, again.reused, again.missed, again.hit_rate) == (1, 1, 2, 1, 2 / 3)
    stats = cache.stats()
    assert (stats.reused_blocks, stats.missed_blocks, stats.reuse_rate) == (2, 4, 2 / 6)


def test_generated_blocks_are_counted_apart() -> None:
    cache = make()
    request = cache.open(range(8))
    request.computed(8)
    assert (request.stats.allocated, request.stats.generated) == (2, 0)
    request.append(8)
    assert (request.stats.allocated, request.stats.new, request.stats.generated) == (3, 3, 1)


def test_nothing_may_be_said_to_be_computed() -> None:
    request = make().open([1], reserve=0)
    request.computed(0)
    assert (request.computed_tokens, request.stats.allocated) == (0, 0)
