"""Random histories of the preset `sglang` beside another cache that decides as the original: all answers compared.

The other cache speaks the words of `model_sglang.SGLang`. After every operation its books, and what both find of
every prompt seen so far, must agree: a wrong victim shows as soon as something is probed that should be there.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from prefixcache import NoSpace, PrefixCache, Scope
from tests.designs.radix.model_sglang import Refused

SCOPES = {"": Scope(), "a": Scope(adapter="a"), "s": Scope(adapter="a", salt="s")}


class Other(Protocol):
    def books(self) -> tuple[int, int]: ...
    def probe(self, scope: str, tokens: list[int]) -> int: ...
    def open(self, name: int, scope: str, tokens: list[int], priority: int, prompt: int | None = None) -> int: ...
    def computed(self, name: int, n: int) -> int: ...
    def append(self, name: int, token: int) -> None: ...
    def end(self, name: int, how: str) -> None: ...
    def evict(self, pages: int) -> int: ...


@dataclass(frozen=True)
class Draw:
    """What one history is drawn from."""

    page: int
    capacity: int
    policy: str
    ahead: int
    alphabet: int
    longest: int

    @classmethod
    def from_random(cls, rng: random.Random, policy: str) -> Draw:
        page = rng.choice((1, 1, 2, 4))
        return cls(
            page, rng.choice((8, 16, 30, 60)), policy, int(rng.random() < 0.25), rng.choice((2, 3)), page * 8 + 4
        )


class History:
    def __init__(self, draw: Draw, other: Other, rng: random.Random) -> None:
        self.draw, self.other, self.rng = draw, other, rng
        self.cache = PrefixCache.preset(
            "sglang",
            block_size=draw.page,
            capacity=draw.capacity,
            eviction=draw.policy,
            lookahead=draw.ahead,
        )
        self.live: dict[int, Any] = {}
        self.resting: dict[int, tuple[Any, str, int]] = {}
        self.scope: dict[int, str] = {}
        self.priority: dict[int, int] = {}
        self.owed: dict[int, list[int]] = {}  # what a refused append still owes when its request is resumed
        self.prompts: list[tuple[str, list[int]]] = []
        self.names = 0
        self.log: list[str] = []

    def play(self, steps: int) -> None:
        try:
            for _ in range(steps):
                self.step()
                self.compare()
        except Exception as error:
            error.add_note("\n".join([str(self.draw), *self.log]))
            raise

    def step(self) -> None:
        moves: list[tuple[int, Callable[[], None]]] = [(6, self.open), (1, self.evict)]
        if self.live:
            moves += [(9, self.computed), (4, self.append), (5, self.end)]
        if self.resting:
            moves.append((2, self.resume))
        (move,) = self.rng.choices([m for _, m in moves], [weight for weight, _ in moves])
        move()

    def tokens(self) -> tuple[str, list[int]]:
        rng, draw = self.rng, self.draw
        scope = rng.choice(("", "", "", "a", "s"))
        tokens: list[int] = []
        if self.prompts and rng.random() < 0.8:
            scope, old = rng.choice(self.prompts)
            tokens = old[: rng.randrange(len(old) + 1)] if rng.random() < 0.6 else list(old)
        tokens = tokens + [rng.randrange(draw.alphabet) for _ in range(rng.randrange(1, 2 * draw.page + 4))]
        return scope, tokens[: draw.longest]

    def refused(self, ours: Callable[[], Any], theirs: Callable[[], Any]) -> tuple[Any, Any] | None:
        """Both answers, or None when both refuse for the same reason."""
        try:
            answer = ours()
        except NoSpace as refusal:
            try:
                theirs()
            except Refused as expected:
                assert (refusal.need, refusal.available) == (expected.need, expected.available)
                return None
            raise AssertionError(f"ours refuses ({refusal}), the original does not") from refusal
        return answer, theirs()

    def open(self) -> None:
        scope, tokens = self.tokens()
        self.names += 1
        name, priority = self.names, self.rng.choice((0, 0, 0, 1, 2, -1, 1000))
        self.log.append(f"{name} open {scope!r} {tokens} priority {priority}")
        self.prompts.append((scope, tokens))
        answers = self.refused(
            lambda: self.cache.open(tokens, SCOPES[scope], priority=priority or None),
            lambda: self.other.open(name, scope, tokens, priority),
        )
        if answers:
            request, cached = answers
            assert request.cached == cached, f"cached {request.cached}, the original {cached}"
            self.live[name], self.scope[name], self.priority[name] = request, scope, priority

    def computed(self) -> None:
        name = self.rng.choice(list(self.live))
        request = self.live[name]
        most = request.length
        n = most if self.rng.random() < 0.6 else self.rng.randint(request.computed_tokens, most)
        self.log.append(f"{name} computed {n} of {most}")
        before = request.block_table.tolist()
        request.computed(n)
        present = self.other.computed(name, n)
        moves = request.take_moves()
        table = request.block_table.tolist()
        assert [index for index, _, _ in moves] == [i for i, block in enumerate(before) if table[i] != block]
        assert len(moves) * self.draw.page == present, f"{len(moves)} pages present, the original {present} tokens"

    def append(self) -> None:
        name = self.rng.choice(list(self.live))
        token = self.rng.randrange(self.draw.alphabet)
        self.log.append(f"{name} append {token}")
        request = self.live[name]
        if not self.refused(lambda: request.append(token), lambda: self.other.append(name, token)):
            self.owed[name] = [token]
        else:
            self.owed.pop(name, None)
            self.prompts.append((self.scope[name], request.tokens.tolist()))

    def end(self) -> None:
        name = self.rng.choice(list(self.live))
        how = self.rng.choice(("close", "close", "close", "abort", "preempt"))
        self.log.append(f"{name} {how} at {self.live[name].computed_tokens} of {self.live[name].length}")
        request = self.live.pop(name)
        getattr(request, how)()
        self.other.end(name, how)
        if how == "preempt":
            self.resting[name] = (request, self.scope[name], request.prompt_length)

    def resume(self) -> None:
        name = self.rng.choice(list(self.resting))
        request, scope, prompt = self.resting[name]
        self.log.append(f"{name} resume")
        tokens = request.tokens.tolist() + self.owed.get(name, [])
        answers = self.refused(
            request.resume, lambda: self.other.open(name, scope, tokens, self.priority[name], prompt)
        )
        if answers:
            assert request.cached == answers[1], f"cached {request.cached}, the original {answers[1]}"
            del self.resting[name]
            self.owed.pop(name, None)
            self.live[name] = request

    def evict(self) -> None:
        pages = self.rng.randrange(self.draw.capacity // 2)
        self.log.append(f"evict {pages}")
        ours, theirs = self.cache.evict(pages), self.other.evict(pages)
        assert ours == theirs, f"evicted {ours}, the original {theirs}"

    def compare(self) -> None:
        self.cache.check()
        books = self.cache.books()
        assert (books.free, books.idle) == self.other.books(), f"{books}, the original {self.other.books()}"
        for scope, tokens in self.prompts[-40:]:
            whole = [*tokens, 99]
            ours, theirs = self.cache.probe(whole, SCOPES[scope]).cached, self.other.probe(scope, whole)
            assert ours == theirs, f"finds {ours} of {scope!r} {tokens}, the original {theirs}"


def compare_many(make: Callable[[Draw], Other], policy: str, seed: int, histories: int, steps: int = 60) -> None:
    """Play so many histories; a difference names the seed of its own history and all that led to it."""
    for index in range(histories):
        rng = random.Random(f"{policy} {seed} {index}")
        draw = Draw.from_random(rng, policy)
        try:
            History(draw, make(draw), rng).play(steps)
        except Exception as error:
            error.add_note(f"history {index} of seed {seed} under {policy}")
            raise
