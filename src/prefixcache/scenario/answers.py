"""What a step returned, in the plain form that files and reports use, held against the right answers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from prefixcache.designs.groups import Full, Kind, Window
from prefixcache.events import Cleared, Event, Moved, Removed, Stored


def plain(value: Any) -> Any:
    """A value of the library as dicts, lists and scalars. O(size)."""
    return msgspec.to_builtins(value, builtin_types=(bytes,), enc_hook=_plain_array)


def _plain_array(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise NotImplementedError(f"a {type(value).__name__} has no plain form")


def shown(value: Any) -> str:
    """A plain value on one line, as a scenario file would write it."""
    return json.dumps(value, default=repr)


def differences(expected: Mapping[str, Any], returned: Mapping[str, Any]) -> list[str]:
    """What is wrong with the answer of a step, one sentence each; empty when all is as expected.

    Maps are compared on the keys that `expected` lists, lists item by item.
    """
    if "error" in returned and "error" not in expected:
        return [f"refused with {returned['error']}: {returned['message']}"]
    if "error" in expected and "error" not in returned:
        return [f"error: expected {expected['error']}, got {shown(returned)}"]
    return [found for key, value in expected.items() for found in _differ(key, value, returned, key in returned)]


def _differ(path: str, expected: Any, holder: Mapping[str, Any], present: bool) -> list[str]:
    key = path.rpartition(".")[2]
    if not present:
        there = ", ".join(holder) or "nothing"
        return [f"{path}: expected {shown(expected)}, but there is no `{key}`; there is {there}"]
    return _unequal(path, expected, holder[key])


def _unequal(path: str, expected: Any, got: Any) -> list[str]:
    if isinstance(expected, Mapping) and isinstance(got, Mapping):
        return [found for key, value in expected.items() for found in _differ(f"{path}.{key}", value, got, key in got)]
    if isinstance(expected, list) and isinstance(got, list) and len(expected) == len(got):
        if not any(isinstance(item, Mapping) for item in expected):
            return [] if _same(expected, got) else [f"{path}: expected {shown(expected)}, got {shown(got)}"]
        return [
            found
            for index, (value, item) in enumerate(zip(expected, got, strict=True))
            for found in _unequal(f"{path}[{index}]", value, item)
        ]
    return [] if _same(expected, got) else [f"{path}: expected {shown(expected)}, got {shown(got)}"]


def _same(expected: Any, got: Any) -> bool:
    if isinstance(expected, list) and isinstance(got, list):
        return len(expected) == len(got) and all(map(_same, expected, got))
    return expected == got and isinstance(expected, bool) == isinstance(got, bool)


class EventLog:
    """The events of one play in a readable form, and the mirror built from them.

    Keys are opaque bytes: each is named k0, k1, ... in the order in which the play first tells of it,
    and keeps its name. An event about several keys is shown as one entry per key.
    """

    def __init__(self, block_size: int, groups: Sequence[Kind] = (Full(),)) -> None:
        self._sizes = [(isinstance(kind, Window) and kind.block_size) or block_size for kind in groups]
        self._tree_group = groups.index(Full()) if Full() in groups else None
        self._names: dict[bytes, str] = {}
        self._mirror: set[tuple[int, bytes]] = set()
        self._recent: list[dict[str, Any]] = []

    def add(self, events: Sequence[Event]) -> list[str]:
        """Take new events into the log and the mirror. Returns what no reader could make sense of."""
        return [fault for event in events for fault in self._add(event)]

    def take(self) -> dict[str, Any]:
        """The entries since the last call, and how many keys a reader of all events now holds."""
        recent, self._recent = self._recent, []
        return {"events": recent, "mirror": len(self._mirror)}

    def _add(self, event: Event) -> list[str]:
        match event:
            case Stored():
                return self._stored(event)
            case Removed(keys=keys, group=group):
                self._recent += [{"removed": self._name(key)} | self._shown(group) for key in keys]
                unknown = [key for key in keys if (group, key) not in self._mirror]
                self._mirror.difference_update((group, key) for key in keys)
                return [f"removed {self._name(key)}, which no event had stored" for key in unknown]
            case Moved(keys=keys, tier=tier):
                self._recent += [{"moved": self._name(key), "tier": tier} for key in keys]
                unknown = [key for key in keys if (self._tree_group or 0, key) not in self._mirror]
                return [f"moved {self._name(key)}, which no event had stored" for key in unknown]
            case Cleared():
                self._recent.append({"cleared": True})
                self._mirror.clear()
                return []

    def _stored(self, event: Stored) -> list[str]:
        faults = []
        # Only the tree's group is stored without holes: in others the block before may be missing.
        unknown = event.parent is not None and (event.group, event.parent) not in self._mirror
        if event.parent is not None and unknown and event.group == self._tree_group:
            faults.append(f"stored {self._name(event.keys[0])} behind {self._name(event.parent)}, which is not stored")
        parent, scope, size = event.parent, _scope(event.scope), self._sizes[event.group]
        for index, key in enumerate(event.keys):
            entry = {
                "stored": self._name(key),
                "parent": None if parent is None else self._name(parent),
                "tokens": [int(token) for token in event.tokens[index * size : (index + 1) * size]],
            }
            self._recent.append(entry | ({"scope": scope} if scope else {}) | self._shown(event.group))
            if (event.group, key) in self._mirror:
                faults.append(f"stored {self._name(key)}, which is stored already")
            self._mirror.add((event.group, key))
            parent = key
        return faults

    def _shown(self, group: int) -> dict[str, int]:
        """The attention group, where there are several."""
        return {"group": group} if len(self._sizes) > 1 else {}

    def _name(self, key: bytes) -> str:
        return self._names.setdefault(key, f"k{len(self._names)}")


def _scope(scope: Any) -> dict[str, Any]:
    """The fields of a scope that say something."""
    fields = {name: getattr(scope, name) for name in ("model", "generation", "adapter", "salt")}
    return {name: value for name, value in fields.items() if value}
