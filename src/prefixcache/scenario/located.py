"""YAML with line numbers: plain maps and lists that remember where they stand in the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from prefixcache.scenario.steps import ScenarioError


class LocatedMap(dict[str, Any]):
    """A map with its line and the line of every key."""

    line: int
    lines: dict[str, int]


class LocatedList(list[Any]):
    """A list with the line of every item."""

    line: int
    lines: list[int]


def read(file: Path) -> Any:
    """Parse a YAML file into `LocatedMap`, `LocatedList` and scalars. O(size).

    Raises:
        ScenarioError: the file cannot be read, is no YAML, or repeats a key.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not UTF-8 text"
        raise ScenarioError(file, 1, f"cannot be read: {reason}") from None
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        if node is None:
            raise ScenarioError(file, 1, "is empty; expected `name`, `cache` and `steps`")
        return _build(file, node, yaml.SafeLoader(""))
    except RecursionError:
        raise ScenarioError(file, 1, "is nested too deeply, or a part of it contains itself") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or str(error)
        raise ScenarioError(file, mark.line + 1 if mark else 1, f"is not YAML: {problem}") from None


def _build(file: Path, node: yaml.Node, scalars: yaml.SafeLoader) -> Any:
    line = node.start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        built = LocatedMap()
        built.line, built.lines = line, {}
        for key_node, value_node in node.value:
            key, key_line = str(key_node.value), key_node.start_mark.line + 1
            if key in built:
                raise ScenarioError(file, key_line, f"`{key}` stands here twice")
            built[key] = _build(file, value_node, scalars)
            built.lines[key] = key_line
        return built
    if isinstance(node, yaml.SequenceNode):
        items = LocatedList(_build(file, item, scalars) for item in node.value)
        items.line = line
        items.lines = [item.start_mark.line + 1 for item in node.value]
        return items
    return scalars.construct_object(node, deep=True)


def plain(value: Any) -> Any:
    """The same value as ordinary dicts and lists."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value
