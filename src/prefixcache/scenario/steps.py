"""The steps of a scenario as plain frozen values, and what each one returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from prefixcache.errors import PrefixCacheError


class ScenarioError(PrefixCacheError, ValueError):
    """A file is not a scenario. The message starts with the file and the line, the reason follows."""

    def __init__(self, file: Path, line: int, reason: str) -> None:
        self.file, self.line, self.reason = file, line, reason
        super().__init__(f"{file}:{line}: {reason}")


@dataclass(frozen=True, slots=True)
class Prompt:
    """What `run`, `open`, `probe` and their kin are asked with.

    Scope and media stay as the file gives them: they are built when the step is played, so that a
    refusal by the cache is an answer of the step and not a fault of the file.

    Attributes:
        tokens: as given, ranges expanded; values the cache refuses (-1, true) are kept for it to refuse.
        scope: fields of a `Scope`, None for the default one.
        media: fields of a `Media` each, digests as bytes; a field that the file leaves out is missing.
        extra_ids: one id per token, or None.
        options: the other keywords of `PrefixCache.open`.
    """

    tokens: list[Any]
    scope: Mapping[str, Any] | None = None
    media: tuple[Mapping[str, Any], ...] = ()
    extra_ids: list[Any] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Run:
    prompt: Prompt


@dataclass(frozen=True, slots=True)
class Open:
    name: str | None
    prompt: Prompt


@dataclass(frozen=True, slots=True)
class OpenBatch:
    members: tuple[Open, ...]


@dataclass(frozen=True, slots=True)
class Probe:
    prompt: Prompt


@dataclass(frozen=True, slots=True)
class Explain:
    prompt: Prompt


@dataclass(frozen=True, slots=True)
class Compute:
    """The step `step`: the KV of the next `tokens` tokens is written, None for all that are known."""

    of: str
    tokens: int | None


@dataclass(frozen=True, slots=True)
class Generate:
    """The step `gen`: one token after the other."""

    of: str
    tokens: list[Any]


@dataclass(frozen=True, slots=True)
class Release:
    """The steps `close`, `abort` and `preempt`."""

    how: str
    of: str
    in_flight: bool


@dataclass(frozen=True, slots=True)
class Resume:
    of: str
    append: list[Any]


@dataclass(frozen=True, slots=True)
class Rewind:
    of: str
    length: int


@dataclass(frozen=True, slots=True)
class Fork:
    of: str
    name: str


@dataclass(frozen=True, slots=True)
class Reserve:
    of: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Tell:
    """The steps `copied` and `settled`: something that the request waits for is done."""

    what: str
    of: str


@dataclass(frozen=True, slots=True)
class Pin:
    name: str
    prompt: Prompt


@dataclass(frozen=True, slots=True)
class Unpin:
    of: str


@dataclass(frozen=True, slots=True)
class Evict:
    blocks: int
    group: int | None = None


@dataclass(frozen=True, slots=True)
class Advance:
    seconds: float


@dataclass(frozen=True, slots=True)
class Ask:
    """The steps about the whole: `books` (of a group, or a tier), `reset`, `spill`, `events`, `stats` and the like."""

    what: str
    group: int | None = None
    tier: str = "device"


Action: TypeAlias = (
    Run | Open | OpenBatch | Probe | Explain | Compute | Generate | Release | Resume | Rewind
    | Fork | Reserve | Tell | Pin | Unpin | Evict | Advance | Ask
)  # fmt: skip

_ADMITTED = ("cached", "copies", "block_table", "tables")  # tables where a cache has attention groups

# Step -> the fields it returns. None: whatever the cache counts.
RETURNS: dict[str, tuple[str, ...] | None] = {
    "run": _ADMITTED,
    "open": _ADMITTED,
    "resume": _ADMITTED,
    "open_batch": ("cached", "copies", "block_tables"),
    "probe": ("cached", "need", "tiers", "reason"),
    "explain": ("cached", "reason", "differs"),
    "step": ("computed", "block_table", "tables", "moves"),
    "gen": ("computed", "length", "block_table", "tables", "moves"),
    "close": (),
    "abort": (),
    "preempt": (),
    "copied": ("copies",),
    "settled": (),
    "rewind": ("length", "copies", "block_table", "tables"),
    "fork": ("computed", "copies", "block_table", "tables"),
    "reserve": ("block_table", "tables"),
    "pin": ("blocks",),
    "unpin": (),
    "evict": ("evicted",),
    "advance": ("now",),
    "books": ("free", "idle", "pinned", "quarantined"),
    "reset": ("ok",),
    "spill": ("copies",),
    "generation": ("generation",),
    "events": ("events", "mirror"),
    "stats": None,
    "end_step": (),
}


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a file.

    Attributes:
        number: place in the file, from 1.
        line: line of the file, from 1.
        kind: the word the file uses, a key of `RETURNS`.
        expect: the right answers, for every design or per design.
    """

    number: int
    line: int
    kind: str
    action: Action
    expect: Mapping[str, Any]
    by_design: bool = False

    def expected(self, design: str) -> Mapping[str, Any]:
        """The right answers for one design; empty where the file names none for it."""
        if not self.by_design:
            return self.expect
        values: Mapping[str, Any] = self.expect.get(design, {})
        return values


@dataclass(frozen=True, slots=True)
class Scenario:
    """A scenario file.

    Attributes:
        cache: keywords of `PrefixCache`, with `design` or `preset` when `designs` is empty.
        cache_line: where they stand, for the error when the cache refuses them.
        designs: the designs to play the file with, empty when `cache` names it.
    """

    file: Path
    name: str
    cache: Mapping[str, Any]
    cache_line: int
    designs: tuple[str, ...]
    steps: tuple[Step, ...]
