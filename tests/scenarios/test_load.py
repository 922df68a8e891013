"""Files that are no scenarios: each fault is named with its line and what was expected."""

from __future__ import annotations

from pathlib import Path

import pytest

from prefixcache.scenario import steps as s
from prefixcache.scenario.load import load

HEAD = "cache: {design: radix, block_size: 4, capacity: 8}\nsteps:\n"


def _load(folder: Path, text: str) -> s.Scenario:
    path = folder / "case.yaml"
    path.write_text(text)
    return load(path)


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("", 1, "is empty"),
        ("- 1\n", 1, "a scenario is a map"),
        ("a: [1\nb: 2\n", 2, "is not YAML"),
        ("a: &a [*a]\n", 1, "a part of it contains itself"),
        (HEAD + "  - advance: .nan\n", 3, "`advance` takes seconds, 0 or more"),
        ("cache: {}\ncache: {}\n", 2, "`cache` stands here twice"),
        (HEAD + "  - books: {}\ncolour: red\n", 4, "unknown key `colour`; keys at the top of a scenario: name, cache"),
        ("steps: [{books: {}}]\n", 1, "`cache` is missing"),
        ("cache: {design: radix, block_size: 4, capacity: 8}\n", 1, "`steps` is missing"),
        (HEAD.replace("steps:", "steps: []"), 2, "`steps` is a list of at least one step"),
        ("cache: radix\nsteps: [{books: {}}]\n", 1, "`cache` is a map"),
        ("cache: {block_size: 4, capacity: 8}\nsteps: [{books: {}}]\n", 1, "names one `design` or one `preset`"),
        (HEAD.replace("design: radix", "design: radix, preset: sglang") + "  - books: {}\n", 1, "names one `design`"),
        ("designs: [radix]\n" + HEAD + "  - books: {}\n", 2, "`design` and `designs` cannot be given together"),
        ("designs: radix\n" + HEAD + "  - books: {}\n", 1, "`designs` is a list of names"),
        ("designs: [radix, radix]\n" + HEAD + "  - books: {}\n", 1, "`designs` names a design twice"),
        ("cache:\n  design: radix\n  block_size: four\n  capacity: 8\nsteps: []\n", 3, "`cache` needs `block_size`"),
        ("cache: {design: radix, block_size: 4}\nsteps: []\n", 1, "`cache` needs `capacity`"),
        (HEAD.replace("8", "{0: 8}, groups: [full]") + "  - books: {}\n", 1, "with `groups` also a list"),
        (HEAD.replace("capacity: 8", "capacity: 8, clock: 3") + "  - books: {}\n", 1, "the step `advance`"),
        (HEAD + "  - books: {}\n  - jump: 3\n", 4, "step 2: unknown step `jump`; there are abort, advance, books"),
        (HEAD + "  - books: {}\n    reset: {}\n", 3, "step 1: one step at a time, here is `books` and `reset`"),
        (HEAD + "  - expect: {cached: 4}\n", 3, "step 1: one step at a time, here is nothing but `expect`"),
        (HEAD + "  - books\n", 3, "step 1: a step is a map"),
        (HEAD + "  - books: {of: A}\n", 3, "unknown key `of`; keys of `books`: group"),
        (HEAD + "  - run: {tokens: [1], temperature: 1}\n", 3, "unknown key `temperature`; keys of a prompt: tokens"),
        (HEAD + "  - run: {scope: {salt: a}}\n", 3, "`tokens` is missing"),
        (HEAD + "  - run: {tokens: 5}\n", 3, "a list of tokens is wanted"),
        (HEAD + "  - run: {tokens: [1, '3..1']}\n", 3, "'3..1' is no token, no range"),
        (HEAD + "  - run: {tokens: ['one']}\n", 3, "'one' is no token"),
        (HEAD + "  - run: {tokens: ['1..99000000000']}\n", 3, "is no token, no range"),
        (HEAD + "  - run: {tokens: ['1*9000000', '1*9000000']}\n", 3, "more than 10000000 tokens"),
        (HEAD + "  - run:\n      tokens: [1]\n      scope: {tenant: a}\n", 5, "unknown key `tenant`; keys of a scope"),
        (HEAD + "  - run: {tokens: [1], scope: a}\n", 3, "a map is wanted; got 'a'"),
        (HEAD + "  - run: {tokens: [1], media: {digest: aa}}\n", 3, "`media` is a list"),
        (HEAD + "  - run: {tokens: [1], media: [{digest: xx}]}\n", 3, "`digest` is hex in quotes"),
        (HEAD + "  - run: {tokens: [1], media: [{digest: 11}]}\n", 3, "`digest` is hex in quotes"),
        (HEAD + "  - run: {tokens: [1], media: [{hash: '11'}]}\n", 3, "unknown key `hash`; keys of a media item"),
        (HEAD + "  - run: {tokens: [1], priority: [[0, 4]]}\n", 3, "a priority over token ranges is a list of"),
        (HEAD + "  - step: A\n", 3, "nothing was opened as `A` before this step; names so far: none yet"),
        (HEAD + "  - step: [A]\n", 3, "the name of a request is wanted"),
        (HEAD + "  - open: {as: A, tokens: [1]}\n  - step: {of: A, tokens: 0}\n", 4, "whole number, 1 or more; got 0"),
        (HEAD + "  - open: {as: A, tokens: [1]}\n  - gen: {of: A}\n", 4, "`gen` takes one `token`"),
        (HEAD + "  - open: {as: A, tokens: [1]}\n  - rewind: A\n", 4, "`rewind` takes `of` and `length`"),
        (HEAD + "  - open: {as: A, tokens: [1]}\n  - fork: A\n", 4, "`fork` takes `of` and `as`"),
        (HEAD + "  - open: {as: A, tokens: [1]}\n  - reserve: A\n", 4, "`reserve` takes `of` and `tokens`"),
        (
            HEAD + "  - open: {as: A, tokens: [1]}\n  - close: {of: A, in_flight: 1}\n",
            4,
            "`in_flight` is true or false",
        ),
        (HEAD + "  - open: {as: [A], tokens: [1]}\n", 3, "`as` is a name"),
        (HEAD + "  - pin: {tokens: [1]}\n", 3, "`pin` takes `as`"),
        (HEAD + "  - pin: {as: P, tokens: [1], media: []}\n", 3, "unknown key `media`"),
        (HEAD + "  - open_batch: {as: A}\n", 3, "a batch is a list"),
        (HEAD + "  - evict: some\n", 3, "`evict` takes a whole number, 0 or more; got 'some'"),
        (HEAD + "  - advance: -1\n", 3, "`advance` takes seconds"),
        (
            HEAD + "  - books: {}\n    expect: {full: 1}\n",
            4,
            "unknown key `full`; keys that `books` returns: free, idle",
        ),
        (HEAD + "  - books: {}\n    expect: 4\n", 4, "`expect` is a map"),
        (HEAD + "  - books: {}\n    expect: {radix: {free: 1}}\n", 4, "unknown key `radix`"),
        (HEAD + "  - events: {}\n    expect: {events: stored}\n", 4, "`events` is a list"),
        (HEAD + "  - events: {}\n    expect: {events: [stored]}\n", 4, "an event is a map"),
        (HEAD + "  - events: {}\n    expect: {events: [{kept: k0}]}\n", 4, "unknown key `kept`; keys of an event"),
    ],
)
def test_a_fault_is_named_with_its_line(tmp_path: Path, text: str, line: int, reason: str) -> None:
    with pytest.raises(s.ScenarioError) as caught:
        _load(tmp_path, text)
    assert caught.value.line == line, caught.value
    assert reason in caught.value.reason
    assert str(caught.value).startswith(f"{tmp_path}/case.yaml:{line}: ")


def test_an_expectation_by_design_is_all_maps(tmp_path: Path) -> None:
    text = "designs: [radix, hash_chain]\ncache: {block_size: 1, capacity: 8}\nsteps:\n  - books: {}\n    expect: "
    with pytest.raises(s.ScenarioError, match=r":5: `expect` by design is a map of maps"):
        _load(tmp_path, text + "{radix: 4}")
    with pytest.raises(s.ScenarioError, match=r":5: unknown key `radix`"):
        _load(tmp_path, text + "{radix: {free: 4}, free: 4}")
    with pytest.raises(s.ScenarioError, match=r":5: unknown key `hits`"):
        _load(tmp_path, text + "{radix: {hits: 4}}")


@pytest.mark.parametrize(
    ("path", "reason"), [("missing.yaml", "cannot be read: No such file"), (".", "cannot be read: Is a directory")]
)
def test_a_file_that_cannot_be_read(tmp_path: Path, path: str, reason: str) -> None:
    with pytest.raises(s.ScenarioError, match=reason):
        load(tmp_path / path)


def test_a_file_that_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "case.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(s.ScenarioError, match="is not UTF-8 text"):
        load(tmp_path / "case.yaml")


def test_a_file_becomes_typed_steps(tmp_path: Path) -> None:
    scenario = _load(
        tmp_path,
        """name: everything
cache: {preset: sglang, block_size: 4, capacity: 8, partial: copy}
steps:
  - open: {as: 1, tokens: [7, "1..3", "5*2"], scope: {salt: s}, media: [{digest: "00FF", start: 1}], priority: 3}
  - gen: {of: 1, token: 9}
  - run: {tokens: [1], priority: [[0, 4, 90, null], [4, null, 10]]}
  - close: {of: 1, in_flight: true}
""",
    )
    assert (scenario.name, scenario.designs) == ("everything", ())
    assert scenario.cache == {"preset": "sglang", "block_size": 4, "capacity": 8, "partial": "copy"}
    assert [step.line for step in scenario.steps] == [4, 5, 6, 7]
    prompt = s.Prompt([7, 1, 2, 3, 5, 5], {"salt": "s"}, ({"digest": b"\x00\xff", "start": 1},), None, {"priority": 3})
    assert [step.action for step in scenario.steps] == [
        s.Open("1", prompt),
        s.Generate("1", [9]),
        s.Run(s.Prompt([1], options={"priority": [(0, 4, 90, None), (4, None, 10)]})),
        s.Release("close", "1", True),
    ]
