"""What a test keeps in mind of requests, apart from what they say of themselves, and of the history."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.model.prompts import Prompt
from tests.model.setup import Setup

Operation = tuple[str, dict[str, Any]]


@dataclass(eq=False)
class Sequence:
    """What the test knows of a request, kept apart from what the request says of itself."""

    request: Any
    prompt: Prompt  # grows with the appended tokens
    generation: int
    store: bool
    read: bool
    computed: int = 0
    owed: tuple[int, ...] = ()  # tokens of a refused append


@dataclass(frozen=True)
class Writer:
    """The face of a request that is gone, as far as the KV oracle looks."""

    id: int
    tokens: tuple[int, ...]
    scope: Any
    media: Any
    extra_ids: Any
    block_table: tuple[int, ...]

    @property
    def tables(self) -> tuple[tuple[int, ...]]:
        """One attention group."""
        return (self.block_table,)


def writer_of(request: Any) -> Writer:
    table = tuple(request.block_table.tolist())
    return Writer(request.id, tuple(request.tokens), request.scope, request.media, request.extra_ids, table)


@dataclass(eq=False)
class Unsettled:
    """A released request with work in flight: its blocks as they were, for the late write."""

    sequence: Sequence
    late: Writer
    copies: tuple[Any, ...]
    start: int
    stop: int


def told(setup: Setup, log: list[Operation]) -> str:
    """A history as text."""
    return f"{setup}\n" + "\n".join(f"    {name}, {arguments}" for name, arguments in log)
