"""Events where a block of the tree can be cached and not be found: those of the other groups follow the tree's.

Behind a hole (`evict_from="anywhere"`), and until the step ends (`visibility="step"`), the tree says nothing of a block
that it has. What hangs from such a block cannot be found either. This stands between the cache and its journal:

    tree    ──▶ stored, removed       a block can be found from now on, or no longer; told on, and what hangs there too
    groups  ──▶ stored, removed       a value hangs there, or no longer; told on if its block can be found
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from prefixcache.designs.groups.kinds import Full, Kind, Window
from prefixcache.designs.options import Options
from prefixcache.keys.scope import Scope
from prefixcache.keys.tokens import TOKEN_BYTES


def place_key(per_block: int, place: int) -> bytes:
    """What follows the key of a block of the tree where so many values hang from it: which one it is, from 0.

    Nothing where there is one, one byte up to 256, else as many as the last place takes, the high byte first.
    """
    return place.to_bytes(((per_block - 1).bit_length() + 7) // 8, "big")


class GroupSink(Protocol):
    """Where what became findable is reported, and what is so no longer: of the tree where no group is named."""

    def stored(
        self, keys: Sequence[bytes], parent: bytes | None, tokens: bytes, scope: Scope, group: int | None = None
    ) -> None: ...

    def removed(self, keys: Sequence[bytes], group: int | None = None) -> None: ...


class Hanging(NamedTuple):
    """One value of a group, as `Stored` speaks of it."""

    key: bytes
    parent: bytes | None
    tokens: bytes
    scope: Scope


class GroupEvents:
    """See the module. Every method is called under the cache's lock.

    Args:
        told: the journal.
        kinds: the groups, in the user's order.
        block_size: of the tree.
    """

    def __init__(self, told: GroupSink, kinds: Sequence[Kind], block_size: int) -> None:
        self._told = told
        self._tree_told = Full() in kinds  # else it stands for no memory, and nothing is said of it
        sizes = [(kind.block_size if isinstance(kind, Window) else None) or block_size for kind in kinds]
        self._bytes = [size * TOKEN_BYTES for size in sizes]  # by group: of the tokens of one block
        self._places = [len(place_key(max(block_size // size, 1), 0)) for size in sizes]  # by group: bytes behind a key
        self._findable: set[bytes] = set()  # keys of the tree
        self._hanging: dict[bytes, dict[tuple[int, bytes], Hanging]] = {}  # by key of the tree: (group, key)

    def stored(
        self, keys: Sequence[bytes], parent: bytes | None, tokens: bytes, scope: Scope, group: int | None = None
    ) -> None:
        """These can be found, or (with a group) hang from the tree, from now on."""
        if group is not None:
            values = list(self._values(keys, parent, tokens, scope, group))
            for value in values:
                self._hanging.setdefault(self._home(value.key, group), {})[group, value.key] = value
            self._tell(group, [value for value in values if self._home(value.key, group) in self._findable])
            return
        self._findable.update(keys)
        if self._tree_told:
            self._told.stored(keys, parent, tokens, scope)
        for group, values in self._by_group(keys):
            self._tell(group, values)

    def removed(self, keys: Sequence[bytes], group: int | None = None) -> None:
        """These can be found, or (with a group) hang from the tree, no longer."""
        if group is not None:
            self._told.removed([key for key in keys if self._drop(key, group)], group)
            return
        self._findable.difference_update(keys)
        if self._tree_told:
            self._told.removed(keys)
        for group, values in self._by_group(keys):
            self._told.removed([value.key for value in values], group)

    def clear(self) -> None:
        """Everything is gone, without a word."""
        self._findable.clear()
        self._hanging.clear()

    def _home(self, key: bytes, group: int) -> bytes:
        """The key of the tree's block that a value hangs from."""
        return key[: len(key) - self._places[group]]

    def _values(
        self, keys: Sequence[bytes], parent: bytes | None, tokens: bytes, scope: Scope, group: int
    ) -> Iterator[Hanging]:
        """The blocks of one run, each by itself."""
        step = self._bytes[group]
        for index, key in enumerate(keys):
            yield Hanging(key, parent, tokens[index * step : (index + 1) * step], scope)
            parent = key

    def _drop(self, key: bytes, group: int) -> bool:
        """A value hangs there no more; whether it could be found until now."""
        home = self._home(key, group)
        values = self._hanging[home]
        del values[group, key]
        if not values:
            del self._hanging[home]
        return home in self._findable

    def _by_group(self, homes: Iterable[bytes]) -> list[tuple[int, list[Hanging]]]:
        """What hangs from these blocks of the tree, in their order, and within one in the order of its places."""
        found: dict[int, list[Hanging]] = {}
        for home in homes:
            for (group, _), value in sorted(self._hanging.get(home, {}).items()):
                found.setdefault(group, []).append(value)
        return sorted(found.items())

    def _tell(self, group: int, values: Sequence[Hanging]) -> None:
        """One event for each run of neighbours."""
        run: list[Hanging] = []
        for value in (*values, None):
            if run and (value is None or value.parent != run[-1].key):
                tokens = b"".join(item.tokens for item in run)
                self._told.stored([item.key for item in run], run[0].parent, tokens, run[0].scope, group)
                run = []
            if value is not None:
                run.append(value)


def follow_tree(journal: GroupSink, kinds: Sequence[Kind], block_size: int, options: Options) -> GroupEvents | None:
    """What has to stand between a cache and its journal, None where nothing has to."""
    if kinds == (Full(),) or (options.visibility == "computed" and options.evict_from == "leaves"):
        return None
    return GroupEvents(journal, kinds, block_size)
