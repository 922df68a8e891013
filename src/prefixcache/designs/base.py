"""The interface of a matching design: what is cached, who pins it, what may go.

A design owns the blocks that it has stored. A request owns the rest of its table. `Holding` is the line
between the two, and every change of ownership moves it:

    table   [0 .......... held) [held .............. len(table))
             the index owns,     private to the request: being computed,
             pinned by it        or never to be published

All calls come under the cache's lock; a design never locks, never calls back, and never copies memory.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from prefixcache.blocks.eviction import Policy
from prefixcache.blocks.pool import BlockPool
from prefixcache.blocks.retention import NO_WISHES, Retention
from prefixcache.designs.options import Options
from prefixcache.designs.outline import OutlineNode
from prefixcache.keys.extras import Extras
from prefixcache.keys.scope import Scope
from prefixcache.keys.tokens import Buffer


class EventSink(Protocol):
    """Where a design reports what became findable and what is so no longer."""

    def stored(self, keys: Sequence[bytes], parent: bytes | None, tokens: bytes, scope: Scope) -> None: ...

    def removed(self, keys: Sequence[bytes]) -> None: ...


class Lower(Protocol):
    """The tier below the device, which keeps what is evicted."""

    def evicting(self, keys: Sequence[bytes], before: bytes | None, blocks: Sequence[int]) -> None:
        """These full blocks, neighbours in a prompt behind the block `before`, are about to be evicted."""
        ...


@dataclass(slots=True)
class Prompt:
    """What a lookup asks for.

    Attributes:
        tokens: the tokens as one uint32 buffer.
        root: the encoded scope, generation included: nothing is shared between two roots.
        scope: the same for people and events, its generation filled in.
        extras: media and extra ids of the whole prompt, None when it has none.
        keys: block keys that a design has computed for this prompt, to be used again.
    """

    tokens: Buffer
    root: bytes
    scope: Scope
    extras: Extras | None = None
    keys: list[bytes] | None = None


@dataclass(slots=True)
class Partial:
    """A hit inside a block: the first `tokens` of `source`.

    Attributes:
        source: the block that holds them.
        tokens: how many of its tokens match, 1 .. block_size - 1 (block_size when the source is longer
            than what may be reused).
        idle: the source is in nobody's table (what a batch claims while it is admitted does not count).
        takeable: it is idle and nothing is cached behind it, so it may be extended in place.
        handle: the design's name for the source, for `hold` and `take`.
    """

    source: int
    tokens: int
    idle: bool
    takeable: bool
    handle: Any


@dataclass(slots=True)
class Match:
    """What a lookup found; nothing is changed or pinned by it.

    Attributes:
        tokens: cached tokens from the beginning, whole blocks.
        blocks: the blocks that hold them, in order.
        idle: how many of these blocks are idle now (pinning them takes them from the idle ones).
        anchor: the design's name for the place where the match ends.
        partial: what more is reusable inside the next block.
        dropped: tokens that agree and are not reusable because a draft model looks one token ahead.
        cut: tokens more that are cached, and that another attention group cannot resume behind.
        cut_by: why it cannot: "anchor missing" (a window) or "no checkpoint" (a recurrent state).
        cut_group: which group.
        branch: how long the hit would be if recurrent states were kept everywhere.
        loads: what follows in the tier below, a full block each; then nothing is reused inside a block.
        loaded: tokens of these.
    """

    tokens: int
    blocks: Sequence[int]
    idle: int
    anchor: Any
    partial: Partial | None = None
    dropped: int = 0
    cut: int = 0
    cut_by: str = ""
    cut_group: int = 0
    branch: int = 0
    loads: Sequence[Any] = ()
    loaded: int = 0

    @property
    def found(self) -> int:
        """All tokens that need not be computed."""
        return self.tokens + self.loaded + (self.partial.tokens if self.partial is not None else 0)

    def cut_loads(self, blocks: int, block_size: int) -> None:
        """Load no more than the first so many blocks."""
        self.loads = self.loads[:blocks]
        self.loaded = len(self.loads) * block_size


@dataclass(slots=True)
class Holding:
    """What one live request holds.

    Attributes:
        prompt: its tokens (growing), scope and extras.
        table: block ids, one per block of the request, in order.
        held: blocks at the front of the table that the index owns and this request pins.
        anchor: the design's name for the end of the held part; None at the beginning.
        generation: weight generation at admission.
        store: whether anything of it is published.
        retention: priorities and times to live that its blocks ask for.
        prompt_length: tokens of the prompt; blocks that begin behind it are generated ones.
        counted: tokens of the path on which this request has left its hit and priority.
        leaf: the design's name for what this request was the last to store, and may extend in place.
        step: scheduling step of its last open, computed or append.
        used: whether what is done counts as a use of the path; False when a request ends that was preempted,
            or aborted before its prompt was computed.
        sides: its tables of the attention groups beside the tree, empty where there are none.
    """

    prompt: Prompt
    table: array[int] = field(default_factory=lambda: array("i"))
    held: int = 0
    anchor: Any = None
    generation: int = 0
    store: bool = True
    retention: Retention = NO_WISHES
    prompt_length: int = 0
    counted: int = 0
    leaf: Any = None
    step: int = 0
    used: bool = True
    sides: Sequence[Any] = ()


class Design(ABC):
    """One way of finding cached prefixes. See the module for who owns what.

    Args:
        block_size: tokens per block.
        pool: where empty blocks come from and go to.
        options: the named options, already checked against what the design can honour.
        eviction: the policy that ranks what may go, or its name.
        events: where changes of the index are reported; None when nobody listens.
        clock: seconds, for times to live.
    """

    name: ClassVar[str]
    defaults: ClassVar[dict[str, Any]] = {}
    can: ClassVar[dict[str, tuple[Any, ...]]] = {}
    default_eviction: ClassVar[str] = "lru"
    any_priority: bool = False  # priorities beyond 0..100 are allowed
    has_tiers: ClassVar[bool] = True
    trusted_keys: bool = True  # equal keys mean equal prefixes, with no token compared
    lower: Lower | None = None  # where evicted blocks are kept
    ahead: int = 0  # tokens behind a block that belong to its identity
    withheld: int = 0  # of the computed tokens, how many last ones are never published

    def __init__(
        self,
        block_size: int,
        pool: BlockPool,
        options: Options,
        eviction: str | Policy,
        events: EventSink | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.block_size = block_size
        self.pool = pool
        self.options = options
        self.events = events
        self.eviction = eviction
        self.clock = clock
        self.step = 0  # scheduling steps that have ended
        self.evicted = 0  # blocks so far
        self.kept = 0  # blocks that were computed although the index had them, and stayed in their table

    # -- lookup -----------------------------------------------------------------------------------

    @abstractmethod
    def match(self, prompt: Prompt, limit: int) -> Match:
        """The longest cached prefix of the first `limit` tokens. Changes nothing."""

    def beside(self, prompt: Prompt, limit: int, least: int, ends: bool) -> Iterator[tuple[int, Iterator[Partial]]]:
        """Where else than by `match` a hit within the first `limit` tokens could end inside a block. Changes nothing.

        At each branch on the way of the match from `least` tokens on, the last one first: the tokens before it, and the
        blocks that begin as the prompt goes on and are not those of the match, the one that shares most first. Each is
        found when it is asked for. Nothing where no hit ends inside a block.

        Args:
            ends: only unfilled blocks all of whose tokens the prompt has.
        """
        return iter(())

    def divisible(self, partial: Partial) -> bool:
        """Whether less of a hit inside a block may be used than the lookup found."""
        return True

    def last_block(self, match: Match, tokens: int) -> Partial | None:
        """The last whole block of a match as the source of a hit inside it; None where it is reused whole or not."""
        return None

    def stored_blocks(self, prompt: Prompt, length: int) -> Sequence[int]:
        """The whole blocks of the first `length` tokens that a lookup finds, or will find when the step is over."""
        return self.match(prompt, length).blocks[:]

    def unfilled_end(self, prompt: Prompt, length: int) -> int:
        """The stored unfilled block that ends exactly with the first `length` tokens; -1 when there is none."""
        return -1

    # -- ownership --------------------------------------------------------------------------------

    @abstractmethod
    def claim(self, holding: Holding, match: Match) -> None:
        """Pin the match for the holding: its blocks become the front of the table. The index owns them."""

    @abstractmethod
    def publish(self, holding: Holding, length: int, tail: bool = False) -> Sequence[tuple[int, int, int]]:
        """Make the first `length` computed tokens findable; with `tail` also what does not fill a block.

        Ownership of the newly stored blocks goes to the index, pinned by the holding. Where the index
        already has a block, the holding moves onto it and its own goes back to the pool; returned are
        (table index, old block, new block) of these moves.
        """

    @abstractmethod
    def cut(self, holding: Holding, blocks: int) -> None:
        """Let go of the held blocks from index `blocks` on; the table is left to the caller."""

    @abstractmethod
    def release(self, holding: Holding) -> None:
        """Let go of all that is held, tail first; the path counts as used now. held becomes 0."""

    @abstractmethod
    def share(self, holding: Holding, other: Holding, blocks: int) -> None:
        """Pin the first `blocks` held blocks of `holding` for `other` too."""

    def idle_blocks(self, match: Match) -> Sequence[int]:
        """The matched whole blocks that nobody uses. Where a pinned block's parent is pinned, they are the last."""
        return match.blocks[len(match.blocks) - match.idle :]

    def claim_source(self, holding: Holding, partial: Partial) -> None:
        """Pin the source of a hit inside a block until it is copied or taken over."""
        self.hold(partial.handle)

    def inherit(self, partial: Partial, block: int) -> None:  # noqa: B027 - most designs rank by request alone
        """The private block will hold a copy out of the source: what it takes over from it besides KV."""

    @abstractmethod
    def handle(self, holding: Holding, index: int) -> Any:
        """The design's name for the held block at this table index, for `hold`."""

    @abstractmethod
    def hold(self, handle: Any) -> None:
        """Pin one stored block as the source of a copy."""

    @abstractmethod
    def drop(self, handle: Any) -> None:
        """Undo one `hold`."""

    def take(self, holding: Holding, partial: Partial) -> None:
        """Take an idle source out of the index: it becomes the next, private block of the table."""
        raise NotImplementedError(f"{self.name} has no partial hits")

    # -- room -------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def idle(self) -> int:
        """Cached blocks that nobody uses."""

    def evict(self, blocks: int) -> int:
        """Evict at least this many idle blocks (all, when there are fewer) into the pool; how many went."""
        gone = self._evict(blocks) if blocks > 0 else 0
        self.evicted += gone
        return gone

    @abstractmethod
    def _evict(self, blocks: int) -> int:
        """The design's own way of doing it; `blocks` is at least 1."""

    @property
    def available(self) -> int:
        """Blocks that an admission can draw: free and idle ones."""
        return self.pool.free + self.idle

    def allocate(self, holding: Holding, index: int, blocks: int) -> array[int]:
        """Private blocks for a request, which are to stand in its table from `index` on.

        Empty ones first, then evicted ones. The caller has checked the room.
        """
        shortfall = blocks - self.pool.free
        if shortfall > 0:
            self.evict(shortfall)
        return self.pool.take(blocks)

    def allocate_more(self, holding: Holding, blocks: int) -> array[int]:
        """As `allocate`, for a request that is already running: behind its table."""
        return self.allocate(holding, len(holding.table), blocks)

    def give_back(self, blocks: Sequence[int]) -> None:
        """Private blocks that a request has let go of."""
        self.pool.give(blocks)

    def owns(self, holding: Holding, index: int) -> bool:
        """Whether the index owns the block at this table index."""
        return index < holding.held

    def private(self, holding: Holding, start: int = 0) -> Sequence[int]:
        """The blocks of the table from index `start` on that the index does not own."""
        return holding.table[max(holding.held, start) :]

    def shrink(self, holding: Holding, held: int, blocks: int) -> None:
        """The request goes back: `cut` to `held` blocks, and private ones from table index `blocks` on go back."""
        private = self.private(holding, blocks)
        self.cut(holding, held)
        self.give_back(private)

    def let_go(self, holding: Holding, in_flight: bool) -> array[int]:
        """The request ends: `release`, and private blocks go back; in flight they are the caller's to quarantine."""
        private = array("i", self.private(holding))
        self.release(holding)
        if in_flight:
            return private
        self.give_back(private)
        return array("i")

    # -- with a tier below --------------------------------------------------------------------------

    def demote_to(self, lower: Lower) -> None:
        """From now on `lower` is told of what is evicted before it is, and hears all events of the index."""
        self.lower = lower

    def keys_behind(self, prompt: Prompt, match: Match) -> Iterable[bytes]:
        """The keys of the full blocks of a prompt behind a match, in order, made as they are asked for."""
        raise NotImplementedError(f"{self.name} has no tiers")

    def watch_leaves(self, ends_a_hit: Callable[[int], bool]) -> None:  # noqa: B027 - see `left_bare`
        """`left_bare` is going to be called; the function says whether a hit can end at a block now."""

    def left_bare(self, blocks: Iterable[int]) -> None:  # noqa: B027 - most originals keep them until their turn comes
        """Attention groups have evicted what hung from these blocks, so that no hit can end there any more.

        A design whose original has no such leaves evicts those that are idle leaves before all others.
        """

    # -- for explanations ---------------------------------------------------------------------------

    def agreeing(self, prompt: Prompt, limit: int) -> int:
        """How many of the first `limit` tokens agree with something stored, reusable or not.

        At least the hit; more only in designs that keep tokens. May scan the children of one node.
        """
        match = self.match(prompt, limit)
        return match.tokens + (match.partial.tokens if match.partial is not None else 0)

    def scopes(self) -> Iterable[bytes]:
        """The encoded scopes under which something may be stored."""
        return ()

    def keys_at(self, prompt: Prompt, start: int) -> Sequence[bytes]:
        """The keys under which events may have named the block that begins at token `start`, likeliest first.

        The full block's if the prompt fills it; where partial blocks are stored, theirs as well. O(prompt).
        """
        return ()

    @abstractmethod
    def outline(self) -> list[OutlineNode]:
        """Every node of the index, parents before children; what old weights have left, too. O(cached tokens)."""

    # -- life of the index --------------------------------------------------------------------------

    def expire(self) -> None:  # noqa: B027 - most policies know no time
        """Blocks whose time to live is over fall back to the default priority. Called before an admission."""

    def end_step(self) -> None:
        """The scheduling step is over: blocks registered in it can be matched (`visibility="step"`)."""
        self.step += 1

    @abstractmethod
    def retire(self) -> None:
        """The weights changed: all that is stored can no longer be reached and is evicted first."""

    @abstractmethod
    def clear(self) -> None:
        """Drop everything; the caller has made sure that nothing is pinned. Blocks go to the pool."""

    @abstractmethod
    def blocks(self) -> Iterator[int]:
        """Every block that the index owns, once."""

    def unreachable(self) -> Iterator[int]:
        """Blocks that the index owns and no prompt can reach now (`evict_from="anywhere"`)."""
        return iter(())

    @abstractmethod
    def check(self) -> None:
        """Assert every invariant of the structure; raises `InvariantError` naming the broken one."""
