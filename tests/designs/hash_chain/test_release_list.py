"""The order of release as a list linked through the runs, against a plain list."""

from __future__ import annotations

import random
from array import array

from prefixcache.designs.hash_chain.release_list import ReleaseList
from prefixcache.designs.hash_chain.run import Run


def make_run(number: int) -> Run:
    return Run([str(number).encode()], array("i", [number]), 0, None)


def test_the_links_are_the_list(seed: int) -> None:
    dice = random.Random(seed)
    order, expected = ReleaseList(), list[Run]()
    in_use = [make_run(number) for number in range(20)]
    numbers = iter(range(20, 10_000))
    for _ in range(4000):
        match dice.choice(("release", "release", "use", "cut", "gone", "retire" if dice.random() < 0.05 else "use")):
            case "release" if in_use:
                run = in_use.pop(dice.randrange(len(in_use)))
                order.add(run)
                old = sum(waiting.stale for waiting in expected)
                expected.insert(old if run.stale else len(expected), run)
            case "use" if expected:
                run = expected.pop(dice.randrange(len(expected)))
                order.discard(run)
                order.discard(run)  # once more does no harm
                in_use.append(run)
            case "cut" if expected:
                at = dice.randrange(len(expected))
                upper = make_run(next(numbers))
                upper.stale = expected[at].stale
                order.cut(upper, expected[at])
                expected.insert(at + 1, upper)
            case "gone" if expected:
                run = expected.pop(0)
                assert order.first() is run
                run.keys.clear()
                order.trimmed(run, b"", True)
                in_use.append(make_run(next(numbers)))
            case "retire":
                order.retire([*expected, *in_use])
        assert list(order) == expected
        assert order.first() is (expected[0] if expected else None)


def test_a_run_in_use_is_cut_without_a_place() -> None:
    order = ReleaseList()
    order.cut(make_run(1), make_run(2))
    assert order.first() is None
