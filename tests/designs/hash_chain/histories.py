"""Random histories of a vLLM preset beside the model of its rules: every answer, table and book compared."""

from __future__ import annotations

import random
from typing import Any

from prefixcache import NoSpace, PrefixCache
from tests.designs.hash_chain.model_vllm import V0, V1, Allocator, Refused, Sequence

MODELS: dict[str, type[Allocator]] = {"vllm-0.8.5": V0, "vllm-1": V1}
FRESH = 99


class History:
    """One cache and one model, from the same dice.

    Args:
        preset: which one.
        dice: where everything random comes from.
        changes: options that break the preset, for controls.
    """

    def __init__(self, preset: str, dice: random.Random, **changes: Any) -> None:
        self.dice, self.size, self.capacity = dice, dice.choice((1, 2, 3, 4)), dice.choice((5, 8, 12, 20))
        self.cache = PrefixCache.preset(preset, block_size=self.size, capacity=self.capacity, **changes)
        self.model = MODELS[preset](self.size, self.capacity)
        self.live: list[tuple[Any, Sequence]] = []
        self.preempted: list[tuple[Any, Sequence]] = []
        self.owed: dict[int, list[int]] = {}  # by request, the tokens of its last append if that was refused
        self.prompts: list[list[int]] = []
        self.bases = [[dice.randrange(3) for _ in range(dice.randrange(1, 6 * self.size + 2))] for _ in range(3)]
        self.log: list[str] = [f"{preset} {changes} block_size={self.size} capacity={self.capacity}"]

    def play(self, steps: int) -> None:
        moves = [self.open] * 6 + [self.compute] * 6 + [self.append] * 6 + [self.close] * 4
        moves += [self.end_step] * 3 + [self.preempt, self.resume, self.resume, self.evict, self.reset]
        try:
            for _ in range(steps):
                self.dice.choice(moves)()
                self.compare()
        except Exception as error:
            error.add_note("\n".join(self.log))
            raise

    # What is done to both

    def open(self) -> None:
        base = self.dice.choice(self.bases)
        tokens = base[: self.dice.randrange(1, len(base) + 1)]
        tokens = tokens + [self.dice.randrange(3) for _ in range(self.dice.randrange(2 * self.size))]
        reserve = self.dice.choice((None, None, None, self.dice.randrange(len(tokens) + 1)))
        self.log.append(f"open {tokens} reserve={reserve}")
        self.prompts.append(tokens)
        sequence = Sequence(list(tokens))
        request = self.both(
            lambda: self.cache.open(tokens, reserve=reserve), lambda: self.model.open(sequence, reserve)
        )
        if request is None:
            return
        assert request.cached == sequence.cached, f"{request.cached} tokens were cached, expected {sequence.cached}"
        self.live.append((request, sequence))
        if reserve is None and self.dice.random() < 0.7:
            self.compute_all(request, sequence)

    def compute(self) -> None:
        if self.live:
            request, sequence = self.dice.choice(self.live)
            covered = min(len(sequence.tokens), len(sequence.table) * self.size)
            if covered > sequence.computed:
                self.advance(request, sequence, self.dice.randint(sequence.computed, covered))
            elif covered < len(sequence.tokens):
                length = self.dice.randint(covered, len(sequence.tokens))
                self.log.append(f"reserve {length} of {request}")
                self.both(lambda: request.reserve(length), lambda: self.model.reserve(sequence, length))

    def compute_all(self, request: Any, sequence: Sequence) -> None:
        if len(sequence.table) * self.size >= len(sequence.tokens):
            self.advance(request, sequence, len(sequence.tokens))

    def advance(self, request: Any, sequence: Sequence, length: int) -> None:
        self.log.append(f"compute {length} of {request}")
        request.computed(length)
        self.model.compute(sequence, length)

    def append(self) -> None:
        if not self.live:
            return
        request, sequence = self.dice.choice(self.live)
        tokens = [self.dice.randrange(2) for _ in range(self.dice.choice((1, 1, 1, 2, self.size + 1)))]
        self.log.append(f"append {tokens} to {request}")
        done = self.both(lambda: request.append(tokens), lambda: self.model.append(sequence, tokens))
        self.owed[request.id] = tokens if done is None else []
        if done is not None and self.dice.random() < 0.8:
            self.compute_all(request, sequence)

    def close(self) -> None:
        if self.live:
            request, sequence = self.live.pop(self.dice.randrange(len(self.live)))
            self.log.append(f"close {request}")
            request.close()
            self.model.close(sequence)

    def preempt(self) -> None:
        if self.live:
            request, sequence = self.live.pop(self.dice.randrange(len(self.live)))
            self.log.append(f"preempt {request}")
            request.preempt()
            self.model.close(sequence)
            self.preempted.append((request, sequence))

    def resume(self) -> None:
        if self.preempted:
            at = self.dice.randrange(len(self.preempted))
            request, sequence = self.preempted[at]
            self.log.append(f"resume {request}")
            sequence.tokens = request.tokens.tolist() + self.owed.get(request.id, [])
            if self.both(request.resume, lambda: self.model.open(sequence)) is not None:
                assert request.cached == sequence.cached
                assert request.tokens.tolist() == sequence.tokens
                self.owed[request.id] = []
                self.live.append(self.preempted.pop(at))

    def end_step(self) -> None:
        self.log.append("end_step")
        self.cache.end_step()
        self.model.end_step()

    def evict(self) -> None:
        count = self.dice.randrange(4)
        self.log.append(f"evict {count}")
        assert self.cache.evict(count) == self.model.evict(count)

    def reset(self) -> None:
        self.log.append("reset")
        assert self.cache.reset() == self.model.reset()

    @staticmethod
    def both(ours: Any, theirs: Any) -> Any:
        """What our call returned, or True for nothing, or None when both refused for the same want of blocks."""
        try:
            result = ours()
        except NoSpace as refusal:
            try:
                theirs()
            except Refused as expected:
                assert (refusal.need, refusal.available) == (expected.need, expected.available)
                return None
            raise AssertionError(f"{refusal}, but the model found room") from refusal
        try:
            theirs()
        except Refused as refusal:
            raise AssertionError(f"admitted, but the model needs {refusal.need} of {refusal.available}") from refusal
        return True if result is None else result

    # What must agree

    def compare(self) -> None:
        self.cache.check()
        books = self.cache.books()
        assert (books.free, books.idle) == (len(self.model.empty), len(self.model.idle)), books
        for request, sequence in self.live:
            table = request.block_table.tolist()
            assert table == sequence.table, f"{request} has the table {table}, expected {sequence.table}"
        for prompt in self.dice.sample(self.prompts, min(3, len(self.prompts))):
            found, expected = self.cache.probe([*prompt, FRESH]).cached, self.model.match([*prompt, FRESH])
            assert found == len(expected) * self.size, f"{prompt}: {found} tokens are found, expected {expected}"


def play(preset: str, seed: int, histories: int, steps: int = 40, **changes: Any) -> None:
    """Play many histories, from the dice of one seed."""
    for number in range(histories):
        History(preset, random.Random(f"{seed} {number}"), **changes).play(steps)
