"""Claim C34: the nine steps of the article's figure 1, told to all four designs with the same memory.

The figure shows two chats under one system prompt, few-shot questions under the same examples, and answers
sampled for one of them, in a cache that evicts what was used least recently. Every piece of text has a name:

    sys     system prompt                  shots   few-shot examples
    a1..a3  turns of the first chat        q1..q3  questions, r1..r3 their answers
    b1 doc  turns of the second chat       s2 t2   two more answers to q2

A name alone stands for the whole piece, `sys[0:8]` for its first eight tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from textwrap import wrap

from prefixcache.article.claim import HOLDS, Finding, Row, claim
from prefixcache.article.drawing import draw, side_by_side
from prefixcache.article.serving import THE_FOUR
from prefixcache.cache import PrefixCache, Request
from prefixcache.designs import OutlineNode
from prefixcache.events import Stored

_PIECES = {"sys": 10, "a1": 6, "a2": 6, "a3": 6, "b1": 6, "doc": 32, "shots": 10} | dict.fromkeys(
    ("q1", "r1", "q2", "r2", "s2", "t2", "q3", "r3"), 3
)  # with their tokens
_STARTS = dict(zip(_PIECES, accumulate(_PIECES.values(), initial=0), strict=False))  # token id of its first token
_MEMORY = 56  # tokens
_COLUMN = 28  # characters that a tree may be wide, four of them in 120
_BLOCK_SIZES = {"radix": 1, "hash_chain": 4, "block_trie": 4, "digest_chain": 4}


@dataclass(frozen=True, slots=True)
class Act:
    """What happens in one step: prompts come in together, each is answered once or more.

    Attributes:
        told: the step in a sentence.
        prompts: names of pieces, one string per prompt.
        answers: per prompt the answers that are sampled for it, each the name of a piece; "" for none.
    """

    told: str
    prompts: Sequence[str] = ()
    answers: Sequence[Sequence[str]] = ()


ACTS = (
    Act("Nothing is cached."),
    Act("A first chat: system prompt and first turn.", ["sys a1"]),
    Act("Its second turn extends what is there.", ["sys a1 a2"]),
    Act("A second chat under the same system prompt: a split where the two part.", ["sys b1"]),
    Act(
        "The second chat goes on with a document. Memory is full, and the end of the first chat, used least recently, "
        "is evicted.",
        ["sys b1 doc"],
    ),
    Act(
        "A few-shot prompt shares nothing: a branch of its own. The rest of the first chat goes.",
        ["shots q1"],
        [["r1"]],
    ),
    Act(
        "A batch of two more questions under the same examples: another split, three branches.",
        ["shots q2", "shots q3"],
        [["r2"], ["r3"]],
    ),
    Act(
        "The first chat comes back with all its turns: the system prompt is still there; the second chat is evicted, "
        "tail first.",
        ["sys a1 a2 a3"],
    ),
    Act(
        "Two more answers to one question are sampled: they share the prompt and branch behind it; others are evicted.",
        ["shots q2"],
        [["s2", "t2"]],
    ),
)


@dataclass(frozen=True, slots=True)
class Scene:
    """One design after one step.

    Attributes:
        reused: cached tokens of each prompt of the step.
        evicted: names of what is no longer cached.
        nodes: nodes of its index.
        tree: the drawing of its index, line by line.
    """

    reused: tuple[int, ...]
    evicted: str
    nodes: int
    tree: tuple[str, ...]


@dataclass
class Stage:
    """One design in the play."""

    design: str
    cache: PrefixCache = field(init=False)
    known: dict[bytes, tuple[int, ...]] = field(default_factory=dict)  # what events said of the tokens of a key
    cached: set[tuple[int, ...]] = field(default_factory=set)  # every prefix that is cached

    def __post_init__(self) -> None:
        block_size = _BLOCK_SIZES[self.design]
        self.cache = PrefixCache(self.design, block_size=block_size, capacity=_MEMORY // block_size)

    @property
    def heading(self) -> str:
        """What stands above its drawings."""
        return f"{self.design}, {'page' if self.design == 'radix' else 'block'} {self.cache.block_size}"

    def play(self, act: Act) -> Scene:
        """Perform one step; what came of it."""
        reused = self._perform(act)
        outline = self.cache.outline()
        tokens = self._tokens(outline)
        before, self.cached = self.cached, _prefixes(outline, tokens)
        evicted = sorted(prefix[-1] for prefix in before - self.cached)
        return Scene(reused, named(evicted), len(outline), tuple(draw(outline, tokens, named)))

    def _perform(self, act: Act) -> tuple[int, ...]:
        """Admit the prompts together, sample their answers, end them in order."""
        admitted = self.cache.open_batch([{"tokens": pieces(prompt)} for prompt in act.prompts])
        requests = [request for request in admitted if isinstance(request, Request)]
        for request in requests:
            request.copied()
            request.computed(request.length)
        live = []
        for request, answers in zip(requests, act.answers or [[""]] * len(requests), strict=True):
            samples = [request, *(request.fork() for _ in answers[1:])]
            for sample in samples:
                sample.copied()
            for sample, answer in zip(samples, answers, strict=True):
                sample.append(pieces(answer))
                sample.computed(sample.length)
            live += samples
        for request in live:
            request.close()
        return tuple(request.cached for request in requests)

    def _tokens(self, outline: Sequence[OutlineNode]) -> list[tuple[int, ...]]:
        """The tokens of each node: its own, or, where the design keeps none, what the events said of its key."""
        size = self.cache.block_size
        for event in self.cache.take_events()[2]:
            if isinstance(event, Stored):
                for place, key in enumerate(event.keys):
                    self.known[key] = event.tokens[place * size : (place + 1) * size]
        return [node.tokens or self.known[node.keys[0]] for node in outline]


def pieces(names: str) -> list[int]:
    """The tokens of these pieces, one after the other."""
    return [token for name in names.split() for token in range(_STARTS[name], _STARTS[name] + _PIECES[name])]


def named(tokens: Sequence[int]) -> str:
    """The pieces that these tokens are of, in order; of a part of a piece, which part."""
    parts: list[list[int]] = []
    for token in tokens:
        if parts and token == parts[-1][1] and token not in _STARTS.values():
            parts[-1][1] += 1
        else:
            parts.append([token, token + 1])
    names = []
    for start, end in parts:
        name = next(name for name in reversed(_STARTS) if _STARTS[name] <= start)
        first, last = start - _STARTS[name], end - _STARTS[name]
        names.append(name if (first, last) == (0, _PIECES[name]) else f"{name}[{first}:{last}]")
    return " ".join(names)


def _prefixes(outline: Sequence[OutlineNode], tokens: Sequence[tuple[int, ...]]) -> set[tuple[int, ...]]:
    """Every prefix of a prompt that is cached, to the token."""
    paths: list[tuple[int, ...]] = []
    found: set[tuple[int, ...]] = set()
    for node, own in zip(outline, tokens, strict=True):
        before = paths[node.parent] if node.parent >= 0 else ()
        paths.append(before + own)
        found.update(paths[-1][: len(before) + end] for end in range(1, len(own) + 1))
    return found


def nine_steps() -> list[list[Scene]]:
    """The scenes of each step, a scene per design."""
    stages = [Stage(design) for design in THE_FOUR]
    return [[stage.play(act) for stage in stages] for act in ACTS]


def told(width: int) -> list[str]:
    """The whole story in lines: the four trees of a step side by side where `width` allows it, else stacked."""
    headings = [Stage(design).heading for design in THE_FOUR]
    lines: list[str] = []
    for number, (act, scenes) in enumerate(zip(ACTS, nine_steps(), strict=True), 1):
        columns = [[heading, *_shown(scene)] for heading, scene in zip(headings, scenes, strict=True)]
        lines += [
            *wrap(f"{number}. {act.told}", max(width, _COLUMN), subsequent_indent="   "),
            "",
            *side_by_side(columns, width),
            "",
        ]
    return lines[:-1]


def _shown(scene: Scene) -> list[str]:
    facts = [f"reused {' and '.join(map(str, scene.reused))}"] if scene.reused else []
    if scene.evicted:
        facts += wrap(f"evicted {scene.evicted}", _COLUMN, subsequent_indent="  ")
    return [*facts, *(scene.tree or ["(empty)"])]


@claim("C34", "figure 1", "the nine steps of figure 1: insert, match, split, evict")
def figure() -> Finding:
    rows: list[Row] = [("step", *(f"{Stage(design).heading}: reused, nodes" for design in THE_FOUR))]
    for number, scenes in enumerate(nine_steps(), 1):
        rows.append((number, *(f"{sum(scene.reused)}, {scene.nodes}" for scene in scenes)))
    return Finding(
        HOLDS,
        "in all four designs, each at its own grain: radix splits where prompts part, the others at the block before "
        "(hash_chain) or by copying into a block of the newcomer's. `prefixcache article nine-steps` draws every tree",
        table=tuple(rows),
    )
