"""The eviction policies: the order of departure, ties included, against a scan that ranks everything anew."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from prefixcache import OptionError
from prefixcache.blocks.eviction import POLICIES, Facts, Policy, RankedQueue, idle_items, slru, tlru
from prefixcache.blocks.eviction import ranked as ranked_module


@dataclass
class Shelf:
    """Owns items that are known by their facts."""

    known: dict[str, Facts] = field(default_factory=dict)

    def put(self, name: str, **values: int) -> None:
        defaults = {"last_access": 0, "created": 0, "hits": 1, "priority": 0, "depth": 4, "length": 4, "history": 4}
        self.known[name] = Facts(**(defaults | values))

    def facts(self, item: str) -> Facts:
        return self.known[item]


def leaving(policy: str | Policy, **items: dict[str, int]) -> str:
    """The names of the items in the order in which they leave."""
    shelf = Shelf()
    queue = RankedQueue(POLICIES[policy] if isinstance(policy, str) else policy, shelf)
    for name, values in items.items():
        shelf.put(name, **values)
        queue.add(name)
    return "".join(queue.pop() for _ in items)


# hits and priority are given so that the recency alone would say another order
ITEMS: dict[str, dict[str, int]] = {
    "a": {"last_access": 1, "created": 5, "hits": 3, "priority": 2},
    "b": {"last_access": 2, "created": 3, "hits": 1, "priority": 1},
    "c": {"last_access": 3, "created": 4, "hits": 2, "priority": 1},
    "d": {"last_access": 4, "created": 1, "hits": 1, "priority": 3},
}


@pytest.mark.parametrize(
    ("policy", "order"),
    [
        ("lru", "abcd"),
        ("mru", "dcba"),
        ("fifo", "dbca"),
        ("filo", "acbd"),
        ("lfu", "bdca"),
        ("priority", "bcad"),
        ("slru", "bdac"),
        ("tlru", "abcd"),
    ],
)
def test_the_order_of_departure(policy: str, order: str) -> None:
    assert leaving(policy, **ITEMS) == order


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_what_is_equal_leaves_in_the_order_of_recency_and_then_of_arrival(policy: str) -> None:
    older, newer = ("b", "a") if policy == "mru" else ("a", "b")
    assert leaving(policy, b={"last_access": 2}, a={"last_access": 1}) == older + newer
    assert leaving(policy, b={}, a={}) == "ba"


def test_the_border_of_slru_can_be_moved() -> None:
    items = {"a": {"last_access": 1, "hits": 2}, "b": {"last_access": 2, "hits": 1}}
    assert leaving("slru", **items) == "ba"
    assert leaving(slru(3), **items) == "ab"


def test_tlru_lets_go_first_of_what_no_next_prompt_can_be_late_without() -> None:
    # A branch of 100 tokens, budget 100 + 10 - 30 = 80: the last 16 lie behind it, the 16 before across its border.
    items = {
        "a": {"last_access": 1, "depth": 84, "length": 16, "history": 100},
        "b": {"last_access": 2, "depth": 100, "length": 16, "history": 100},
        "c": {"last_access": 3, "depth": 96, "length": 16, "history": 100},
    }
    assert leaving(tlru(threshold=30, next_prompt=10), **items) == "bca"
    assert leaving(tlru(threshold=0, next_prompt=10), **items) == "abc"
    # The border itself: exactly at the budget is behind it.
    assert (
        leaving(tlru(threshold=16), a={"last_access": 1, "depth": 83, "length": 16, "history": 84}, b=items["b"])
        == "ba"
    )


@pytest.mark.parametrize("make", [lambda: slru(0), lambda: slru(True), lambda: tlru(-1), lambda: tlru(0, 1.5)])
def test_a_policy_says_which_setting_is_wrong(make: Any) -> None:
    with pytest.raises(OptionError, match=r"(slru: protected_hits|tlru: (threshold|next_prompt)) is"):
        make()


def test_an_unknown_policy_is_named_with_those_there_are() -> None:
    with pytest.raises(OptionError, match=r"'lifo'.*lru, lfu, fifo, mru, filo, priority, slru, tlru"):
        idle_items("lifo", Shelf())


def shuffle_and_compare(policy: Policy, seed: int, steps: int = 1500) -> None:
    """Random additions, changes, discards and departures; the scan over all facts must name the same victim."""
    rng = random.Random(f"{policy.name} {seed}")
    shelf, arrivals, arrived = Shelf(), {}, 0
    queue = RankedQueue(policy, shelf)
    for step in range(steps):
        name = str(rng.randrange(60))
        draw = rng.random()
        if draw < 0.6:
            shelf.put(
                name,
                last_access=step if rng.random() < 0.7 else rng.randrange(step + 1),
                created=rng.randrange(20),
                hits=rng.randrange(4),
                priority=rng.randrange(4),
                depth=rng.randrange(16, 64),
                length=16,
                history=64,
            )
            if name in arrivals:
                queue.rerank(name)  # its place among equals stays
            else:
                queue.add(name)
                arrived += 1
                arrivals[name] = arrived
            assert len(queue._heap) <= 2 * len(queue) + ranked_module._SLACK
        elif draw < 0.8:
            queue.discard(name)
            arrivals.pop(name, None)
        elif arrivals:
            best = min(arrivals, key=lambda item: (policy.rank(shelf.known[item]), arrivals[item]))
            assert queue.peek() == best
            assert queue.pop() == best
            del arrivals[best]
        assert len(queue) == len(arrivals)
        assert set(queue) == set(arrivals)


@pytest.mark.parametrize("policy", [*POLICIES.values(), slru(3), tlru(30, 5)], ids=lambda policy: policy.name)
def test_the_queue_names_the_victim_that_a_scan_would(policy: Policy, seed: int) -> None:
    shuffle_and_compare(policy, seed)


def test_a_queue_that_keeps_old_ranks_is_found_out(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RankedQueue, "rerank", lambda self, item: None)
    with pytest.raises(AssertionError):
        shuffle_and_compare(POLICIES["mru"], seed)


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_a_victim_costs_the_logarithm_of_the_leaves(policy: str) -> None:
    """Counted in ranks compared, not in time."""
    compared = 0

    class Counted(int):
        def __lt__(self, other: int) -> bool:
            nonlocal compared
            compared += 1
            return int(self) < int(other)

        def __add__(self, other: int) -> Counted:
            return Counted(int(self) + int(other))

        __radd__ = __add__

        def __lshift__(self, other: int) -> Counted:
            return Counted(int(self) << other)

    rank = POLICIES[policy].rank
    counting = Policy(policy, lambda facts: tuple(Counted(value) for value in rank(facts)))
    shelf, queue = Shelf(), None
    costs = {}
    for leaves in (1_000, 16_000):
        queue = RankedQueue(counting, shelf)
        for i in range(leaves):
            shelf.put(str(i), last_access=i * 7919 % leaves, created=i * 7907 % leaves)
            queue.add(str(i))
        compared = 0
        for _ in range(500):
            queue.pop()
        costs[leaves] = compared / 500
    assert costs[16_000] < 2 * costs[1_000]
    assert costs[16_000] < 3 * 2 * 14
