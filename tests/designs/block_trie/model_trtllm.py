"""The rules of the preset `trtllm`, small and slow: every block is an object, every question a scan.

Written from the rules of the original's C++ manager, not from the design: one node per block, one stamp per
let-go block, queues as a sort key. Where our contract differs from the original, the model follows the contract:
the source of a copy is in use until it is copied (its place in the queue is the original's), nobody writes or
publishes what others have yet to copy, and a refused request leaves no trace.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

DEFAULT = 35

Key = tuple[Any, ...]  # everything a block depends on below its parent: scope, (token, extra id)..., media


@dataclass(eq=False)
class Node:
    parent: Node | None = None
    key: Key = ()
    children: dict[Key, Node] = field(default_factory=dict)  # in order of insertion
    value: Block | None = None
    order: int = 0  # when it got its value

    def path(self) -> tuple[Key, ...]:
        return () if self.parent is None else (*self.parent.path(), self.key)


@dataclass(eq=False)
class Block:
    id: int
    stamp: int
    node: Node | None = None  # where it is attached
    refs: int = 0
    copiers: int = 0  # unfinished copies out of it
    priority: int = DEFAULT
    ttl: float | None = None
    since: float = 0.0
    expired: bool = False
    had_tokens: bool = False

    @property
    def waits(self) -> bool:
        return not self.refs and not self.copiers

    @property
    def place(self) -> tuple[int, int]:
        return self.priority, self.stamp


@dataclass
class Asked:
    """One request as asked for: `keys(n)` cuts its first n tokens into block keys, the last one maybe short."""

    prompt: Any
    retention: Any  # position -> (priority, ttl), None for not asked
    length: int


@dataclass(eq=False)
class Live:
    asked: Asked
    table: list[Block]
    length: int
    computed: int
    prompt_length: int  # what is left of the prompt
    copies: list[tuple[Block, Block]] = field(default_factory=list)
    cached: int = 0
    allocated: int = 0
    new: int = 0
    reused: int = 0
    missed: int = 0


@dataclass
class Found:
    """What a prompt matches: whole blocks, then perhaps `tokens` of `source`."""

    blocks: list[Block]
    source: Block | None = None
    tokens: int = 0


@dataclass(eq=False)
class Planned:
    asked: Asked
    found: Found
    blocks: int  # of the whole prompt
    role: str = ""  # of the hit inside a block: "", "copy" or "take"


class Refused(Exception):
    pass


class Model:
    def __init__(self, block_size: int, capacity: int) -> None:
        self.size, self.capacity = block_size, capacity
        self.root = Node()
        self.blocks = [Block(i, stamp=i) for i in range(capacity)]
        self.stamp = capacity
        self.stored_ever = 0
        self.now = 0.0

    # Matching

    def find(self, asked: Asked, limit: int) -> Found:
        node, found = self.root, Found([])
        for key in asked.prompt.keys(limit, self.size):
            child = node.children.get(key)
            if child is not None:
                if child.value is None:
                    return found  # an exact node without a value ends the walk
                if length(key) < self.size:
                    found.source, found.tokens = child.value, length(key)
                    return found
                found.blocks.append(child.value)
                node = child
                continue
            best = max(
                (child for child in node.children.values() if child.value),
                key=lambda child: (common(key, child.key), -child.order),  # ties: free to choose, the first
                default=None,
            )
            if best is not None and common(key, best.key):
                found.source, found.tokens = best.value, common(key, best.key)
            return found
        return found

    def probe(self, asked: Asked) -> int:
        found = self.find(asked, asked.length - 1)
        return len(found.blocks) * self.size + found.tokens

    # Admission

    def open_batch(self, batch: list[Asked]) -> list[Live | None]:
        admitted: list[Planned] = []
        plans = [self.plan(asked, admitted) for asked in batch]
        if admitted:
            self.expire()
        for plan in admitted:  # phase one
            for index, block in enumerate(plan.found.blocks):
                self.overwrite(block, plan.asked.retention(index * self.size))
            source = plan.found.source
            if source is not None and plan.role and source.waits:
                self.overwrite(source, plan.asked.retention(len(plan.found.blocks) * self.size))
        claimed = [block for plan in admitted for block in plan.found.blocks]
        claimed += [plan.found.source for plan in admitted if plan.role and plan.found.source is not None]
        for block in claimed:
            block.copiers += 1  # out of reach while the batch allocates
        lives = {id(plan): self.settle(plan, admitted) for plan in admitted}  # phase two
        for block in claimed:
            block.copiers -= 1
        return [None if plan is None else lives[id(plan)] for plan in plans]

    def plan(self, asked: Asked, admitted: list[Planned]) -> Planned | None:
        plan = Planned(asked, self.find(asked, asked.length - 1), -(-asked.length // self.size))
        source = plan.found.source
        roles = [""]
        if source is not None:
            roles = ["take", "copy", ""] if self.may_take(plan, admitted) else ["copy", "in place of all else", ""]
        for role in roles:
            if role == "in place of all else" and not (
                source in self.waiting() and source not in self.claimed(admitted)
            ):
                continue
            plan.role = "take" if role == "in place of all else" else role
            before = [(other, other.role) for other in admitted]
            self.overrule(plan, admitted)
            if self.drawn([*admitted, plan]) <= len(self.waiting()):
                admitted.append(plan)
                return plan
            for other, old in before:
                other.role = old
        return None

    def waiting(self) -> list[Block]:
        return [block for block in self.blocks if block.waits]

    def may_take(self, plan: Planned, admitted: list[Planned]) -> bool:
        source = plan.found.source
        assert source is not None and source.node is not None
        whole = any(source in other.found.blocks for other in admitted)
        return source.waits and not source.node.children and not whole

    def overrule(self, plan: Planned, admitted: list[Planned]) -> None:
        """Whoever would have taken what this request matches whole, or takes, copies instead."""
        for other in admitted:
            source = other.found.source
            if other.role == "take" and (
                source in plan.found.blocks or (plan.role == "take" and source is plan.found.source)
            ):
                other.role = "copy"

    def claimed(self, admitted: list[Planned]) -> set[Block]:
        blocks = {block for plan in admitted for block in plan.found.blocks}
        return blocks | {plan.found.source for plan in admitted if plan.role and plan.found.source is not None}

    def drawn(self, admitted: list[Planned]) -> int:
        waiting = sum(block.waits for block in self.claimed(admitted))
        return waiting + sum(plan.blocks - len(plan.found.blocks) - (plan.role == "take") for plan in admitted)

    def settle(self, plan: Planned, admitted: list[Planned]) -> Live:
        asked, found = plan.asked, plan.found
        live = Live(asked, list(found.blocks), asked.length, 0, asked.length)
        cached = len(found.blocks) * self.size
        for block in found.blocks:
            block.refs += 1
        live.reused = len(found.blocks)
        source = found.source if plan.role else None
        first = len(live.table)
        if source is not None:
            cached += found.tokens
            live.reused += 1
            if plan.role == "copy":
                target = self.take_block(live, first)
                target.priority, target.ttl = source.priority, source.ttl
                live.copies.append((source, target))
                source.copiers += 1
                later = admitted[admitted.index(plan) + 1 :]
                if not any(other.role == "copy" and other.found.source is source for other in later):
                    self.let_go(source)  # by its last copier
        for index in range(len(live.table) + (plan.role == "take"), plan.blocks):
            self.take_block(live, index)
        if plan.role == "take":
            assert source is not None
            self.detach(source)
            source.refs += 1
            live.table.insert(first, source)
        live.missed = plan.blocks - live.reused
        for index in range(len(found.blocks), plan.blocks):
            live.table[index].had_tokens |= index * self.size < asked.length - 1
        live.cached = live.computed = cached
        return live

    def overwrite(self, block: Block, terms: tuple[int | None, float | None]) -> None:
        priority, ttl = terms
        if priority is not None:
            block.priority = priority
        block.ttl = ttl

    # Blocks

    def take_block(self, live: Live, index: int) -> Block:
        """The front of the lowest queue, empty or not."""
        block = min(self.waiting(), key=lambda block: block.place)
        live.allocated += 1
        live.new += not block.had_tokens
        self.detach(block)
        priority, ttl = live.asked.retention(index * self.size)
        block.priority, block.ttl = DEFAULT if priority is None else priority, ttl
        block.refs = 1
        live.table.append(block)
        return block

    def detach(self, block: Block) -> None:
        node = block.node
        block.node = None
        if node is None:
            return
        node.value = None
        while node.parent is not None and node.value is None and not node.children:
            del node.parent.children[node.key]
            node = node.parent

    def let_go(self, block: Block) -> None:
        """It waits from now on, at the end of the queue of its priority."""
        self.stamp += 1
        block.stamp, block.since, block.expired = self.stamp, self.now, False

    def expire(self) -> None:
        due = [
            block
            for block in self.blocks
            if block.waits
            and block.ttl is not None
            and block.priority != DEFAULT
            and block.since + block.ttl <= self.now
        ]
        for block in sorted(due, key=lambda block: (block.since + (block.ttl or 0), block.stamp)):
            self.stamp += 1
            block.priority, block.stamp = DEFAULT, self.stamp

    # The life of a request

    def copied(self, live: Live) -> None:
        for source, _ in live.copies:
            source.copiers -= 1
        live.copies = []

    def run(self, live: Live, length: int) -> None:
        live.computed = length
        self.store(live, tail=False)

    def append(self, live: Live, count: int) -> None:
        missing = -(-(live.length + count) // self.size) - len(live.table)
        if missing > len(self.waiting()):
            raise Refused
        for _ in range(missing):
            self.take_block(live, len(live.table))
        live.length += count

    def rewind(self, live: Live, length: int) -> None:
        """Only where no stored block is cut in the middle."""
        keep = -(-length // self.size)
        for block in reversed(live.table[keep:]):
            self.release_block(block)
        del live.table[keep:]
        live.length, live.computed = length, min(live.computed, length)
        live.prompt_length = min(live.prompt_length, length)

    def usable(self, live: Live) -> int:
        """All known tokens but the last; while the prompt is unfinished, all computed ones but the last."""
        if live.computed < live.prompt_length:
            return live.computed - 1
        return min(live.computed, live.length - 1)

    def store(self, live: Live, tail: bool) -> None:
        node = self.root
        usable = self.usable(live)
        for index, key in enumerate(live.asked.prompt.keys(usable, self.size)):
            if length(key) < self.size and (not tail or live.table[index].node is not None):
                return
            node = node.children.setdefault(key, Node(node, key))
            if node.value is None and live.table[index].node is None:
                node.value, live.table[index].node = live.table[index], node
                live.table[index].had_tokens = True
                self.stored_ever += 1
                node.order = self.stored_ever

    def close(self, live: Live) -> None:
        if not live.copies:  # else the copied part was never written
            self.store(live, tail=True)
        for block in reversed(live.table):
            self.release_block(block)
        self.copied(live)

    def release_block(self, block: Block) -> None:
        block.refs -= 1
        if not block.refs:
            self.let_go(block)

    def evict(self, count: int) -> int:
        cached = [block for block in self.blocks if block.waits and block.node is not None]
        victims = sorted(cached, key=lambda block: block.place)[:count]
        for block in victims:
            self.detach(block)  # empty, it keeps its place
        return len(victims)

    # What there is

    def books(self) -> tuple[int, int, int]:
        waiting = self.waiting()
        idle = sum(block.node is not None for block in waiting)
        return len(waiting) - idle, idle, self.capacity - len(waiting)

    def stored(self) -> dict[int, tuple[Key, ...]]:
        return {block.id: block.node.path() for block in self.blocks if block.node is not None}


def length(key: Key) -> int:
    return len(key[1])


def common(one: Key, other: Key) -> int:
    """Leading (token, extra id) pairs, none if anything else differs; a block with media is whole or nothing."""
    if one[0] != other[0] or one[2] or other[2]:
        return 0
    return next(
        (i for i, (a, b) in enumerate(zip(one[1], other[1], strict=False)) if a != b), min(length(one), length(other))
    )
