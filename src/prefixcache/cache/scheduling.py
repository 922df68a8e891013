"""In which order to admit waiting requests: pure functions over what probes said.

Three ideas of SGLang's scheduler. Each alone can keep a request that hits nothing waiting for ever behind a stream
of others that do, so each has a bound:

- *ageing* (`longest_prefix_first`): a pass of waiting is worth `aging` cached tokens, so whoever arrives
  `hit / aging` passes later cannot overtake any more;
- *patience* (all): who has waited for so many passes goes before all who have not, in order of arrival.

Queues are in order of arrival; orders are lists of positions in the queue. Nothing here changes a cache, and each
function costs O(n log n) comparisons of prompts for n waiting requests.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from prefixcache.errors import OptionError
from prefixcache.keys.scope import Scope
from prefixcache.keys.tokens import TOKEN_BYTES, TokenLike, as_tokens, common_tokens

MOST_PROBED = 128
PATIENCE = 64


@dataclass(frozen=True, slots=True)
class Waiting:
    """A request in the queue.

    Attributes:
        tokens: its prompt, any integer sequence; kept as a private copy.
        cached: tokens that a probe found (`Hit.cached`); 0 where nobody asked.
        waited: scheduling passes in which it could have been admitted and was not.
        scope: what its KV depends on besides the tokens.

    Raises `TokenError` for bad tokens, `OptionError` for a negative count.
    """

    tokens: TokenLike
    cached: int = 0
    waited: int = 0
    scope: Scope = field(default_factory=Scope)

    def __post_init__(self) -> None:
        if not isinstance(self.tokens, bytes):
            object.__setattr__(self, "tokens", as_tokens(self.tokens))
        for name in ("cached", "waited"):
            if getattr(self, name) < 0:
                raise OptionError(f"{name} is {getattr(self, name)!r}: expected a number from 0 on")

    @property
    def text(self) -> bytes:
        """The prompt as one uint32 buffer."""
        assert isinstance(self.tokens, bytes)
        return self.tokens


def worth_probing(queue_length: int, most: int = MOST_PROBED) -> bool:
    """Whether a pass should probe at all: beyond `most` waiting requests the order is that of arrival."""
    return queue_length <= most


def longest_prefix_first(
    queue: Sequence[Waiting],
    *,
    aging: int = 100,
    patience: int = PATIENCE,
    most: int = MOST_PROBED,
    deferred: Collection[int] = (),
) -> list[int]:
    """The longest cached prefix first, so that hot prefixes are used while they are there.

    Args:
        queue: the waiting requests in order of arrival.
        aging: cached tokens that one pass of waiting counts for; 0 leaves the bound to patience alone.
        patience: passes after which a request goes before all that have waited less.
        most: with more waiting requests the order is that of arrival; probes then need not be made.
        deferred: positions to put last (`defer_shared`).

    Returns positions in the queue. Equal ones stay in order of arrival.
    """
    if not worth_probing(len(queue), most):
        return list(range(len(queue)))

    def rank(position: int) -> tuple[bool, int]:
        request = queue[position]
        return position in deferred, -(request.cached + aging * request.waited)

    return _patient(queue, sorted(range(len(queue)), key=rank), patience)


def depth_first_weight(queue: Sequence[Waiting], *, page: int = 1, patience: int = PATIENCE) -> list[int]:
    """Requests along one branch of cached prefixes together, heavy branches first.

    The cached prefixes of the queue form a tree. The weight of a node is the number of requests that end in it or
    below; children are visited by falling weight (of equal ones, where the earliest request waits), and their
    requests come before the node's own.

    Args:
        queue: the waiting requests in order of arrival.
        page: tokens per block of the cache: prefixes part at its multiples.
        patience: passes after which a request goes before all that have waited less.

    Returns positions in the queue.
    """
    return _patient(queue, _post_order(_prefix_tree(queue, page * TOKEN_BYTES)), patience)


def defer_shared(
    queue: Sequence[Waiting], *, known: int = 32, shared: int = 32, patience: int = PATIENCE
) -> frozenset[int]:
    """Requests that better wait until an earlier one of the queue has computed what they share.

    A request that hits at most `known` tokens, and has `shared` tokens or more in common with one before it
    that is not deferred itself, is deferred for this pass: the next one finds them cached.

    Args:
        queue: the waiting requests in order of arrival.
        known: hits above this are good enough to go now; -1 defers nobody.
        shared: tokens in common that are worth the wait, at least 1.
        patience: whoever has waited for so many passes is not deferred.

    Returns positions in the queue.
    """
    if shared < 1:
        raise OptionError(f"shared is {shared!r}: expected a number of tokens from 1 on")
    going: dict[Scope, list[bytes]] = {}  # sorted: the longest common prefix is always at a neighbour
    deferred = set()
    for position, request in enumerate(queue):
        if request.cached > known:
            continue
        texts = going.setdefault(request.scope, [])
        at = bisect_left(texts, request.text)
        best = max((_common(text, request.text) for text in texts[max(at - 1, 0) : at + 1]), default=0)
        if best >= shared and request.waited < patience:
            deferred.add(position)
        else:
            insort(texts, request.text)
    return frozenset(deferred)


def _common(a: bytes, b: bytes) -> int:
    return common_tokens(a, 0, b, 0, min(len(a), len(b)) // TOKEN_BYTES)


def _patient(queue: Sequence[Waiting], order: list[int], patience: int) -> list[int]:
    """The order, with those that have waited too long in front."""
    overdue = [position for position, request in enumerate(queue) if request.waited >= patience]
    if not overdue:
        return order
    first = set(overdue)
    return overdue + [position for position in order if position not in first]


@dataclass(eq=False, slots=True)
class _Branch:
    """A cached prefix in which requests end or part, of `depth` bytes."""

    depth: int
    requests: list[int] = field(default_factory=list)
    children: list[_Branch] = field(default_factory=list)
    weight: int = 0
    first: int = 0


def _prefix_tree(queue: Sequence[Waiting], page_bytes: int) -> _Branch:
    """The tree of the cached prefixes: sorted, so that each meets the ones it shares most with next to it."""
    scopes: dict[Scope, bytes] = {}
    prefixes: dict[tuple[bytes, bytes], list[int]] = {}
    root = _Branch(0)
    for position, request in enumerate(queue):
        text = request.text[: request.cached * TOKEN_BYTES]
        if text:
            scope = scopes.setdefault(request.scope, request.scope.encode(0))
            prefixes.setdefault((scope, text), []).append(position)
        else:
            root.requests.append(position)
    path = [root]
    before = (b"", b"")
    for scope, text in sorted(prefixes):
        common = _common(before[1], text) * TOKEN_BYTES if scope == before[0] else 0
        if common < len(before[1]):  # they part: at a block boundary, unless one is the beginning of the other
            common -= common % page_bytes
        _climb(path, common)
        if len(text) == path[-1].depth:
            path[-1].requests += prefixes[scope, text]
        else:
            leaf = _Branch(len(text), prefixes[scope, text])
            path[-1].children.append(leaf)
            path.append(leaf)
        before = (scope, text)
    return root


def _climb(path: list[_Branch], depth: int) -> None:
    """Go up to the branch at this depth, made in the middle of an edge when it is missing."""
    last = path[-1]
    while path[-1].depth > depth:
        last = path.pop()
    if path[-1].depth < depth:
        fork = _Branch(depth, [], [last])
        path[-1].children[-1] = fork
        path.append(fork)


def _post_order(root: _Branch) -> list[int]:
    """Requests by falling weight of their branches, below before above; no recursion, however deep the tree."""
    below = []
    stack = [root]
    while stack:
        branch = stack.pop()
        below.append(branch)
        stack += branch.children
    never = max((position for branch in below for position in branch.requests), default=0) + 1
    for branch in reversed(below):  # children before parents
        branch.weight = len(branch.requests) + sum(child.weight for child in branch.children)
        branch.first = min([*branch.requests, *(child.first for child in branch.children)], default=never)
    order: list[int] = []
    visits = [(root, False)]
    while visits:
        branch, children_done = visits.pop()
        if children_done:
            order += branch.requests
            continue
        visits.append((branch, True))
        heavy_last = sorted(branch.children, key=lambda child: (child.weight, -child.first))
        visits += [(child, False) for child in heavy_last]
    return order
