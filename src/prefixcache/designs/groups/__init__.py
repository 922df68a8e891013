"""Attention groups: one tree for full attention, sliding windows and recurrent state."""

from prefixcache.designs.groups.events import follow_tree
from prefixcache.designs.groups.groups import Groups, SideNeed, SideRoom, tree_capacity
from prefixcache.designs.groups.kinds import Full, Kind, Recurrent, Window, read_groups
from prefixcache.designs.groups.side import Back, Side, Source, Wanted

__all__ = [
    "Back",
    "Full",
    "Groups",
    "Kind",
    "Recurrent",
    "Side",
    "SideNeed",
    "SideRoom",
    "Source",
    "Wanted",
    "Window",
    "follow_tree",
    "read_groups",
    "tree_capacity",
]
