"""The order of admission: by hand, against slow twins, and with the bounds that keep cold requests from starving."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from prefixcache import OptionError, Scope, Waiting, defer_shared, depth_first_weight, longest_prefix_first
from prefixcache.cache.scheduling import worth_probing


def waiting(*cached: int) -> list[Waiting]:
    return [Waiting(range(2000), hit) for hit in cached]


def test_the_longest_prefix_goes_first_and_equal_ones_in_order_of_arrival() -> None:
    assert longest_prefix_first(waiting(0, 7, 3, 7)) == [1, 3, 2, 0]


def test_beyond_the_limit_the_order_is_that_of_arrival_and_probes_are_not_needed() -> None:
    assert longest_prefix_first(waiting(0, 7, 3), most=3) == [1, 2, 0]
    assert longest_prefix_first(waiting(0, 7, 3), most=2) == [0, 1, 2]
    assert worth_probing(128)
    assert not worth_probing(129)


def test_deferred_requests_go_last() -> None:
    assert longest_prefix_first(waiting(0, 7, 3), deferred={1}) == [2, 0, 1]


def passes_until_cold_is_admitted(order: Callable[[list[Waiting]], list[int]], hot_per_pass: int = 1) -> int:
    """A request that hits nothing waits; every pass brings hot ones and admits as many."""
    cold = Waiting([1, 2, 3])
    hot: list[Waiting] = []
    for number in range(500):
        hot += [Waiting(range(10, 1100), 1000)] * hot_per_pass
        queue = [cold, *hot]
        chosen = order(queue)[:hot_per_pass]
        if 0 in chosen:
            return number
        taken = set(chosen)
        cold = Waiting(cold.text, 0, cold.waited + 1)
        hot = [Waiting(w.text, w.cached, w.waited + 1) for at, w in enumerate(hot, 1) if at not in taken]
    raise AssertionError("the cold request starves")


def test_ageing_admits_a_cold_request_after_ten_passes_of_a_thousand_hit_tokens() -> None:
    assert passes_until_cold_is_admitted(lambda queue: longest_prefix_first(queue, aging=100)) in (10, 11)
    assert passes_until_cold_is_admitted(lambda queue: longest_prefix_first(queue, aging=100), hot_per_pass=3) <= 11


def test_without_ageing_patience_is_the_bound() -> None:
    assert passes_until_cold_is_admitted(lambda queue: longest_prefix_first(queue, aging=0, patience=20)) == 20
    with pytest.raises(AssertionError, match="starves"):
        passes_until_cold_is_admitted(lambda queue: longest_prefix_first(queue, aging=0, patience=10**9))


def test_patience_bounds_the_depth_first_order_too() -> None:
    def order(patience: int) -> Callable[[list[Waiting]], list[int]]:
        return lambda queue: depth_first_weight(queue + queue[1:], patience=patience)

    assert passes_until_cold_is_admitted(order(20)) == 20
    with pytest.raises(AssertionError, match="starves"):
        passes_until_cold_is_admitted(order(10**9))


def test_patience_bounds_deferring() -> None:
    pair = [Waiting(range(100)), Waiting(range(100), 0, 4)]
    assert defer_shared(pair, patience=5) == {1}
    assert defer_shared(pair, patience=4) == frozenset()


# Depth first


def test_heavy_branches_go_first_and_requests_below_before_those_above() -> None:
    a, b, c = [1, 2, 3, 4], [1, 2], [7, 8]
    prompts = [(c, 2), (a, 4), (b, 2), (a, 4), (a, 4), (c, 2), ([9], 0)]
    queue = [Waiting([*tokens, 5], hit) for tokens, hit in prompts]
    assert depth_first_weight(queue) == [1, 3, 4, 2, 0, 5, 6]


def test_prefixes_that_part_in_a_block_part_before_it() -> None:
    queue = [Waiting([1, 2, 3, 4, 5, 6], 6), Waiting([9, 9], 2), Waiting([1, 2, 3, 5, 5, 6], 6), Waiting([9, 8], 2)]
    assert depth_first_weight(queue) == [0, 2, 1, 3]
    assert depth_first_weight(queue, page=4) == [0, 1, 2, 3], "neither pair shares a block"


def test_scopes_share_no_branch() -> None:
    one, two = Scope(salt="one"), Scope(salt="two")
    queue = [Waiting([1, 2], 2, 0, one), Waiting([1, 2], 2, 0, two), Waiting([1, 2], 2, 0, two)]
    assert depth_first_weight(queue) == [1, 2, 0]


def slow_order(queue: list[Waiting], page: int) -> list[int]:
    """The order by definition, on a tree with a node for every block boundary."""
    prefixes = {position: tuple(memoryview(w.text).cast("I"))[: w.cached] for position, w in enumerate(queue)}

    def members(node: tuple[int, ...]) -> list[int]:
        return [position for position, prefix in prefixes.items() if prefix[: len(node)] == node]

    def visit(node: tuple[int, ...]) -> list[int]:
        inside = [
            position for position in members(node) if position in prefixes and len(prefixes[position]) > len(node)
        ]
        steps = {prefixes[position][: len(node) + page] for position in inside}
        order = []
        for child in sorted(steps, key=lambda child: (-len(members(child)), min(members(child)))):
            order += visit(child)
        return order + [position for position in members(node) if prefixes[position] == node]

    return visit(())


@pytest.mark.parametrize("page", [1, 2])
def test_the_order_is_that_of_a_slow_twin(page: int, seed: int) -> None:
    rng = random.Random(f"{seed} {page}")
    for _ in range(300):
        queue = []
        for _ in range(rng.randrange(12)):
            tokens = [rng.randrange(2) for _ in range(6 * page)]
            queue.append(Waiting(tokens, rng.randrange(7) * page))
        assert depth_first_weight(queue, page=page) == slow_order(queue, page), queue


def test_a_deep_chain_of_prefixes_needs_no_recursion() -> None:
    queue = [Waiting([1] * 3000, hit) for hit in range(3000)]
    assert depth_first_weight(queue) == list(range(2999, -1, -1))


# Deferring


def test_the_second_of_two_that_share_enough_waits() -> None:
    shared = list(range(40))
    queue = [Waiting([*shared, 1]), Waiting([*shared, 2]), Waiting([*shared[:20], 3]), Waiting([*shared, 4], 33)]
    assert defer_shared(queue) == {1}
    assert defer_shared(queue, shared=20) == {1, 2}
    assert defer_shared(queue, known=40) == {1, 3}
    assert defer_shared(queue, known=-1) == frozenset()
    assert defer_shared([Waiting(shared, 0, 0, Scope(salt=str(i))) for i in range(2)]) == frozenset()


def test_deferring_is_that_of_a_slow_twin(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(300):
        prompts = [[rng.randrange(2) for _ in range(rng.randrange(1, 9))] for _ in range(12)]
        going: list[list[int]] = []
        expected = set()
        for position, prompt in enumerate(prompts):
            if any(prompt[:4] == other[:4] and len(prompt) >= 4 for other in going):
                expected.add(position)
            else:
                going.append(prompt)
        assert defer_shared([Waiting(prompt) for prompt in prompts], shared=4) == expected


def test_bad_numbers_are_named() -> None:
    with pytest.raises(OptionError, match="cached is -1"):
        Waiting([1], -1)
    with pytest.raises(OptionError, match="shared is 0"):
        defer_shared([], shared=0)
