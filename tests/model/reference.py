"""Reference: full blocks under LRU, small and slow, written from the contract and not from a design.

Everything is a scan over one list of block records. There is no tree and no hash: a block is
findable when its record carries its prefix, the parent of a prefix is the prefix without its last
block, a leaf is a block whose prefix no other findable block continues.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.model.mirror import Prefix
from tests.model.prompts import ScopeKey, Unit


class Refused(Exception):
    def __init__(self, need: int, available: int) -> None:
        super().__init__(f"needs {need} of {available}")
        self.need, self.available = need, available


@dataclass(eq=False)
class Block:
    prefix: Prefix | None = None  # while it is findable
    stale: bool = False  # findable once, before the weights changed
    holders: int = 0  # tables, pins and pending copies
    in_flight: int = 0  # ended requests whose last step may still write it
    released: int = 0  # when the last holder let go

    @property
    def cached(self) -> bool:
        return self.prefix is not None or self.stale

    @property
    def idle(self) -> bool:
        return self.cached and not self.holders and not self.in_flight


@dataclass(eq=False)
class Holder:
    """A request, or a pin."""

    scope: ScopeKey
    generation: int
    units: list[Unit]
    table: list[Block]
    store: bool = True
    computed: int = 0
    # Copies still to be made: what is held for each, its source at the end, and its target.
    copies: list[tuple[list[Block], Block]] = field(default_factory=list)

    @property
    def sources(self) -> list[Block]:
        return [block for path, _ in self.copies for block in path]


class BlockReference:
    def __init__(self, block_size: int, capacity: int, generation: int, must_fit: bool = False) -> None:
        self.must_fit = must_fit
        self.block_size, self.capacity, self.generation = block_size, capacity, generation
        self.blocks: list[Block] = []  # all that are not free
        self.holders: dict[int, Holder] = {}
        self.removed: list[Prefix] = []
        self._time = 0

    # What can be asked

    def books(self) -> tuple[int, int, int, int]:
        # A block that work in flight may still write is in quarantine, a copy out of it waiting or not.
        quarantined = sum(block.in_flight > 0 for block in self.blocks)
        pinned = sum(block.holders > 0 and not block.in_flight for block in self.blocks)
        idle = sum(block.idle for block in self.blocks)
        assert pinned + quarantined + idle == len(self.blocks), "a block that is not free belongs to nobody"
        return self.capacity - len(self.blocks), idle, pinned, quarantined

    @property
    def available(self) -> int:
        free, idle, _, _ = self.books()
        return free + idle

    def prefixes(self) -> set[Prefix]:
        return {block.prefix for block in self.blocks if block.prefix is not None}

    def match(self, scope: ScopeKey, units: tuple[Unit, ...]) -> list[Block]:
        found = []
        for end in range(self.block_size, len(units), self.block_size):  # at least one token is computed
            block = self._find((scope, self.generation, units[:end]))
            if block is None:
                break
            found.append(block)
        return found

    def need(self, scope: ScopeKey, units: tuple[Unit, ...], read: bool = True) -> int:
        matched = self.match(scope, units) if read else []
        return self._blocks(len(units)) - len(matched) + sum(block.idle for block in matched)

    # The life of a request

    def open(
        self,
        handle: int,
        scope: ScopeKey,
        units: tuple[Unit, ...],
        *,
        read: bool = True,
        store: bool = True,
        reserve: int | None = None,
    ) -> int:
        matched = self.match(scope, units) if read else []
        room = self._blocks(len(units) if reserve is None else max(reserve, len(matched) * self.block_size))
        fresh = max(0, room - len(matched))
        later = max(0, self._blocks(len(units)) - room) if self.must_fit else 0
        self._require(fresh + later + sum(block.idle for block in matched))
        for block in matched:
            block.holders += 1
        table = matched + self._take(fresh)
        self.holders[handle] = Holder(scope, self.generation, list(units), table, store)
        self.holders[handle].computed = len(matched) * self.block_size
        return len(matched) * self.block_size

    def open_batch(self, batch: list[tuple[int, ScopeKey, tuple[Unit, ...]]]) -> list[int | None]:
        """First everything matched is held, then room is made; who does not fit is left out from the start."""
        admitted: list[tuple[int, list[Block], int]] = []
        outcomes: list[int | None] = []
        for handle, scope, units in batch:
            matched = self.match(scope, units)
            fresh = self._blocks(len(units)) - len(matched)
            idle = {block for _, path, _ in admitted for block in path if block.idle}
            idle |= {block for block in matched if block.idle}
            if fresh + sum(more for _, _, more in admitted) + len(idle) > self.available:
                outcomes.append(None)
                continue
            admitted.append((handle, matched, fresh))
            self.holders[handle] = Holder(scope, self.generation, list(units), [])
            self.holders[handle].computed = len(matched) * self.block_size
            outcomes.append(len(matched) * self.block_size)
        for _, matched, _ in admitted:
            for block in matched:
                block.holders += 1
        for handle, matched, fresh in admitted:
            self.holders[handle].table = matched + self._take(fresh)
        return outcomes

    def computed(self, handle: int, length: int) -> None:
        holder = self.holders[handle]
        holder.computed = length
        if not holder.store or holder.generation != self.generation:
            return
        for index in range(length // self.block_size):
            prefix = (
                holder.scope,
                holder.generation,
                tuple(holder.units[: (index + 1) * self.block_size]),
            )
            own, known = holder.table[index], self._find(prefix)
            if known is None:
                own.prefix = prefix
            elif known is not own:
                known.holders += 1
                holder.table[index] = known
                self._drop(own)

    def append(self, handle: int, units: list[Unit]) -> None:
        holder = self.holders[handle]
        self._grow(holder, len(holder.units) + len(units))
        holder.units += units

    def reserve(self, handle: int, length: int) -> None:
        self._grow(self.holders[handle], length)

    def rewind(self, handle: int, length: int) -> None:
        holder = self.holders[handle]
        if length == len(holder.units):
            return  # nothing to forget: the room stays
        keep, inside = self._blocks(length), length % self.block_size
        tail = holder.table[keep:]
        cut = holder.table[keep - 1] if inside and keep <= len(holder.table) else Block()
        copies = cut.cached or (cut.holders > 1 and length < holder.computed)  # else nothing is written anew
        if copies and not self.available + sum(not b.cached and b.holders == 1 for b in tail):
            raise Refused(1, self.available)
        for path, target in holder.copies:
            if target in tail:
                self._release(path)
        holder.copies = [(path, target) for path, target in holder.copies if target not in tail]
        before = holder.table[: keep - 1] if cut.cached else []  # who holds a cached block holds its path
        for block in before:
            block.holders += bool(copies)
        self._release(tail)
        del holder.table[keep:], holder.units[length:]
        if copies:
            (holder.table[keep - 1],) = self._take(1)
            holder.copies.append(([*before, cut], holder.table[keep - 1]))
        holder.computed = min(holder.computed, length)

    def _in_other_table(self, holder: Holder, block: Block) -> bool:
        return any(block in other.table for other in self.holders.values() if other is not holder)

    def fork(self, handle: int, child: int) -> None:
        holder = self.holders[handle]
        full, total = holder.computed // self.block_size, self._blocks(len(holder.units))
        self._require(total - full)
        for block in holder.table[:full]:
            block.holders += 1
        twin = Holder(
            holder.scope,
            holder.generation,
            list(holder.units),
            holder.table[:full] + self._take(total - full),
            holder.store,
            holder.computed,
        )
        if holder.computed % self.block_size:
            source = holder.table[full]
            source.holders += 1
            twin.copies.append(([source], twin.table[full]))
        self.holders[child] = twin

    def copied(self, handle: int) -> None:
        holder = self.holders[handle]
        self._release(holder.sources)
        holder.copies = []

    def close(self, handle: int, *, in_flight: bool = False) -> None:
        """What others know is let go at once: work in flight writes behind it. The rest waits for the work."""
        holder = self.holders[handle]
        unwritten = holder.table[holder.computed // self.block_size :]
        own = [b for b in unwritten if not b.cached and not self._in_other_table(holder, b)]
        self._release([block for block in holder.table if block not in own or not in_flight])
        if in_flight:
            holder.table = own
            for block in holder.table:
                block.holders -= 1
                block.in_flight += 1
        else:
            del self.holders[handle]
            self._release(holder.sources)

    def settled(self, handle: int) -> None:
        holder = self.holders.pop(handle)
        for block in holder.table:
            block.in_flight -= 1
            if not block.in_flight and not block.holders:
                self.blocks.remove(block)
        self._release(holder.sources)

    def pin(self, handle: int, scope: ScopeKey, units: tuple[Unit, ...]) -> int:
        matched = self.match(scope, (*units, (0, "", 0)))  # a pin computes nothing: all of it may match
        for block in matched:
            block.holders += 1
        self.holders[handle] = Holder(scope, self.generation, list(units), matched)
        return len(matched)

    # What the owner of the cache does

    def evict(self, count: int) -> int:
        done = 0
        while done < count and self._evict_one():
            done += 1
        return done

    def reset(self) -> bool:
        if any(not block.idle for block in self.blocks):
            return False
        self.blocks.clear()
        return True

    def new_generation(self) -> int:
        self.generation += 1
        for block in self.blocks:
            if block.prefix is not None:
                self.removed.append(block.prefix)
                block.prefix, block.stale = None, True
        return self.generation

    # Blocks

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def _find(self, prefix: Prefix) -> Block | None:
        return next((block for block in self.blocks if block.prefix == prefix), None)

    def _require(self, need: int) -> None:
        if need > self.available:
            raise Refused(need, self.available)

    def _grow(self, holder: Holder, length: int) -> None:
        missing = self._blocks(length) - len(holder.table)
        if missing > 0:
            self._require(missing)
            holder.table += self._take(missing)

    def _take(self, count: int) -> list[Block]:
        while self.capacity - len(self.blocks) < count:
            assert self._evict_one(), "room was promised and no idle leaf is left"
        taken = [Block(holders=1) for _ in range(count)]
        self.blocks += taken
        return taken

    def _release(self, blocks: list[Block]) -> None:
        for block in reversed(blocks):  # tail first
            self._drop(block)

    def _drop(self, block: Block) -> None:
        self._time += 1
        block.holders -= 1
        block.released = self._time
        if not block.cached and not block.holders and not block.in_flight:
            self.blocks.remove(block)

    def _evict_one(self) -> bool:
        continued = {(p[0], p[1], p[2][: -self.block_size]) for p in self.prefixes()}
        leaves = [block for block in self.blocks if block.idle and block.prefix not in continued]
        if not leaves:
            return False
        victim = min(leaves, key=lambda block: (not block.stale, block.released))
        if victim.prefix is not None:
            self.removed.append(victim.prefix)
        self.blocks.remove(victim)
        return True
