"""The preset trtllm-v2 against a model of the rules, on random histories; and each rule, once removed, is missed."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from prefixcache import Cleared, NoSpace, PrefixCache, Removed, Scope, Stored
from prefixcache.blocks.eviction.lru import LRU
from prefixcache.designs.digest_chain.design import DigestChainDesign
from prefixcache.designs.digest_chain.tree import DigestTree
from prefixcache.designs.digest_chain.uses import Uses
from tests.designs.digest_chain.model_v2 import DEFAULT_PRIORITY, ModelV2, Refused
from tests.model.setup import Clock

SALTS = (None, "a")
TTLS = (None, None, 1.0, 2.0, 5.0)


class Mirror:
    """The prefixes that the events leave findable."""

    def __init__(self, cache: PrefixCache) -> None:
        self.cache = cache
        self.prefixes: dict[bytes, tuple[Any, tuple[int, ...]]] = {}

    def read(self) -> set[tuple[Any, tuple[int, ...]]]:
        size = self.cache.block_size
        for event in self.cache.take_events()[2]:
            if isinstance(event, Stored):
                before = self.prefixes[event.parent][1] if event.parent is not None else ()
                for i, key in enumerate(event.keys):
                    assert key not in self.prefixes
                    self.prefixes[key] = (event.scope.salt, before + event.tokens[: (i + 1) * size])
            elif isinstance(event, Removed):
                for key in event.keys:
                    del self.prefixes[key]
            elif isinstance(event, Cleared):
                self.prefixes.clear()
        found = set(self.prefixes.values())
        assert len(found) == len(self.prefixes)
        return found


class Pair:
    """The cache and the model, told the same and compared after each operation."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.size = rng.choice([1, 2, 3, 4])
        capacity = rng.choice([5, 8, 14, 30])
        child_limit = rng.choice([2, 3, 4, 32])
        self.alphabet = rng.choice([2, 2, 3, 6])
        self.most = rng.choice([6, 10, 16])
        self.retains = rng.random() < 0.5
        self.clock = Clock()
        self.cache = PrefixCache.preset(
            "trtllm-v2", block_size=self.size, capacity=capacity, child_limit=child_limit, clock=self.clock
        )
        self.model = ModelV2(self.size, capacity, child_limit)
        self.model.now = self.clock.now
        self.mirror = Mirror(self.cache)
        self.live: list[tuple[Any, Any]] = []
        self.known: list[list[int]] = [[1]]

    def prompt(self) -> list[int]:
        rng = self.rng
        old = rng.choice(self.known)
        tokens = old[: rng.randint(0, len(old))] if rng.random() < 0.8 else []
        more = rng.randint(0 if tokens else 1, self.most)
        tokens = tokens + [rng.randrange(1, 1 + self.alphabet) for _ in range(more)]
        self.known.append(tokens)
        return tokens

    def step(self) -> None:
        rng = self.rng
        names = ["open", "computed", "append", "close", "evict", "copied", "advance"]
        name = rng.choices(names, [5, 5, 2, 4, 1, 2, 2])[0]
        getattr(self, f"do_{name}")()
        self.compare()

    def do_open(self) -> None:
        tokens, salt = self.prompt(), self.rng.choice(SALTS)
        ranges: list[tuple[int, int | None, int, float | None]] = []
        if self.retains:
            edges = sorted({0, *(self.rng.randrange(1, len(tokens) + 1) for _ in range(self.rng.randint(0, 2)))})
            for start, end in zip(edges, [*edges[1:], None], strict=True):
                ranges.append((start, end, self.rng.choice([10, DEFAULT_PRIORITY, 80]), self.rng.choice(TTLS)))
        assert self.cache.probe(tokens, Scope(salt=salt)).cached == self.model.probe(salt, tokens)
        # Ranges end with the prompt; what is generated behind it has a priority of its own.
        wishes = [(start, level, ttl) for start, _, level, ttl in ranges]
        decode, decode_ttl = (self.rng.choice([10, 80]), self.rng.choice(TTLS)) if ranges else (None, None)
        if decode is not None:
            wishes.append((len(tokens), decode, decode_ttl))
        try:
            sequence = self.model.open(salt, tokens, wishes)
        except Refused:
            with pytest.raises(NoSpace):
                self.cache.open(tokens, Scope(salt=salt))
            return
        request = self.cache.open(
            tokens, Scope(salt=salt), priority=ranges or None, decode_priority=decode, decode_ttl=decode_ttl
        )
        assert request.cached == sequence.computed
        self.live.append((request, sequence))

    def do_computed(self) -> None:
        if self.live:
            request, sequence = self.rng.choice(self.live)
            self.copy(request, sequence)
            table = set(request.block_table.tolist())
            for other in self.live:
                if any(copy.source in table for copy in other[0].copies):
                    self.copy(*other)  # contract: nothing is computed where a copy is still to be made
            n = self.rng.randint(sequence.computed, len(sequence.tokens))
            request.computed(n)
            self.model.computed(sequence, n)

    def do_append(self) -> None:
        if self.live:
            request, sequence = self.rng.choice(self.live)
            tokens = [self.rng.randrange(1, 1 + self.alphabet) for _ in range(self.rng.randint(1, 3))]
            try:
                self.model.append(sequence, tokens)
            except Refused:
                with pytest.raises(NoSpace):
                    request.append(tokens)
                return
            request.append(tokens)
            self.known.append(list(sequence.tokens))

    def do_close(self) -> None:
        if self.live:
            pair = self.rng.choice(self.live)
            self.live.remove(pair)
            request, sequence = pair
            request.close()
            self.model.close(sequence)

    def do_evict(self) -> None:
        count = self.rng.randint(0, 4)
        assert self.cache.evict(count) == self.model.evict(count)

    def do_advance(self) -> None:
        self.clock.now += self.rng.choice([0.5, 1.0, 3.0])
        self.model.now = self.clock.now

    def do_copied(self) -> None:
        if self.live:
            self.copy(*self.rng.choice(self.live))

    def copy(self, request: Any, sequence: Any) -> None:
        request.copied()
        self.model.copied(sequence)

    def compare(self) -> None:
        self.cache.check()
        books = self.cache.books()
        assert (books.free, books.idle, books.pinned) == self.model.books()
        assert self.mirror.read() == self.model.prefixes()
        for tokens in self.rng.sample(self.known, min(4, len(self.known))):
            for salt in SALTS:
                assert self.cache.probe(tokens, Scope(salt=salt)).cached == self.model.probe(salt, tokens)


def histories(seed: object, count: int, steps: int = 60) -> None:
    for number in range(count):
        pair = Pair(random.Random(f"{seed} {number}"))
        try:
            for _ in range(steps):
                pair.step()
        except Exception as error:
            error.add_note(f"history {number} of seed {seed}")
            raise


@pytest.mark.parametrize("part", range(8))
def test_the_preset_decides_as_the_rules_say(seed: int, part: int) -> None:
    histories(f"{seed} {part}", 60)


# -- each rule removed: the comparison must notice ----------------------------------------------------------


def no_child_limit(patch: pytest.MonkeyPatch) -> None:
    behind = DigestChainDesign._behind

    def unlimited(self: Any, prompt: Any, limit: int, match: Any) -> Any:
        return behind(_With(self, child_limit=None), prompt, limit, match)

    patch.setattr(DigestChainDesign, "_behind", unlimited)


class _With:
    """A design with other options."""

    def __init__(self, design: Any, **options: Any) -> None:
        self._design = design
        self.options = _Options(design.options, options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._design, name)


class _Options:
    def __init__(self, options: Any, changes: dict[str, Any]) -> None:
        self._options, self._changes = options, changes

    def __getattr__(self, name: str) -> Any:
        return self._changes[name] if name in self._changes else getattr(self._options, name)


def limit_hides_exact_tails(patch: pytest.MonkeyPatch) -> None:
    behind = DigestChainDesign._behind

    def strict(self: Any, prompt: Any, limit: int, match: Any) -> Any:
        node, inside, _ = match.anchor
        siblings = 1 if inside is not None else len(node.children)
        return None if siblings >= self.options.child_limit else behind(self, prompt, limit, match)

    patch.setattr(DigestChainDesign, "_behind", strict)


def last_inserted_wins_ties(patch: pytest.MonkeyPatch) -> None:
    best_child = DigestTree.best_child

    def last(self: Any, node: Any, text: bytes, extras: Any) -> Any:
        found = best_child(self, node, text, extras)
        if found is None:
            return None
        most = len(text) // 4
        return next(
            (child, found[1])
            for child in reversed(list(node.children.values()))
            if self.common(child, 0, text, extras, 0, most) == found[1]
        )

    patch.setattr(DigestTree, "best_child", last)


def covered_tails_are_stored(patch: pytest.MonkeyPatch) -> None:
    append_tail = DigestChainDesign._append_tail

    def uncovered(self: Any, holding: Any, length: int) -> None:
        tree = self._tree
        best_child = tree.best_child
        tree.best_child = lambda *arguments: None
        try:
            append_tail(self, holding, length)
        finally:
            tree.best_child = best_child

    patch.setattr(DigestChainDesign, "_append_tail", uncovered)


def shorter_tails_stay(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DigestChainDesign, "_replace_tail", lambda *arguments: None)


def tails_are_not_stored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DigestChainDesign, "_append_tail", lambda *arguments: None)


def leaves_first(patch: pytest.MonkeyPatch) -> None:
    init = DigestChainDesign.__init__

    def tail_only(self: Any, block_size: int, pool: Any, options: Any, *rest: Any) -> None:
        init(self, block_size, pool, _Options(options, {"evict_unit": "tail"}), *rest)

    patch.setattr(DigestChainDesign, "__init__", tail_only)


def priorities_do_not_matter(patch: pytest.MonkeyPatch) -> None:
    init = DigestChainDesign.__init__

    def by_age(self: Any, block_size: int, pool: Any, options: Any, eviction: Any, *rest: Any) -> None:
        init(self, block_size, pool, options, LRU, *rest)

    patch.setattr(DigestChainDesign, "__init__", by_age)


def victims_are_dropped_one_by_one(patch: pytest.MonkeyPatch) -> None:
    together = DigestChainDesign._evict_subtrees

    def single(self: Any, blocks: int) -> int:
        gone = 0
        while gone < blocks and self.idle:
            gone += together(self, 1)
        return gone

    patch.setattr(DigestChainDesign, "_evict_subtrees", single)


def a_copy_is_no_use_of_its_source(patch: pytest.MonkeyPatch) -> None:
    def drop(self: Any, handle: Any) -> None:
        before = handle.node.last_access
        self.pool.give(self._uses.unpin(handle.node))
        handle.node.last_access = before
        self._uses.items.rerank(handle.node)

    patch.setattr(DigestChainDesign, "drop", drop)


def nothing_expires(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Uses, "expire", lambda self: None)


def expired_count_as_just_used(patch: pytest.MonkeyPatch) -> None:
    def expire(self: Any) -> None:
        for node in self._deadlines.due(self._clock()):
            self.begin()
            node.priority, node.ttl, node.last_access = DEFAULT_PRIORITY, None, self.tick
            self.items.rerank(node)

    patch.setattr(Uses, "expire", expire)


RULES: list[Callable[[pytest.MonkeyPatch], None]] = [
    no_child_limit,
    limit_hides_exact_tails,
    last_inserted_wins_ties,
    covered_tails_are_stored,
    shorter_tails_stay,
    tails_are_not_stored,
    leaves_first,
    priorities_do_not_matter,
    victims_are_dropped_one_by_one,
    a_copy_is_no_use_of_its_source,
    nothing_expires,
    expired_count_as_just_used,
]


@pytest.mark.parametrize("broken", RULES, ids=lambda rule: rule.__name__)
def test_a_rule_that_is_broken_is_noticed(seed: int, broken: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch)
    with pytest.raises(Exception):  # noqa: B017 - a comparison, an invariant or an event out of place
        histories(seed, 400)
