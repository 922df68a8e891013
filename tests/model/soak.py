"""Longer histories than hypothesis draws: random moves from a seed, everything checked after each.

    python -m tests.model.soak --design radix --seed 7 --steps 20000

A failure prints the seed, the setup and the shortest history found that fails in the same way.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter

from tests.model.known import told
from tests.model.moves import MOVES, draw_setup
from tests.model.replay import assert_traceless
from tests.model.shrink import shrink
from tests.model.world import World
from tests.registration import DESIGNS

_LIFE = 250  # operations before a world is finished and the next one begins


def soak(design: str, seed: int, steps: int, *, life: int = _LIFE, tiered: bool = False) -> Counter[str]:
    """Play `steps` moves over as many worlds as it takes; returns how often each move was played."""
    random_numbers = random.Random(f"{design} {seed}" + " tiered" * tiered)
    played: Counter[str] = Counter()
    while steps > 0:
        world = World(draw_setup(design, random_numbers.randrange, tiered))
        length = min(steps, life)
        steps -= length
        try:
            for _ in range(length):
                ready = [name for name, move in MOVES.items() if move.ready(world)]
                (name,) = random_numbers.choices(ready, [MOVES[name].weight for name in ready])
                MOVES[name].play(world, random_numbers.randrange)
                played[name] += 1
            world.finish()
        except Exception as error:
            short = told(world.setup, shrink(world.setup, world.log))
            raise AssertionError(
                f"soak --design {design} --seed {seed}{' --tiered' * tiered}: {error}\nshrunk to {short}"
            ) from error
        assert_traceless(world)
    return played


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--design", choices=sorted(DESIGNS), action="append", help="default: every one")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--tiered", action="store_true", help="with a tier below the device")
    arguments = parser.parse_args()
    for design in arguments.design or DESIGNS:
        played = soak(design, arguments.seed, arguments.steps, tiered=arguments.tiered)
        print(f"{design}: seed {arguments.seed}, {played.total()} moves: {dict(played.most_common())}")


if __name__ == "__main__":
    main()
