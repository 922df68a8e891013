"""Random histories played on the preset `trtllm` and on the model of the original's rules, side by side."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from prefixcache import Media, NoSpace, PrefixCache, Scope
from tests.designs.block_trie.model_trtllm import Asked, Live, Model, Refused
from tests.model.setup import Clock

SCOPES = ({}, {"salt": "s"}, {"adapter": 0})


@dataclass(frozen=True)
class Prompt:
    """Tokens with what they carry. `pictures` are (first token, end token, digest)."""

    tokens: tuple[int, ...]
    scope: int = 0
    ids: tuple[int, ...] | None = None
    pictures: tuple[tuple[int, int, str], ...] = ()

    def keys(self, count: int, size: int) -> list[tuple[Any, ...]]:
        ids = self.ids if self.ids is not None else (0,) * len(self.tokens)
        keys = []
        for start in range(0, max(count, 0), size):
            end = min(start + size, count)
            media = tuple(
                (max(a, start) - start, min(b, end) - start, digest, max(a, start) - a)
                for a, b, digest in self.pictures
                if a < end and b > start
            )
            pairs = tuple(zip(self.tokens[start:end], ids[start:end], strict=True))
            keys.append(((self.scope, self.ids is not None), pairs, media))
        return keys

    def arguments(self) -> dict[str, Any]:
        media = [Media(digest, a, b - a) for a, b, digest in self.pictures]
        return {
            "tokens": list(self.tokens),
            "scope": Scope(**SCOPES[self.scope]),
            "media": media,
            "extra_ids": self.ids,
        }

    def then(self, tokens: tuple[int, ...]) -> Prompt:
        ids = None if self.ids is None else self.ids + (0,) * len(tokens)
        return Prompt(self.tokens + tokens, self.scope, ids, self.pictures)

    def cut(self, length: int) -> Prompt:
        ids = None if self.ids is None else self.ids[:length]
        pictures = tuple((a, min(b, length), digest) for a, b, digest in self.pictures if a < length)
        return Prompt(self.tokens[:length], self.scope, ids, pictures)


@dataclass
class Pair:
    """One request in the cache and in the model."""

    request: Any
    live: Live


@dataclass
class Play:
    seed: int
    size: int
    capacity: int
    random: random.Random = field(init=False)
    log: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.clock = Clock()
        self.cache = PrefixCache.preset("trtllm", block_size=self.size, capacity=self.capacity, clock=self.clock)
        self.model = Model(self.size, self.capacity)
        self.model.now = self.clock.now
        self.pairs: list[Pair] = []
        self.known: list[Prompt] = []

    # What is drawn

    def prompt(self) -> Prompt:
        draw = self.random
        base = Prompt((), draw.choice((0, 0, 0, 1, 2)), () if draw.random() < 0.15 else None)
        if self.known and draw.random() < 0.8:
            base = draw.choice(self.known)
            base = base.cut(draw.randrange(len(base.tokens) + 1))
        if draw.random() < 0.12:
            start, count = len(base.tokens), 1 + draw.randrange(self.size + 1)
            base = base.then(tuple(draw.randrange(2) for _ in range(count)))
            base = Prompt(
                base.tokens, base.scope, base.ids, (*base.pictures, (start, start + count, draw.choice("ab")))
            )
        base = base.then(tuple(draw.randrange(2) for _ in range(draw.randrange(2 * self.size + 1))))
        if not base.tokens:
            base = base.then((0,))
        if base.ids is not None and draw.random() < 0.5:
            ids = list(base.ids)
            ids[draw.randrange(len(ids))] = draw.randrange(2)
            base = Prompt(base.tokens, base.scope, tuple(ids), base.pictures)
        self.known.append(base)
        return base

    def retention(self, length: int) -> dict[str, Any]:
        draw = self.random
        kind = draw.randrange(6)
        level, ttl = draw.choice((0, 20, 35, 50, 80, 100)), draw.choice((None, 1.0, 2.0, 5.0))
        if kind < 3:
            return {}
        if kind == 3:
            return {"priority": level, "ttl": ttl}
        if kind == 4:
            edge = 1 + draw.randrange(length)
            given: dict[str, Any] = {"priority": [(0, edge, level, ttl), (edge, None, draw.choice((10, 60)), None)]}
            return given | ({"decode_priority": 90, "decode_ttl": 3.0} if draw.randrange(2) else {})
        return {"decode_priority": level, "decode_ttl": ttl}

    def asked(self, prompt: Prompt, given: dict[str, Any]) -> Asked:
        length = len(prompt.tokens)

        def terms(position: int) -> tuple[int | None, float | None]:
            priority, ttl = given.get("priority"), given.get("ttl")
            ranges = [(0, None, priority, ttl)] if isinstance(priority, int) else priority or []
            if position >= length:
                if "decode_priority" in given:
                    return given["decode_priority"], given.get("decode_ttl")
                return (priority, ttl) if isinstance(priority, int) else (None, None)
            for start, end, level, seconds in ranges:
                if start <= position and (end is None or position < end):
                    return level, seconds
            return None, None

        return Asked(prompt, terms, length)

    # What is done

    def step(self) -> None:
        draw = self.random
        choices = [self.open] * 4 + [self.batch] * 2 + [self.evict, self.advance, self.probe]
        if self.pairs:
            choices += [self.compute] * 7 + [self.copied] * 3 + [self.append] * 3 + [self.close] * 6 + [self.rewind]
        action = draw.choice(choices)
        self.log.append(action.__name__)
        action()
        self.compare()

    def open(self) -> None:
        self._open([self.prompt()], batch=False)

    def batch(self) -> None:
        self._open([self.prompt() for _ in range(1 + self.random.randrange(4))], batch=True)

    def _open(self, prompts: list[Prompt], batch: bool) -> None:
        givens = [self.retention(len(prompt.tokens)) for prompt in prompts]
        self.log[-1] += f" {list(zip(prompts, givens, strict=True))}"
        planned = self.cache.plan([p.arguments() for p in prompts]) if batch else None
        lives = self.model.open_batch([self.asked(p, g) for p, g in zip(prompts, givens, strict=True)])
        arguments = [p.arguments() | g for p, g in zip(prompts, givens, strict=True)]
        if batch:
            requests = self.cache.open_batch(arguments)
        else:
            try:
                requests = [self.cache.open(**arguments[0])]
            except NoSpace as refusal:
                requests = [refusal]
        got = [None if isinstance(r, NoSpace) else r.cached for r in requests]
        assert got == [None if live is None else live.cached for live in lives], (got, lives)
        if planned is not None:
            estimated = [plan.cached if plan.fits else None for plan in planned]
            assert estimated == got, f"planned {planned}, got {got}"
        for request, live in zip(requests, lives, strict=True):
            if live is not None:
                self.pairs.append(Pair(request, live))
                stats = request.stats
                counted = (stats.allocated, stats.new, stats.reused, stats.missed)
                expected = (live.allocated, live.new, live.reused, live.missed)
                assert counted == expected, f"allocated, new, reused, missed: {counted}, the rules say {expected}"

    def _some(self) -> Pair:
        pair = self.random.choice(self.pairs)
        self.log[-1] += f" {pair.request.id}"
        return pair

    def copied(self) -> None:
        pair = self._some()
        self._copied(pair)

    def _copied(self, pair: Pair) -> None:
        pair.request.copied()
        self.model.copied(pair.live)

    def compute(self) -> None:
        pair = self._some()
        self._copied(pair)
        if self._awaited(pair):
            return  # the contract lets nobody write what others have yet to copy
        left = pair.live.length - pair.live.computed
        length = pair.live.computed + (left if self.random.randrange(2) else self.random.randrange(left + 1))
        self.log[-1] += f" to {length}"
        self.model.run(pair.live, length)
        pair.request.computed(length)

    def _awaited(self, pair: Pair) -> bool:
        waiting = {source for other in self.pairs for source, _ in other.live.copies}
        return bool(waiting.intersection(pair.live.table))

    def append(self) -> None:
        pair = self._some()
        tokens = tuple(self.random.randrange(2) for _ in range(1 + self.random.randrange(self.size + 1)))
        try:
            self.model.append(pair.live, len(tokens))
        except Refused:
            try:
                pair.request.append(list(tokens))
            except NoSpace:
                return
            raise AssertionError("the model has no room") from None
        pair.request.append(list(tokens))
        prompt = pair.live.asked.prompt.then(tokens)
        pair.live.asked.prompt = prompt
        self.known.append(prompt)

    def rewind(self) -> None:
        pair = self._some()
        live = pair.live
        length = 1 + self.random.randrange(live.length)
        block = live.table[length // self.size] if length % self.size else None
        if live.copies or self._awaited(pair) or (block is not None and block.node is not None):
            return
        self.log[-1] += f" to {length}"
        self.model.rewind(live, length)
        live.asked.prompt = live.asked.prompt.cut(length)
        pair.request.rewind(length)

    def close(self) -> None:
        pair = self._some()
        if self._awaited(pair):
            return  # nor publish it
        self.pairs.remove(pair)
        self.model.close(pair.live)
        pair.request.close()

    def evict(self) -> None:
        count = self.random.randrange(self.capacity // 2 + 1)
        self.log[-1] += f" {count}"
        assert self.cache.evict(count) == self.model.evict(count)

    def advance(self) -> None:
        self.clock.now += self.random.choice((0.5, 1.0, 3.0))
        self.model.now = self.clock.now

    def probe(self) -> None:
        prompt = self.prompt()
        assert self.cache.probe(**prompt.arguments()).cached == self.model.probe(self.asked(prompt, {}))

    # What must agree

    def compare(self) -> None:
        self.cache.check()
        books = self.cache.books()
        assert (books.free, books.idle, books.pinned) == self.model.books(), (books, self.model.books())
        for pair in self.pairs:
            table = [block.id for block in pair.live.table]
            assert pair.request.block_table.tolist() == table, (pair.request, table)
        for prompt in self.random.sample(self.known, min(6, len(self.known))):
            found = self.cache.probe(**prompt.arguments()).cached
            expected = self.model.probe(self.asked(prompt, {}))
            assert found == expected, f"{prompt}: {found}, the rules say {expected}"
        assert self.stored() == {
            block: tuple(token for key in path for token, _ in key[1]) for block, path in self.model.stored().items()
        }

    def stored(self) -> dict[int, tuple[int, ...]]:
        """Every cached block with the tokens of its prefix, from inside the design."""
        design: Any = self.cache._core.design
        found = {}
        for run in design._trie.runs():
            whole = b"".join(above.tokens for above in design._uses.path(run))
            tokens = memoryview(whole).cast("I").tolist()
            for i, block in enumerate(run.blocks):
                found[block] = tuple(tokens[: min(run.start + (i + 1) * self.size, run.end)])
        return found


def play(seed: int, steps: int) -> None:
    """One history; a failure tells its seed and what was done."""
    chosen = random.Random(f"setup {seed}")
    history = Play(seed, chosen.choice((2, 3, 4)), chosen.choice((4, 6, 9, 14)))
    try:
        for _ in range(steps):
            history.step()
    except Exception as error:
        error.add_note(f"seed {seed}, size {history.size}, capacity {history.capacity}:\n" + "\n".join(history.log))
        raise
