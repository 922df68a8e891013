"""The runner: plays a scenario on a cache and holds every answer against the right one.

The KV oracle and `cache.check()` run after every step. Copies are made as late as the file allows, so
that a source block that is recycled or overwritten too early shows as wrong content.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from prefixcache import (
    Copy,
    InvariantError,
    Media,
    Pin,
    PrefixCache,
    PrefixCacheError,
    Recurrent,
    Request,
    RequestError,
    Scope,
    Window,
)
from prefixcache.scenario import steps as s
from prefixcache.scenario.answers import EventLog, differences, plain
from prefixcache.scenario.oracle import KVOracle, OracleError

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Outcome:
    """One played step: what it returned, and each difference from what the file expects."""

    step: s.Step
    returned: dict[str, Any]
    differences: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Played:
    """One scenario played with one design. After a broken invariant the rest is not played."""

    scenario: s.Scenario
    design: str
    outcomes: tuple[Outcome, ...]

    @property
    def differs(self) -> bool:
        return any(outcome.differences for outcome in self.outcomes)


def play(scenario: s.Scenario) -> list[Played]:
    """Play a scenario once per design.

    Raises:
        ScenarioError: the cache refuses the keywords under `cache`, or there is no such design.
    """
    if scenario.designs:
        return [_Player(scenario, design, {"design": design, **scenario.cache}).play() for design in scenario.designs]
    named = scenario.cache.get("design") or scenario.cache["preset"]
    return [_Player(scenario, named, scenario.cache).play()]


class _Clock:
    """The injected clock: stands still until a step moves it."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass(frozen=True, slots=True)
class _Writer:
    """A released request whose last step is still in flight: what it may yet write, and where."""

    request: Request
    id: int
    tokens: tuple[int, ...]
    scope: Any
    media: Any
    why_not: str
    extra_ids: Any
    tables: tuple[tuple[int, ...], ...]
    start: int
    stop: int


class _Player:
    """One play: the cache, the oracle, and the requests and pins by the names that the file gives."""

    def __init__(self, scenario: s.Scenario, design: str, keywords: Any) -> None:
        self._scenario = scenario
        self._design = design
        self._clock = _Clock()
        self._cache = _make_cache(scenario, keywords, self._clock)
        self._oracle = KVOracle(self._cache.block_size, self._cache.groups)
        self._events = EventLog(self._cache.block_size, self._cache.groups)
        self._requests: dict[str, Request] = {}
        self._live: dict[int, Request] = {}
        self._in_flight: dict[str, _Writer] = {}
        self._pins: dict[str, Pin] = {}
        self._refused: dict[str, int] = {}  # name -> number of the step that refused it
        self._moves: list[list[int]] = []
        self._number = 0

    def play(self) -> Played:
        outcomes: list[Outcome] = []
        for step in self._scenario.steps:
            self._number = step.number
            returned, broken = self._try(step.action)
            found = differences(step.expected(self._design), returned) if not broken else [broken]
            broken = broken or self._verify()
            if broken and broken not in found:
                found.append(broken)
            outcomes.append(Outcome(step, returned, tuple(found)))
            if broken:
                break
        return Played(self._scenario, self._design, tuple(outcomes))

    def _try(self, action: s.Action) -> tuple[dict[str, Any], str | None]:
        """What the step returned, and what is broken for good if the play cannot go on."""
        try:
            return self._do(action), None
        except (OracleError, InvariantError) as error:
            return _refusal(error), _sentence(error)
        except PrefixCacheError as error:
            return _refusal(error), None
        except Exception as error:
            # A fault of the library. The file is a bug report: it must end in a named step, not in a traceback.
            return _refusal(error), _sentence(error)

    def _verify(self) -> str | None:
        """The rules that hold after every step; the first that is broken, as a sentence."""
        try:
            for request in self._live.values():
                self._oracle.verify(request, self._readable(request), request.computed_tokens)
                for copy in self._incoming(request):
                    self._oracle.verify_source(request, copy, request.computed_tokens)
            self._cache.check()
            faults = self._events.add(self._cache.take_events()[2]) if self._cache.options.events else []
        except Exception as error:
            return _sentence(error)
        return f"events: {faults[0]}" if faults else None

    # Steps

    def _do(self, action: s.Action) -> dict[str, Any]:
        cache = self._cache
        match action:
            case s.Run(prompt):
                return self._run(prompt)
            case s.Open(name, prompt):
                return self._admitted(self._admit(name, self._open(name, prompt)))
            case s.OpenBatch(members):
                return self._open_batch(members)
            case s.Probe(prompt):
                hit = cache.probe(prompt.tokens, **_content(prompt))
                return {name: plain(getattr(hit, name)) for name in ("cached", "need", "tiers", "reason")}
            case s.Explain(prompt):
                explained = cache.explain(prompt.tokens, **_content(prompt))
                return {"cached": explained.cached, "reason": explained.reason, "differs": list(explained.differs)}
            case s.Compute(of, count):
                request = self._find(of)
                self._compute(request, count)
                return self._progress(request)
            case s.Generate(of, tokens):
                request = self._find(of)
                for token in tokens:
                    self._compute(request)
                    request.append(token)
                return self._progress(request) | {"length": request.length}
            case s.Pin(name, prompt):
                self._pins[name] = pin = cache.pin(prompt.tokens, _scope(prompt))
                return {"blocks": plain(pin.blocks)}
            case s.Unpin(of):
                self._named(of, self._pins).release()
                return {}
            case s.Evict(blocks, group):
                return {"evicted": cache.evict(blocks, group)}
            case s.Advance(seconds):
                self._clock.now += seconds
                return {"now": self._clock.now}
            case s.Ask("books", group, tier):
                return dict(plain(cache.books(group, tier)))
            case s.Ask(what):
                return self._ask(what)
            case _:
                return self._with_request(action)

    def _with_request(self, action: s.Action) -> dict[str, Any]:
        match action:
            case s.Release():
                return self._release(action)
            case s.Resume(of, tokens):
                return self._admitted(self._admit(of, self._find(of).resume(append=tokens)))
            case s.Rewind(of, length):
                request = self._find(of)
                request.rewind(length)
                return {"length": request.length} | self._placed(request)
            case s.Fork(of, name):
                parent = self._find(of)
                child = self._admit(name, parent.fork())
                self._oracle.fork(parent, child)
                return {"computed": child.computed_tokens} | self._placed(child)
            case s.Reserve(of, count):
                request = self._find(of)
                request.reserve(count)
                return {"block_table": plain(request.block_table)} | self._tables(request)
            case s.Tell("copied", of):
                return {"copies": self._copy(self._find(of))}
            case s.Tell(_, of):
                return self._settle(of)
            case _:
                raise TypeError(f"no rule plays {action}")

    def _ask(self, what: str) -> dict[str, Any]:
        cache = self._cache
        match what:
            case "reset":
                return {"ok": cache.reset()}
            case "generation":
                return {"generation": cache.new_generation()}
            case "spill":
                spills = cache.spill()
                copies = spills.copies
                self._oracle.copy(copies)
                spills.copied()
                return {"copies": len(copies)}
            case "stats":
                stats = cache.stats()
                return {**plain(stats), "hit_tokens": stats.hit_tokens, "hit_rate": stats.hit_rate}
            case "end_step":
                cache.end_step()
                return {}
            case _:
                if not cache.options.events:
                    cache.take_events()  # says that events are off
                return self._events.take()

    def _run(self, prompt: s.Prompt) -> dict[str, Any]:
        request = self._admit(None, self._open(None, prompt))
        returned = self._admitted(request)
        try:
            self._compute(request)
        finally:
            # A refused `computed` must not leave a request behind that the file cannot name.
            self._live.pop(request.id)
            request.close()
        return returned

    def _open(self, name: str | None, prompt: s.Prompt) -> Request:
        try:
            return self._cache.open(prompt.tokens, **_content(prompt), **prompt.options)
        except PrefixCacheError:
            self._refuse(name)
            raise

    def _open_batch(self, members: Sequence[s.Open]) -> dict[str, Any]:
        prompts = [
            {"tokens": member.prompt.tokens, **_content(member.prompt), **member.prompt.options} for member in members
        ]
        admitted: list[dict[str, Any] | None] = []
        for member, result in zip(members, self._cache.open_batch(prompts), strict=True):
            if isinstance(result, Request):
                admitted.append(self._admitted(self._admit(member.name, result)))
            else:
                self._refuse(member.name)
                admitted.append(None)
        return {
            "cached": [each and each["cached"] for each in admitted],
            "copies": [each and each["copies"] for each in admitted],
            "block_tables": [each and each["block_table"] for each in admitted],
        }

    def _compute(self, request: Request, count: int | None = None) -> None:
        """One step of a model: read the table, write the KV of the next tokens, announce it."""
        self._copy(request)
        start = request.computed_tokens
        stop = request.length if count is None else min(start + count, request.length)
        self._oracle.verify(request, start)
        if start == stop:
            return
        source = self._awaited_source(request, start, stop)
        if source is not None:
            # Writing now could destroy what another request has yet to copy; the cache must say so.
            request.computed(stop)
            raise OracleError(f"computed({stop}) went through while a copy out of block {source[1]} is pending")
        # What lies beyond the table cannot be written; that too is for the cache to refuse.
        self._oracle.write(request, start, min(stop, len(request.block_table) * request.block_size))
        request.computed(stop)
        self._moves += [list(move) for move in request.take_moves()]
        self._oracle.verify(request, self._readable(request), stop)

    def _awaited_source(self, request: Request, start: int, stop: int) -> tuple[int, int] | None:
        """(group, block) that positions [start, stop) are written to and that another request has yet to copy."""
        copies = [copy for other in self._live.values() for copy in other.copies]
        sources = {(copy.group, copy.source) for copy in copies if copy.source_tier == copy.target_tier}
        if not sources:
            return None
        written: set[tuple[int, int]] = set()
        for group, table in enumerate(request.tables):
            size = self._block_size(group)
            blocks = table if size is None else table[start // size : -(-stop // size)]
            written.update((group, int(block)) for block in blocks)
        return min(written & sources, default=None)

    def _block_size(self, group: int) -> int | None:
        """Tokens per block of a group; None for a recurrent one, whose one block stands for all tokens."""
        kind = self._cache.groups[group]
        if isinstance(kind, Recurrent):
            return None
        return (kind.block_size if isinstance(kind, Window) else None) or self._cache.block_size

    def _readable(self, request: Request) -> int:
        """How many positions of a request must hold their KV now: those before its first pending copy."""
        tables, pending = request.tables, [request.computed_tokens]
        for copy in self._incoming(request):
            size = self._block_size(copy.group)
            at = 0 if size is None else tables[copy.group].tolist().index(copy.target) * size
            # A state is checked only when all positions are.
            pending.append(min(at, request.computed_tokens) if size else max(request.computed_tokens - 1, 0))
        return min(pending)

    @staticmethod
    def _incoming(request: Request) -> list[Copy]:
        return [copy for copy in request.copies if copy.target_tier == "device"]

    def _placed(self, request: Request) -> dict[str, Any]:
        return {"copies": len(request.copies), "block_table": plain(request.block_table)} | self._tables(request)

    def _tables(self, request: Request) -> dict[str, Any]:
        """One table per attention group, where a cache has several."""
        return {"tables": [plain(table) for table in request.tables]} if len(self._cache.groups) > 1 else {}

    def _admitted(self, request: Request) -> dict[str, Any]:
        return {"cached": request.cached} | self._placed(request)

    def _copy(self, request: Request) -> int:
        copies = request.copies
        if copies:
            self._oracle.copy(copies)
            request.copied()
        return len(copies)

    def _progress(self, request: Request) -> dict[str, Any]:
        moves, self._moves = self._moves, []
        return {
            "computed": request.computed_tokens,
            "block_table": plain(request.block_table),
            "moves": moves,
        } | self._tables(request)

    def _release(self, action: s.Release) -> dict[str, Any]:
        request = self._find(action.of)
        if action.in_flight and request.id in self._live:
            tables = tuple(tuple(table.tolist()) for table in request.tables)
            self._in_flight[action.of] = _Writer(
                request=request,
                id=request.id,
                tokens=tuple(request.tokens),
                scope=request.scope,
                media=request.media,
                why_not=request.why_not,
                extra_ids=request.extra_ids,
                tables=tables,
                start=request.computed_tokens,
                stop=min(request.length, len(request.block_table) * self._cache.block_size),
            )
        getattr(request, action.how)(in_flight=action.in_flight)
        self._live.pop(request.id, None)
        return {}

    def _settle(self, of: str) -> dict[str, Any]:
        """The work in flight ends at the last moment it may, having written all it was told to."""
        writer = self._in_flight.pop(of, None)
        if writer is None:
            self._find(of).settled()
        else:
            self._oracle.write(writer, writer.start, writer.stop)
            writer.request.settled()
        return {}

    # Names

    def _admit(self, name: str | None, request: Request) -> Request:
        self._live[request.id] = request
        if name is not None:
            self._requests[name] = request
            self._refused.pop(name, None)
        return request

    def _refuse(self, name: str | None) -> None:
        if name is not None:
            self._requests.pop(name, None)
            self._refused[name] = self._number

    def _find(self, name: str) -> Request:
        return self._named(name, self._requests)

    def _named(self, name: str, kind: dict[str, _T]) -> _T:
        if name in kind:
            return kind[name]
        if name in self._refused:
            raise RequestError(f"`{name}` was refused in step {self._refused[name]}")
        raise RequestError(f"`{name}` names nothing that this step can use")


def _make_cache(scenario: s.Scenario, keywords: Any, clock: _Clock) -> PrefixCache:
    options = dict(keywords)
    try:
        if "preset" in options:
            return PrefixCache.preset(options.pop("preset"), clock=clock, **options)
        return PrefixCache(options.pop("design"), clock=clock, **options)
    except (PrefixCacheError, TypeError) as error:
        raise s.ScenarioError(scenario.file, scenario.cache_line, f"no such cache: {error}") from None


def _content(prompt: s.Prompt) -> dict[str, Any]:
    return {"scope": _scope(prompt), "media": _media(prompt), "extra_ids": prompt.extra_ids}


def _scope(prompt: s.Prompt) -> Scope | None:
    return None if prompt.scope is None else Scope(**prompt.scope)


def _media(prompt: s.Prompt) -> list[Any]:
    """Whole items as `Media`; an item with fields missing goes to the cache as the map that it is."""
    return [Media(**item) if {"digest", "start", "length"} <= set(item) else item for item in prompt.media]


def _refusal(error: Exception) -> dict[str, Any]:
    return {"error": type(error).__name__, "message": str(error)}


def _sentence(error: Exception) -> str:
    """One sentence for what broke; for a crash also the line of the library that raised."""
    where = ""
    if not isinstance(error, PrefixCacheError):
        frame = error.__traceback__
        while frame is not None and frame.tb_next is not None:
            frame = frame.tb_next
        if frame is not None:
            where = f" (in {frame.tb_frame.f_code.co_qualname}, line {frame.tb_lineno})"
    return f"{type(error).__name__}: {error}{where}"
