"""From a YAML file to typed steps; every fault is named with its line and what was expected."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from prefixcache.scenario import steps as s
from prefixcache.scenario.fields import FieldReader
from prefixcache.scenario.located import LocatedList, LocatedMap, plain, read

_EVENT = ("stored", "parent", "tokens", "scope", "removed", "moved", "tier", "cleared", "group")


def load(file: Path) -> s.Scenario:
    """Read one scenario file. O(size).

    Raises:
        ScenarioError: the file is no scenario; names the line and the reason.
    """
    return _Loader(file).scenario()


class _Loader(FieldReader):
    """Reads one file; holds what the rules about names and designs need."""

    def __init__(self, file: Path) -> None:
        super().__init__(file)
        self._names: set[str] = set()
        self._designs: tuple[str, ...] = ()
        self._readers: dict[str, Callable[[int, Any], s.Action]] = {
            "run": lambda line, value: s.Run(self.prompt(line, value)),
            "open": self._open,
            "open_batch": lambda line, value: s.OpenBatch(self._batch(line, value)),
            "probe": lambda line, value: s.Probe(self.prompt(line, value)),
            "explain": lambda line, value: s.Explain(self.prompt(line, value)),
            "step": self._step,
            "gen": self._gen,
            "resume": self._resume,
            "rewind": self._rewind,
            "fork": self._fork,
            "reserve": self._reserve,
            "pin": self._pin,
            "unpin": lambda line, value: s.Unpin(self._of(line, value)),
            "evict": self._evict,
            "advance": self._advance,
        }
        for how in ("close", "abort", "preempt"):
            self._readers[how] = self._release(how)
        for what in ("copied", "settled"):
            self._readers[what] = self._tell(what)
        for what in ("books", "reset", "spill", "generation", "events", "stats", "end_step"):
            self._readers[what] = self._ask(what)

    def scenario(self) -> s.Scenario:
        top = read(self._file)
        if not isinstance(top, LocatedMap):
            raise self.fault(1, "a scenario is a map with `name`, `cache` and `steps`")
        self.known(top, ("name", "cache", "designs", "steps"), "at the top of a scenario")
        for key in ("cache", "steps"):
            if key not in top:
                raise self.fault(top.line, f"`{key}` is missing; a scenario has `name`, `cache` and `steps`")
        self._designs = self._read_designs(top)
        cache = self._read_cache(top)
        listed = top["steps"]
        if not isinstance(listed, LocatedList) or not listed:
            raise self.fault(top.lines["steps"], "`steps` is a list of at least one step")
        return s.Scenario(
            file=self._file,
            name=str(top.get("name", self._file.stem)),
            cache=cache,
            cache_line=top.lines["cache"],
            designs=self._designs,
            steps=tuple(
                self._one(number, line, item)
                for number, (line, item) in enumerate(zip(listed.lines, listed, strict=True), 1)
            ),
        )

    # The head of the file

    def _read_designs(self, top: LocatedMap) -> tuple[str, ...]:
        if "designs" not in top:
            return ()
        designs, line = top["designs"], top.lines["designs"]
        if not isinstance(designs, list) or not designs or not all(isinstance(d, str) for d in designs):
            raise self.fault(line, "`designs` is a list of names of designs, for example [radix, hash_chain]")
        if len(set(designs)) < len(designs):
            raise self.fault(line, "`designs` names a design twice")
        return tuple(designs)

    def _read_cache(self, top: LocatedMap) -> dict[str, Any]:
        cache, line = top["cache"], top.lines["cache"]
        if not isinstance(cache, LocatedMap):
            raise self.fault(line, "`cache` is a map, for example {design: radix, block_size: 4, capacity: 64}")
        named = [key for key in ("design", "preset") if key in cache]
        if self._designs and named:
            raise self.fault(cache.lines[named[0]], f"`{named[0]}` and `designs` cannot be given together")
        if not self._designs and len(named) != 1:
            raise self.fault(line, "`cache` names one `design` or one `preset` (or the file has `designs`)")
        for key in ("block_size", "capacity"):
            given = cache.get(key)
            per_group = key == "capacity" and "groups" in cache and isinstance(given, list)
            if not isinstance(given, int) and not per_group:
                also = ", with `groups` also a list of one for each" if key == "capacity" and "groups" in cache else ""
                wanted = f"a number (`capacity` in blocks{also})"
                raise self.fault(cache.lines.get(key, line), f"`cache` needs `{key}`, {wanted}")
        if "clock" in cache:
            raise self.fault(cache.lines["clock"], "the clock is the runner's; move it with the step `advance`")
        built: dict[str, Any] = plain(cache)
        return built

    # One step

    def _one(self, number: int, line: int, item: Any) -> s.Step:
        if not isinstance(item, LocatedMap):
            raise self.fault(line, f"step {number}: a step is a map such as {{run: {{tokens: [1, 2]}}}}")
        kinds = [key for key in item if key != "expect"]
        for key in kinds:
            if key not in self._readers:
                listed = ", ".join(sorted(self._readers))
                raise self.fault(item.lines[key], f"step {number}: unknown step `{key}`; there are {listed}")
        if len(kinds) != 1:
            given = " and ".join(f"`{key}`" for key in kinds) or "nothing but `expect`"
            raise self.fault(line, f"step {number}: one step at a time, here is {given}")
        kind = kinds[0]
        action = self._readers[kind](item.lines[kind], item[kind])
        expect, by_design = self._expect(kind, item)
        return s.Step(number, line, kind, action, expect, by_design)

    def _expect(self, kind: str, item: LocatedMap) -> tuple[dict[str, Any], bool]:
        if "expect" not in item:
            return {}, False
        expect, line = item["expect"], item.lines["expect"]
        if not isinstance(expect, LocatedMap):
            raise self.fault(line, "`expect` is a map, for example {cached: 4}")
        by_design = bool(expect) and all(key in self._designs for key in expect)
        for values in expect.values() if by_design else (expect,):
            if not isinstance(values, LocatedMap):
                raise self.fault(line, "`expect` by design is a map of maps, for example {radix: {cached: 7}}")
            returned = s.RETURNS[kind]
            if returned is not None:
                self.known(values, (*returned, "error"), f"that `{kind}` returns")
            if "events" in values:
                self._expand_events(values)
        built: dict[str, Any] = plain(expect)
        return built, by_design

    def _expand_events(self, values: LocatedMap) -> None:
        if not isinstance(values["events"], LocatedList):
            raise self.fault(values.lines["events"], "`events` is a list, for example [{stored: k0, tokens: [1, 2]}]")
        for event in values["events"]:
            if not isinstance(event, LocatedMap):
                raise self.fault(values.lines["events"], "an event is a map, for example {removed: k0}")
            self.known(event, _EVENT, "of an event")
            if "tokens" in event:
                event["tokens"] = self.tokens(event.lines["tokens"], event["tokens"])

    # Steps of a request

    def _open(self, line: int, value: Any) -> s.Open:
        prompt = self.prompt(line, value, also=("as",))
        name = None if value.get("as") is None else self._new_name(line, value["as"])
        return s.Open(name, prompt)

    def _batch(self, line: int, value: Any) -> tuple[s.Open, ...]:
        if not isinstance(value, LocatedList) or not value:
            raise self.fault(line, "a batch is a list of {as, tokens, ...}")
        return tuple(self._open(at, item) for at, item in zip(value.lines, value, strict=True))

    def _step(self, line: int, value: Any) -> s.Compute:
        fields = self._of_map(line, value, ("tokens",))
        count = fields.get("tokens")
        return s.Compute(fields["of"], None if count is None else self.count(line, "tokens", count, least=1))

    def _gen(self, line: int, value: Any) -> s.Generate:
        fields = self._of_map(line, value, ("token", "tokens"))
        if ("token" in fields) == ("tokens" in fields):
            raise self.fault(line, "`gen` takes one `token`, or a list of `tokens` made one after the other")
        tokens = [fields["token"]] if "token" in fields else self.tokens(line, fields["tokens"])
        return s.Generate(fields["of"], tokens)

    def _release(self, how: str) -> Callable[[int, Any], s.Action]:
        def reader(line: int, value: Any) -> s.Action:
            fields = self._of_map(line, value, ("in_flight",))
            in_flight = fields.get("in_flight", False)
            if not isinstance(in_flight, bool):
                raise self.fault(line, f"`in_flight` is true or false; got {in_flight!r}")
            return s.Release(how, fields["of"], in_flight)

        return reader

    def _tell(self, what: str) -> Callable[[int, Any], s.Action]:
        return lambda line, value: s.Tell(what, self._of(line, value))

    def _ask(self, what: str) -> Callable[[int, Any], s.Action]:
        def reader(line: int, value: Any) -> s.Action:
            allowed = ("group", "tier") if what == "books" else ()
            fields = self.fields(line, {} if value is None else value, allowed, f"of `{what}`")
            return s.Ask(what, self._group(line, fields), plain(fields.get("tier", "device")))

        return reader

    def _evict(self, line: int, value: Any) -> s.Evict:
        if not isinstance(value, LocatedMap):
            return s.Evict(self.count(line, "evict", value))
        fields = self.fields(line, value, ("blocks", "group"), "of `evict`")
        return s.Evict(self.count(line, "blocks", fields.get("blocks")), self._group(line, fields))

    def _group(self, line: int, fields: LocatedMap) -> int | None:
        return self.count(line, "group", fields["group"]) if "group" in fields else None

    def _resume(self, line: int, value: Any) -> s.Resume:
        fields = self._of_map(line, value, ("append",))
        return s.Resume(fields["of"], self.tokens(line, fields.get("append", [])))

    def _rewind(self, line: int, value: Any) -> s.Rewind:
        fields = self._of_map(line, value, ("length",))
        if "length" not in fields:
            raise self.fault(line, "`rewind` takes `of` and `length`, the number of tokens that stay")
        return s.Rewind(fields["of"], self.count(line, "length", fields["length"]))

    def _fork(self, line: int, value: Any) -> s.Fork:
        fields = self._of_map(line, value, ("as",))
        if fields.get("as") is None:
            raise self.fault(line, "`fork` takes `of` and `as`, the name of the new request")
        return s.Fork(fields["of"], self._new_name(line, fields["as"]))

    def _reserve(self, line: int, value: Any) -> s.Reserve:
        fields = self._of_map(line, value, ("tokens",))
        if "tokens" not in fields:
            raise self.fault(line, "`reserve` takes `of` and `tokens`, the absolute number to find room for")
        return s.Reserve(fields["of"], self.count(line, "tokens", fields["tokens"]))

    def _pin(self, line: int, value: Any) -> s.Pin:
        fields = self.fields(line, value, ("as", "tokens", "scope"), "of `pin`")
        prompt = self.prompt(line, value, also=("as",))
        if fields.get("as") is None:
            raise self.fault(line, "`pin` takes `as`, the name that `unpin` releases it by")
        return s.Pin(self._new_name(line, value["as"]), prompt)

    def _advance(self, line: int, value: Any) -> s.Advance:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
            raise self.fault(line, f"`advance` takes seconds, 0 or more; got {value!r}")
        return s.Advance(float(value))

    # Small rules

    def _of(self, line: int, value: Any) -> str:
        name: str = self._of_map(line, value, ())["of"]
        return name

    def _of_map(self, line: int, value: Any, also: Sequence[str]) -> LocatedMap:
        """{of: NAME, ...}, or NAME alone where nothing else is needed."""
        if not isinstance(value, LocatedMap):
            alone = LocatedMap(of=value)
            alone.line, alone.lines = line, {"of": line}
            value = alone
        fields = self.fields(line, value, ("of", *also), "of this step")
        if isinstance(fields.get("of"), bool | None) or not isinstance(fields.get("of"), str | int):
            raise self.fault(line, f"the name of a request is wanted; got {fields.get('of')!r}")
        fields["of"] = str(fields["of"])
        if fields["of"] not in self._names:
            known = ", ".join(sorted(self._names)) or "none yet"
            raise self.fault(line, f"nothing was opened as `{fields['of']}` before this step; names so far: {known}")
        return fields

    def _new_name(self, line: int, value: Any) -> str:
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise self.fault(line, f"`as` is a name; got {value!r}")
        self._names.add(str(value))
        return str(value)
