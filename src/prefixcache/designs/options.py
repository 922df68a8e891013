"""The named options, with one meaning in every design."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from prefixcache.errors import OptionError, whole_number


@dataclass(frozen=True, slots=True)
class Options:
    """How a design behaves where the field differs. A design restricts the values it can honour.

    Attributes:
        partial: reuse inside a block: "off", "copy" (the request copies it before it writes) or "take"
            (an unused leaf is extended in place and leaves the index; else copied).
        store_last: whether the last known token's block may be published.
        duplicates: when two requests compute the same block: "give_back" moves the later one onto the
            first one's block, "keep" leaves its table as it is.
        evict_unit: "tail" evicts only as many blocks as asked from the end of a leaf, "node" whole leaves.
        hash: name of the chain's hash, or a function from bytes to bytes or int.
        child_limit: from this many children on, partial matching gives up; None: never.
        visibility: computed blocks can be matched at once ("computed") or after `end_step` ("step").
        lookahead: 1 when a draft model's KV depends on one token past the position.
        lookahead_by: how that is honoured: "drop" leaves the last matched unit out, "key" makes the next token
            part of a unit's identity.
        search: how a chain of keys is searched: "binary", "linear" or "galloping".
        must_fit: `open` refuses unless the whole prompt would fit, whatever it reserves.
        backoff: tokens at the end of every match that are left to a draft model. Unlike `lookahead` they are
            taken off before the last token of the prompt, which must be computed anyway.
        recency: what is a use of a path: "release" (whoever lets go of it), or "use": its admission, each
            `computed`, and an end after the whole prompt was computed, but not the letting go itself.
        refresh_on_split: a node that a prompt leaves in the middle counts as used, and its first part as new.
        count_hits: when a request's hit and priority are added to the nodes it uses: at admission too
            ("match"), or only when it publishes ("insert").
        cut_at_prompt: the end of the prompt is a node boundary, and the prompt has one more priority than the
            answer.
        priorities: "0..100", None being 35, or "any" integer, None being 0.
        evict_from: "leaves" alone may be evicted, or blocks "anywhere" in the order of their priority: what lies
            behind one stays and cannot be reached until the hole is filled; empty blocks wait in that order too.
        media: a block that a media item touches is matched token by token ("token"), or whole or not at all ("block").
        tails: whether of several partial blocks that begin alike only the "longest" is kept, or "all".
        child_hash: test hook of radix: a function that replaces the hash of a routing key.
        events: whether events are recorded for `take_events`.
        removals: keys of removed blocks that `explain` remembers, where events are recorded.
        event_buffer: events kept for a consumer that does not come; beyond it the oldest are dropped.
        lock_times: whether `stats().lock_holds` says how long calls held the cache's lock.
    """

    partial: str = "off"
    store_last: bool = True
    duplicates: str = "give_back"
    evict_unit: str = "tail"
    hash: str | Callable[[bytes], bytes | int] = "sha256"
    child_limit: int | None = None
    visibility: str = "computed"
    lookahead: int = 0
    lookahead_by: str = "drop"
    search: str = "binary"
    must_fit: bool = False
    backoff: int = 0
    recency: str = "release"
    refresh_on_split: bool = False
    count_hits: str = "match"
    cut_at_prompt: bool = False
    priorities: str = "0..100"
    evict_from: str = "leaves"
    media: str = "token"
    tails: str = "longest"
    child_hash: Callable[[bytes], int] | None = None
    events: bool = True
    event_buffer: int = 100_000
    removals: int = 16_384
    lock_times: bool = False


_VALUES: dict[str, tuple[Any, ...]] = {
    "partial": ("off", "copy", "take"),
    "store_last": (True, False),
    "duplicates": ("give_back", "keep"),
    "evict_unit": ("tail", "node"),
    "visibility": ("computed", "step"),
    "lookahead": (0, 1),
    "lookahead_by": ("drop", "key"),
    "search": ("binary",),
    "must_fit": (True, False),
    "recency": ("release", "use"),
    "refresh_on_split": (True, False),
    "count_hits": ("match", "insert"),
    "cut_at_prompt": (True, False),
    "priorities": ("0..100", "any"),
    "evict_from": ("leaves",),
    "media": ("token",),
    "tails": ("longest",),
    "events": (True, False),
    "lock_times": (True, False),
}
# Options that count something, with the least that makes sense.
_WHOLE_NUMBERS = {"child_limit": 1, "backoff": 0, "event_buffer": 1, "removals": 0}


def read_options(
    design: str, defaults: dict[str, Any], can: dict[str, tuple[Any, ...]], given: dict[str, Any]
) -> Options:
    """The options of a design from its defaults, what it can honour, and what the user gave.

    Raises `OptionError` naming the option, the value and what there is.
    """
    names = [field.name for field in fields(Options)]
    for name in given:
        if name not in names:
            raise OptionError(f"{design} has no option {name!r}: expected one of {', '.join(names)}")
    values = defaults | given
    for bool_name, true_means in (("partial", "copy"),):
        if isinstance(values.get(bool_name), bool):
            values[bool_name] = true_means if values[bool_name] else "off"
    for name, value in values.items():
        allowed = can.get(name, _VALUES.get(name))
        if allowed is not None and not any(value is a or (type(value) is type(a) and value == a) for a in allowed):
            raise OptionError(
                f"{design} cannot honour {name}={value!r}: expected {' or '.join(repr(a) for a in allowed)}"
            )
    for name, least in _WHOLE_NUMBERS.items():
        if name in values and (values[name] is not None or name != "child_limit"):
            values[name] = whole_number(values[name], name, least)
    hook = values.get("child_hash")
    if hook is not None and not callable(hook):
        raise OptionError(f"child_hash is {hook!r}: expected a function from bytes to int, or None")
    return Options(**values)
