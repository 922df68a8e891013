"""Figure 1 in nine steps: the exact tree of every design after each, and how trees are drawn."""

from __future__ import annotations

from pathlib import Path

import pytest

from prefixcache.article import told
from prefixcache.article.drawing import draw, side_by_side
from prefixcache.article.story import ACTS, Scene, named, nine_steps, pieces
from prefixcache.designs import OutlineNode

DRAWN = Path(__file__).with_name("nine_steps.txt")  # the trees, read and checked by hand against the figure


def test_every_tree_of_the_nine_steps_is_this_one() -> None:
    assert "\n".join(told(120)) + "\n" == DRAWN.read_text(encoding="utf-8")


def test_a_narrow_terminal_shows_the_same_trees_one_below_the_other() -> None:
    wide, narrow = told(120), told(70)
    assert max(map(len, wide)) <= 120
    assert max(map(len, narrow)) <= 70
    trees = [line for scenes in nine_steps() for scene in scenes for line in scene.tree]
    assert [line for line in narrow if line in set(trees)] == trees


@pytest.fixture(scope="module")
def steps() -> list[dict[str, Scene]]:
    designs = ("radix", "hash_chain", "block_trie", "digest_chain")
    return [dict(zip(designs, scenes, strict=True)) for scenes in nine_steps()]


@pytest.mark.parametrize("design", ["radix", "hash_chain", "block_trie", "digest_chain"])
def test_the_figure_happens_in_every_design(steps: list[dict[str, Scene]], design: str) -> None:
    scenes = [step[design] for step in steps]
    assert len(scenes) == len(ACTS) == 9
    system = 8 if design == "hash_chain" else 10
    assert scenes[0].tree == ()
    assert scenes[2].reused == (16,), "the second turn reuses the first"
    assert scenes[3].reused == (system,), "the second chat reuses the system prompt"
    assert scenes[3].nodes >= scenes[2].nodes + 2, "which is split for it"
    assert scenes[4].evicted.startswith("a2"), "what was used least recently goes"
    assert scenes[5].reused == (0,)
    assert sum(line[0] in "├└" for line in scenes[5].tree) == 2, "a second branch at the root"
    assert scenes[6].reused == (system, system), "the batch shares the examples"
    assert scenes[7].reused == (system,)
    assert "doc" in scenes[7].evicted, "the second chat goes"
    assert scenes[8].reused == (12,)
    assert sum("s2" in line or "t2" in line for line in scenes[8].tree) == 2, "two samples branch"


def test_tokens_are_called_by_their_pieces() -> None:
    assert named(pieces("sys a1")) == "sys a1"
    assert named(pieces("sys")[4:8]) == "sys[4:8]"
    assert named(pieces("sys")[8:] + pieces("a1")[:2]) == "sys[8:10] a1[0:2]"
    assert named([]) == ""


def test_a_drawing_shows_only_children_below_and_brothers_beside_each_other() -> None:
    tokens = [(1,), (2,), (9,), (3,), (0,)]
    outline = [OutlineNode(parent, own, (), 0, ()) for parent, own in zip((-1, 0, 1, 1, -1), tokens, strict=True)]
    assert draw(outline, tokens, lambda own: str(own[0])) == ["├ 0", "└ 1", "  2", "  ├ 3", "  └ 9"]


def test_a_deep_chain_is_drawn_without_recursion() -> None:
    tokens = [(place,) for place in range(5000)]
    outline = [OutlineNode(place - 1, own, (), 0, ()) for place, own in enumerate(tokens)]
    assert len(draw(outline, tokens, str)) == 5000


def test_columns_stand_beside_each_other_only_where_they_fit() -> None:
    columns = [["ab", "c"], ["d"]]
    assert side_by_side(columns, 6) == ["ab  d", "c"]
    assert side_by_side(columns, 5) == ["ab", "c", "", "d"]
