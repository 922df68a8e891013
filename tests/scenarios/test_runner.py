"""The runner itself: it plays every step, and whatever is wrong it says so, with the place."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from prefixcache import DESIGNS
from prefixcache.cli import app
from prefixcache.designs import Holding, Match, Prompt
from prefixcache.designs.hash_chain import HashChainDesign
from prefixcache.scenario import report
from prefixcache.scenario.load import load
from prefixcache.scenario.play import Played, play
from prefixcache.scenario.steps import RETURNS, ScenarioError

GOOD = """
name: a small one
cache: {design: radix, block_size: 4, capacity: 8}
steps:
  - run: {tokens: ["1..8"]}
  - probe: {tokens: ["1..8", 99]}
    expect: {cached: 8}
"""


def _file(folder: Path, text: str, name: str = "case.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def _play(folder: Path, steps: str, cache: str = "{design: radix, block_size: 4, capacity: 8}") -> list[Played]:
    return play(load(_file(folder, f"cache: {cache}\nsteps:\n{steps}")))


def _differences(plays: list[Played]) -> list[str]:
    return [line for played in plays for line in report.differences(played)]


def _command(*arguments: str | Path) -> Any:
    return CliRunner().invoke(app, ["scenario", *map(str, arguments)])


# What a user sees


def test_all_as_expected_is_status_0(tmp_path: Path) -> None:
    result = _command(_file(tmp_path, GOOD))
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == f"ok      {tmp_path}/case.yaml [radix] a small one: 2 steps\n"


def test_a_difference_is_status_1_and_names_file_step_and_difference(tmp_path: Path) -> None:
    path = _file(tmp_path, GOOD.replace("cached: 8", "cached: 7"))
    result = _command(path)
    assert result.exit_code == 1
    assert f"{path}:6: step 2 (probe) [radix]: cached: expected 7, got 8" in result.stdout
    assert "1 difference in 2 steps" in result.stdout


def test_no_scenario_is_status_2_and_the_others_are_played(tmp_path: Path) -> None:
    bad, good = _file(tmp_path, "steps: []", "bad.yaml"), _file(tmp_path, GOOD, "good.yaml")
    result = _command(bad, good)
    assert result.exit_code == 2
    assert result.stderr == f"error: {bad}:1: `cache` is missing; a scenario has `name`, `cache` and `steps`\n"
    assert result.stdout.startswith(f"ok      {good}")


def test_json_is_one_object_per_step_with_everything_it_returned(tmp_path: Path) -> None:
    path = _file(tmp_path, GOOD.replace("cached: 8", "cached: 7"))
    result = _command("--json", path)
    first, second = map(json.loads, result.stdout.splitlines())
    place = {"file": str(path), "design": "radix"}
    run = {"line": 5, "step": 1, "do": "run", "cached": 0, "copies": 0, "block_table": [0, 1]}
    assert first == {**place, **run, "differences": []}
    assert second["differences"] == ["cached: expected 7, got 8"]
    assert second["tiers"] == {"device": 8}
    assert "cached: expected 7, got 8" in result.stderr
    assert result.exit_code == 1


def test_help_shows_an_example_and_the_exit_status() -> None:
    result = _command("--help")
    assert result.exit_code == 0
    assert "cache: {design: radix" in result.stdout
    assert "Exit status" in result.stdout


# What the runner notices


class _ForgetsTheScope(HashChainDesign):
    def match(self, prompt: Prompt, limit: int) -> Match:
        return super().match(Prompt(prompt.tokens, b"", prompt.scope, prompt.extras), limit)

    def publish(self, holding: Holding, length: int, tail: bool = False) -> list[tuple[int, int, int]]:
        prompt = holding.prompt
        holding.prompt = Prompt(prompt.tokens, b"", prompt.scope, prompt.extras)
        moves = super().publish(holding, length, tail)
        holding.prompt = prompt
        return moves


class _LosesBlocks(HashChainDesign):
    def give_back(self, blocks: Any) -> None:
        pass


class _Crashes(HashChainDesign):
    def match(self, prompt: Prompt, limit: int) -> Match:
        raise KeyError("no such block")


class _ForgetsRemovals(HashChainDesign):
    def evict(self, n_blocks: int) -> int:
        events, self.events = self.events, None
        evicted = super().evict(n_blocks)
        self.events = events
        return evicted


_TWO_TENANTS = """
  - run: {tokens: ["1..9"], scope: {salt: s1}}
  - run: {tokens: ["1..9"], scope: {salt: s2}}
  - evict: 8
  - run: {tokens: ["1..9"], scope: {salt: s1}}
"""


@pytest.mark.parametrize(
    ("broken", "step", "message"),
    [
        (_ForgetsTheScope, 2, r"OracleError: request 2, position 0, slot 0 .* salt 's2', found .* salt 's1'"),
        (_LosesBlocks, 1, r"InvariantError: "),
        (_Crashes, 1, r"KeyError: 'no such block' \(in _Crashes.match, line \d+\)"),
        (_ForgetsRemovals, 4, r"events: stored k0, which is stored already"),
    ],
)
def test_a_broken_design_is_reported_with_its_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: type[HashChainDesign], step: int, message: str
) -> None:
    monkeypatch.setitem(DESIGNS, "broken", broken)
    (played,) = _play(tmp_path, _TWO_TENANTS, "{design: broken, block_size: 4, capacity: 16}")
    (difference,) = _differences([played])
    assert f"step {step} " in difference
    assert re.search(message, difference)
    assert len(played.outcomes) == step, "the play went on after a broken invariant"


def test_the_same_steps_are_fine_with_the_design_unbroken(tmp_path: Path) -> None:
    assert not _differences(_play(tmp_path, _TWO_TENANTS, "{design: hash_chain, block_size: 4, capacity: 16}"))


def test_a_refusal_that_is_not_expected_is_a_difference_and_the_play_goes_on(tmp_path: Path) -> None:
    plays = _play(
        tmp_path,
        """
  - open: {as: A, tokens: ["1..40"]}
  - step: A
  - run: {tokens: ["1..4"]}
    expect: {error: NoSpace}
  - open: {as: A, tokens: ["1..4"]}
    expect: {error: TokenError}
  - step: A
    expect: {computed: 4}
""",
    )
    assert [line.partition("]: ")[2].partition(";")[0] for line in _differences(plays)] == [
        "refused with NoSpace: the request needs 10 blocks, 8 are free or idle",
        "refused with RequestError: `A` was refused in step 1",
        'error: expected NoSpace, got {"cached": 0, "copies": 0, "block_table": [0]}',
        'error: expected TokenError, got {"cached": 0, "copies": 0, "block_table": [1]}',
    ]


def test_what_the_cache_refuses_is_an_answer_not_a_fault_of_the_file(tmp_path: Path) -> None:
    plays = _play(
        tmp_path,
        """
  - open: {tokens: [1, -1]}
    expect: {error: TokenError}
  - open: {tokens: [1, true]}
    expect: {error: TokenError}
  - open: {tokens: [1], scope: {adapter: 1.5}}
    expect: {error: ScopeError}
  - open: {tokens: [1], priority: 101}
    expect: {error: OptionError}
  - run: {tokens: [1, 2], extra_ids: [1]}
    expect: {error: ScopeError}
""",
    )
    assert not _differences(plays)


def test_expectations_may_differ_by_design(tmp_path: Path) -> None:
    text = """
designs: [radix, hash_chain]
cache: {block_size: 1, capacity: 8}
steps:
  - run: {tokens: [1, 2]}
    expect: {radix: {cached: 0}, hash_chain: {cached: 1}}
  - probe: {tokens: [1, 2]}
    expect: {radix: {cached: 2}}
"""
    plays = play(load(_file(tmp_path, text)))
    assert [played.design for played in plays] == ["radix", "hash_chain"]
    assert [line.partition("[")[2] for line in _differences(plays)] == [
        "radix]: cached: expected 2, got 1",
        "hash_chain]: cached: expected 1, got 0",
    ]


@pytest.mark.parametrize(
    ("expect", "difference"),
    [
        ("{block_table: [1]}", "block_table: expected [1], got [0]"),
        ("{cached: false}", "cached: expected false, got 0"),
        ("{block_table: [0, 1]}", "block_table: expected [0, 1], got [0]"),
        ("{block_table: null}", "block_table: expected null, got [0]"),
    ],
)
def test_each_kind_of_value_is_compared(tmp_path: Path, expect: str, difference: str) -> None:
    plays = _play(tmp_path, f"  - run: {{tokens: [1, 2]}}\n    expect: {expect}")
    assert [line.partition("]: ")[2] for line in _differences(plays)] == [difference]


@pytest.mark.parametrize(
    ("expect", "difference"),
    [
        ("{events: []}", "events: expected [], got "),
        ("{events: [{stored: k1}]}", 'events[0].stored: expected "k1", got "k0"'),
        ("{events: [{stored: k0, tokens: [1, 2, 3, 5]}]}", "events[0].tokens: expected [1, 2, 3, 5], got [1, 2, 3, 4]"),
        ("{events: [{removed: k0}]}", 'events[0].removed: expected "k0", but there is no `removed`'),
        ("{events: [{stored: k0, scope: {salt: t}}]}", 'events[0].scope.salt: expected "t", got "s"'),
        ("{mirror: 2}", "mirror: expected 2, got 1"),
    ],
)
def test_events_are_compared_item_by_item(tmp_path: Path, expect: str, difference: str) -> None:
    steps = f'  - run: {{tokens: ["1..4"], scope: {{salt: s}}}}\n  - events: {{}}\n    expect: {expect}'
    (found,) = _differences(_play(tmp_path, steps))
    assert found.partition("]: ")[2].startswith(difference)


def test_statistics_that_do_not_exist_are_named(tmp_path: Path) -> None:
    (found,) = _differences(_play(tmp_path, "  - stats: {}\n    expect: {hitz: 0}"))
    assert "there is no `hitz`; there is requests, queries, hits" in found


def test_events_that_are_off_are_an_answer(tmp_path: Path) -> None:
    steps = "  - run: {tokens: [1]}\n  - events: {}\n    expect: {error: OptionError}"
    assert not _differences(_play(tmp_path, steps, "{design: radix, block_size: 1, capacity: 4, events: false}"))


def test_the_clock_stands_still_until_it_is_moved(tmp_path: Path) -> None:
    steps = "  - advance: 0\n    expect: {now: 0}\n  - advance: 2.5\n  - advance: 1\n    expect: {now: 3.5}"
    assert not _differences(_play(tmp_path, steps))


def test_every_step_is_played_by_some_file_of_this_folder() -> None:
    kinds = set()
    for path in Path(__file__).parent.glob("*/*.yaml"):
        kinds |= {step.kind for step in load(path).steps}
    assert kinds == set(RETURNS)


@pytest.mark.parametrize(
    ("cache", "reason"),
    [
        ("{design: redix, block_size: 4, capacity: 8}", "design is 'redix': expected one of"),
        ("{preset: vllm, block_size: 4, capacity: 8}", "preset is 'vllm': expected one of"),
        ("{design: radix, block_size: 0, capacity: 8}", "block_size is 0: expected"),
        ("{design: radix, block_size: 4, capacity: 8, groups: [full, {window: 0}]}", "groups[1]: Window: size is 0"),
        ("{design: radix, block_size: 4, capacity: 8, groups: [{window: 4, sinks: 1}]}", "groups[0] is {'window': 4"),
        ("{design: radix, block_size: 4, capacity: 8, colour: red}", "no option 'colour': expected one of"),
        ("{design: radix, block_size: 4, capacity: 8, partial: never}", "cannot honour partial='never'"),
    ],
)
def test_a_cache_that_cannot_be_built_is_no_scenario(tmp_path: Path, cache: str, reason: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        _play(tmp_path, "  - books: {}", cache)
    assert caught.value.line == 1
    assert reason in caught.value.reason
