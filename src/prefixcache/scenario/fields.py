"""What every part of a scenario file is read with: maps of known keys, counts, tokens, prompts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prefixcache.scenario.located import LocatedList, LocatedMap, plain
from prefixcache.scenario.steps import Prompt, ScenarioError

_MOST_TOKENS = 10_000_000  # of one list: a typing error in a range must not eat the machine's memory

_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_HEX = re.compile(r"([0-9a-fA-F]{2})*")
_REPEAT = re.compile(r"(\d+)\*(\d+)")

_OPTIONS = (
    "priority", "ttl", "decode_priority", "decode_ttl", "read", "store", "reserve", "must_fit",
)  # fmt: skip
_PROMPT = ("tokens", "scope", "media", "extra_ids", *_OPTIONS)
_SCOPE = ("model", "generation", "adapter", "salt")
_MEDIA = ("digest", "start", "length", "offset")


class FieldReader:
    """Reads values of one file; every method raises `ScenarioError` with the line and what was expected."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def prompt(self, line: int, value: Any, also: Sequence[str] = ()) -> Prompt:
        fields = self.fields(line, value, (*also, *_PROMPT), "of a prompt")
        if "tokens" not in fields:
            raise self.fault(fields.line, "`tokens` is missing")
        extra_ids = fields.get("extra_ids")
        if extra_ids is not None:
            extra_ids = self.tokens(fields.lines["extra_ids"], extra_ids)
        options = {key: plain(fields[key]) for key in _OPTIONS if key in fields}
        for key in ("priority", "decode_priority"):
            if isinstance(options.get(key), list):
                options[key] = [self._retention(fields.lines[key], item) for item in options[key]]
        return Prompt(
            tokens=self.tokens(fields.lines["tokens"], fields["tokens"]),
            scope=self._scope(fields),
            media=self._media(fields),
            extra_ids=extra_ids,
            options=options,
        )

    def _retention(self, line: int, item: Any) -> tuple[Any, ...]:
        if not isinstance(item, list) or len(item) not in (3, 4):
            raise self.fault(line, "a priority over token ranges is a list of [start, end, priority, ttl]")
        return tuple(item)

    def _scope(self, fields: LocatedMap) -> dict[str, Any] | None:
        if fields.get("scope") is None:
            return None
        return dict(self.fields(fields.lines["scope"], fields["scope"], _SCOPE, "of a scope"))

    def _media(self, fields: LocatedMap) -> tuple[dict[str, Any], ...]:
        if fields.get("media") is None:
            return ()
        line = fields.lines["media"]
        if not isinstance(fields["media"], LocatedList):
            raise self.fault(line, '`media` is a list, for example [{digest: "00ff", start: 1, length: 2}]')
        return tuple(self._medium(line, item) for item in fields["media"])

    def _medium(self, line: int, value: Any) -> dict[str, Any]:
        item = self.fields(line, value, _MEDIA, "of a media item")
        fields: dict[str, Any] = plain(item)
        digest = fields.get("digest")
        if digest is not None:
            if not isinstance(digest, str) or not _HEX.fullmatch(digest):
                line = item.lines["digest"]
                raise self.fault(line, f'`digest` is hex in quotes, for example "00ff"; got {digest!r}')
            fields["digest"] = bytes.fromhex(digest)
        return fields

    def tokens(self, line: int, value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise self.fault(line, f'a list of tokens is wanted, for example [1, 2, "5..8"]; got {value!r}')
        tokens: list[Any] = []
        for item in value:
            tokens.extend(self._expand(line, item))
            if len(tokens) > _MOST_TOKENS:
                raise self.fault(line, f"more than {_MOST_TOKENS} tokens in one list")
        return tokens

    def _expand(self, line: int, item: Any) -> Sequence[Any]:
        if not isinstance(item, str):
            return (item,)
        if match := _RANGE.fullmatch(item):
            first, last = int(match[1]), int(match[2])
            if first <= last < first + _MOST_TOKENS:
                return range(first, last + 1)
        if (match := _REPEAT.fullmatch(item)) and int(match[2]) <= _MOST_TOKENS:
            return [int(match[1])] * int(match[2])
        raise self.fault(
            line,
            f'{item!r} is no token, no range "a..b" (a <= b, at most {_MOST_TOKENS}) and no "token*times"',
        )

    def count(self, line: int, what: str, value: Any, least: int = 0) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.fault(line, f"`{what}` takes a whole number, {least} or more; got {value!r}")
        return value

    def fields(self, line: int, value: Any, allowed: Sequence[str], where: str) -> LocatedMap:
        if not isinstance(value, dict):
            raise self.fault(line, f"a map is wanted; got {value!r}")
        if not isinstance(value, LocatedMap):
            empty = LocatedMap()
            empty.line, empty.lines = line, {}
            return empty
        self.known(value, allowed, where)
        return value

    def known(self, fields: LocatedMap, allowed: Sequence[str], where: str) -> None:
        for key in fields:
            if key not in allowed:
                listed = ", ".join(allowed) or "none"
                raise self.fault(fields.lines[key], f"unknown key `{key}`; keys {where}: {listed}")

    def fault(self, line: int, reason: str) -> ScenarioError:
        return ScenarioError(self._file, line, reason)
