"""Who is admitted next."""

from __future__ import annotations

import pytest

from prefixcache.engine.waiting import WaitingQueue

HOT = 1000


def queue_of(cached: dict[str, int], **options: int) -> tuple[WaitingQueue[str], list[str]]:
    """A queue over named items with these hits, and the list of its probes."""
    probed: list[str] = []

    def probe(item: str) -> int:
        probed.append(item)
        return cached.get(item, HOT if item.startswith("hot") else 0)

    return WaitingQueue(probe, **options), probed


def admit(queue: WaitingQueue[str]) -> str | None:
    item = queue.first()
    if item is not None:
        assert queue.remove(item)
    return item


def test_the_longest_prefix_first_and_equals_in_order() -> None:
    queue, _ = queue_of({"a": 10, "b": 500, "c": 10, "d": 500})
    for item in "abcd":
        queue.add(item)
    assert [admit(queue) for _ in range(5)] == ["b", "d", "a", "c", None]


def test_a_cold_prompt_is_not_starved() -> None:
    """B64: hot prompts match 1,000 tokens, one comes in every pass, a pass is worth 100: pass 10 or 11."""
    queue, _ = queue_of({}, aging=100)
    queue.add("cold")
    for number in range(30):
        queue.add(f"hot {number}")
        if admit(queue) == "cold":
            break
    assert number in (10, 11)


def test_without_aging_the_hot_ones_go_first_and_equals_in_order() -> None:
    queue, _ = queue_of({}, aging=0)
    queue.add("cold")
    for number in range(200):
        queue.add(f"hot {number}")
        assert admit(queue) == f"hot {number}"
    assert admit(queue) == "cold"


def test_a_long_queue_costs_no_more_probes_per_pass() -> None:
    """B66: 10 passes over 10,000 that wait."""
    queue, probed = queue_of({}, probes=16)
    for number in range(10_000):
        queue.add(f"item {number}")
    for _ in range(10):
        queue.first()
    assert len(probed) == 160
    assert len(set(probed)) == 160  # who was never probed comes before who was


def test_a_newcomer_is_probed_before_it_is_judged() -> None:
    queue, _ = queue_of({}, probes=1)
    for number in range(5):
        queue.add(f"item {number}")
    for _ in range(5):
        queue.first()
    queue.add("hot")
    assert queue.first() == "hot"


def test_a_prefix_that_was_evicted_is_noticed() -> None:
    cached = {"a": 500, "b": 300}
    queue, _ = queue_of(cached, aging=0)
    queue.add("a")
    queue.add("b")
    assert queue.first() == "a"
    cached["a"] = 0
    assert queue.first() == "b"


def test_removing_what_does_not_wait() -> None:
    queue, _ = queue_of({})
    assert not queue.remove("a")
    queue.add("a")
    assert queue.remove("a")
    assert len(queue) == 0


@pytest.mark.parametrize("aging", [1, 50, 333])
def test_the_bound_that_is_documented(aging: int) -> None:
    queue, _ = queue_of({}, aging=aging)
    queue.add("cold")
    for number in range(HOT + 2):
        queue.add(f"hot {number}")
        if admit(queue) == "cold":
            break
    assert number <= HOT / aging + 1
