"""A group of sliding-window layers: a hit needs the blocks that the next position reads, and no others.

    tokens         0 ............................ length
    window of 8                         |<-- 7 -->|            first_read(length) = length + 1 - 8
    blocks of 4    [  -1  ][  -1  ][ kept ][ kept ]            a block before it may be missing: nobody reads it

A hole nearer than that ends the match in front of it, unless the blocks in front reach a window back themselves.
Where the group's blocks are coarser than the tree's, they hang from every second (third ...) of its blocks, and
hits end there; where they are finer, several hang from each.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from prefixcache.designs.groups.kinds import Window
from prefixcache.designs.groups.side import NOTHING, Back, Kept, Side, SideTable, Source, Stored, Wanted
from prefixcache.designs.groups.values import Present, Values


class WindowSide(Side):
    """See the module. Entry j of a table holds the tokens [j * block_size, (j + 1) * block_size)."""

    reason = "anchor missing"

    def __init__(self, group: int, values: Values, tree_size: int, kind: Window) -> None:
        super().__init__(group, values, tree_size)
        self.kind = kind
        self.block_size = kind.block_size or tree_size
        self._fine = values.per_block  # entries that hang from one block of the tree
        self._coarse = max(1, self.block_size // tree_size)  # blocks of the tree behind one entry
        self._sinks = -(-kind.sinks // self.block_size)  # entries that are always read

    def _home(self, entry: int) -> tuple[int, int]:
        """Index of the tree's block that an entry hangs from, and which of its places."""
        return entry // self._fine * self._coarse + self._coarse - 1, entry % self._fine

    def _places(self, tree_blocks: Sequence[int], entries: Iterable[int]) -> list[int]:
        """The place of each entry, where the tree's blocks are these; a negative one where they are -1."""
        fine, coarse = self._fine, self._coarse
        if fine == coarse == 1:
            return [tree_blocks[entry] for entry in entries]
        return [tree_blocks[e // fine * coarse + coarse - 1] * fine + e % fine for e in entries]

    def _first(self, length: int) -> int:
        """The first entry behind the sinks that the position `length` reads."""
        return max(self.kind.first_read(length) // self.block_size, self._sinks)

    def _read(self, length: int, position: int) -> Sequence[int]:
        """The entries within the first `length` tokens that a position reads."""
        entries, begin = length // self.block_size, self._first(position)
        return (*range(min(self._sinks, entries)), *range(begin, entries)) if self._sinks else range(begin, entries)

    # -- safety -------------------------------------------------------------------------------------

    def safe(self, tree_blocks: Sequence[int]) -> Present:
        lengths = np.arange(len(tree_blocks) + 1) * self.tree_size
        safe: Present = lengths % self.block_size == 0
        safe[safe] = self._has_what_is_read(tree_blocks, lengths[safe])
        return safe

    def safe_within(self, tree_blocks: Sequence[int], least: int) -> Present:
        if self._coarse > 1:
            return super().safe_within(tree_blocks, least)
        return self._has_what_is_read(tree_blocks, np.arange(least, len(tree_blocks) * self.tree_size + 1))

    def _has_what_is_read(
        self, tree_blocks: Sequence[int], lengths: np.ndarray[Any, np.dtype[np.int64]], behind: int = 0
    ) -> Present:
        """For each of these lengths whether all of it is there that is read by the position so far behind it."""
        there = self.values.present(tree_blocks[self._coarse - 1 :: self._coarse])
        entries = -(-lengths // self.block_size)
        # Of the first e entries: the last one that is missing, by e. It must be too far back to be read.
        missing = np.where(there, NOTHING, np.arange(len(there)))
        last_missing = np.maximum.accumulate(np.concatenate(([NOTHING], missing)))
        first_missing = int(np.argmin(there)) if not there.all() else len(there)
        safe: Present = np.minimum(self._sinks, entries) <= first_missing
        if self.kind.size > 1:  # else nothing before it is read
            safe &= last_missing[entries] < np.maximum(lengths + behind + 1 - self.kind.size, 0) // self.block_size
        return safe

    def safe_at_the_end(self, tree_blocks: Sequence[int]) -> bool:
        length = len(tree_blocks) * self.tree_size
        if length % self.block_size:
            return False
        return NOTHING not in self.values.at_places(self._places(tree_blocks, self._read(length, length)))

    def may_end_behind(self, tree_blocks: Sequence[int]) -> Present:
        lengths = np.arange(len(tree_blocks) + 1) * self.tree_size
        if self._coarse > 1:
            return np.zeros(len(lengths), dtype=np.bool_)
        return self._has_what_is_read(tree_blocks, lengths, self.tree_size - 1)  # the longer, the fewer are read

    def safe_inside(self, tree_blocks: Sequence[int], source: int, tokens: int) -> int:
        if self._coarse > 1:
            return 0
        while tokens:
            covered = self._unbroken(len(tree_blocks), source, tokens)
            if covered == tokens:
                break
            tokens = covered  # a shorter hit may read nothing of what is missing
        return tokens if tokens and self._reaches_back(tree_blocks, tokens) else 0

    def _unbroken(self, whole: int, source: int, tokens: int) -> int:
        """Of a hit of so many tokens inside the source: those before the first one that is read and not there."""
        size = self.block_size
        for offset in self._offsets(whole, tokens):
            value, begin = self.values.at(source, offset), offset * size
            has = self.values.covers(value, size) if value != NOTHING else 0
            if has < min(size, tokens - begin):
                return begin + has
        return tokens

    def _offsets(self, whole: int, tokens: int) -> list[int]:
        """Which places of the block behind `whole` blocks hold what is read behind its first `tokens` tokens."""
        before = whole * self._fine
        length = whole * self.tree_size + tokens
        stop = -(-length // self.block_size)
        first = self._first(length) if self.kind.size > 1 else stop
        return [entry - before for entry in range(before, stop) if entry >= first or entry < self._sinks]

    def _reaches_back(self, tree_blocks: Sequence[int], tokens: int) -> bool:
        """Whether these blocks have what is read of them by a position `tokens` tokens behind their end."""
        begin = self._first(len(tree_blocks) * self.tree_size + tokens)
        near = begin // self._fine
        there = self.values.present(tree_blocks[near:])[begin - near * self._fine :]
        sinks = self.values.present(tree_blocks[: -(-self._sinks // self._fine)])[: self._sinks]
        return bool(there.all() and sinks.all())

    # -- admission ----------------------------------------------------------------------------------

    def _read_entries(self, tree_blocks: Sequence[int], inside: int) -> list[tuple[int, int]]:
        """(entry, value) of all that a hit reads of these whole blocks."""
        length = len(tree_blocks) * self.tree_size
        read = self._read(length, length + inside)
        values = self.values.at_places(self._places(tree_blocks, read))
        return [(entry, value) for entry, value in zip(read, values, strict=True) if value != NOTHING]

    def reads(self, tree_blocks: Sequence[int], source: int, tokens: int) -> list[int]:
        found = [value for _, value in self._read_entries(tree_blocks, tokens)]
        return found + [self.values.at(source, offset) for offset in self._offsets(len(tree_blocks), tokens)]

    def new(self, whole: int, cover: int) -> int:
        return max(-(-cover // self.block_size) - whole * self.tree_size // self.block_size, 0)

    def new_in_steps(self, whole: int, cover: int, step: int) -> int:
        # A step reads size - 1 tokens before its own, and tables end where a block of the tree does.
        tokens = self.kind.size - 1 + step - whole * self.tree_size
        at_a_time = -(-(tokens - 1 + max(self.block_size, self.tree_size)) // self.block_size)
        return min(self.new(whole, cover), at_a_time + self._sinks)

    def claim(self, table: SideTable, tree_blocks: Sequence[int], inside: int) -> None:
        entries = len(tree_blocks) * self.tree_size // self.block_size
        table.add([NOTHING] * entries, owned=False)
        read = self._read_entries(tree_blocks, inside)
        self.values.pin(value for _, value in read)
        for entry, value in read:
            table.blocks[entry] = value
            table.owned[entry] = True
        table.settled = entries
        table.first = self._first(len(tree_blocks) * self.tree_size + inside)

    def claim_source(self, table: SideTable, source: int, tokens: int) -> None:
        whole = len(table.blocks)
        for offset in self._offsets(whole // self._fine, tokens):
            value = self.values.at(source, offset)
            self.values.pin((value,))
            table.sources.append((whole + offset, value, min(self.block_size, tokens - offset * self.block_size)))

    def open(self, table: SideTable, whole: int, cover: int) -> list[Wanted]:
        begin = max(len(table.blocks), self._sinks)
        self.extend(table, cover)
        self._give_up(table, range(begin, table.first))  # of the block that is copied, what nobody reads
        wanted = [
            Wanted(Source(self, value, private=False), table.blocks[entry], tokens)
            for entry, value, tokens in table.sources
        ]
        table.sources = []
        return wanted

    # -- while it runs ------------------------------------------------------------------------------

    def more(self, table: SideTable, cover: int) -> int:
        return max(-(-cover // self.block_size) - len(table.blocks), 0)

    def store(self, table: SideTable, stored: Stored) -> list[Kept]:
        size, length = self.block_size, stored.length
        whole = min(length // size, len(table.blocks))
        begin, again = table.settled, [entry for entry in table.twice if entry < whole]
        again += range(begin, whole)
        entries = [entry for entry in again if table.blocks[entry] != NOTHING and not table.owned[entry]]
        if cut_off := self.values.cut_off_among(table.blocks, whole):  # they hung from a copy that was evicted
            entries = sorted({*entries, *cut_off})
        table.settled = max(begin, whole)
        kept = self._attach(table, stored, entries, self._places(stored.homes, entries))
        table.twice = [entry for entry in entries if not table.owned[entry]]
        if table.twice and table.twice[-1] >= begin:
            made_again = [entry for entry in table.twice if entry >= begin or entry < self._sinks]
            let_go = self._as_let_go(made_again, stored.computed)
            self.values.made_again(self._places(stored.homes, let_go))
        rest = length - table.settled * size
        if rest > 0 and stored.ended and self._coarse == 1 and table.settled < len(table.blocks):
            entry = table.settled
            table.settled += 1
            if table.blocks[entry] != NOTHING and not table.owned[entry]:
                place = stored.homes[(length - 1) // self.tree_size] * self._fine + entry % self._fine
                kept += self._attach(table, stored, [entry], [place])
                if table.owned[entry]:
                    self.values.shorten(table.blocks[entry], rest)
                else:
                    self.values.made_again([place])
        return kept

    def _as_let_go(self, entries: Sequence[int], computed: int) -> list[int]:
        """In the order in which a request lets go of them: what is out of reach, then from the tail, the sinks last."""
        first = self._first(computed)
        gone = [entry for entry in entries if self._sinks <= entry < first]
        return gone + [entry for entry in reversed(entries) if entry >= first or entry < self._sinks]

    def _attach(self, table: SideTable, stored: Stored, entries: list[int], places: list[int]) -> list[Kept]:
        """Hang these private entries at their places, where these are bare; what that is if it is to be told."""
        blocks, pool = [table.blocks[entry] for entry in entries], self.values.pool
        if pool.any_shared(blocks):  # somebody has yet to copy out of such a block: it stays private
            places = [NOTHING if pool.shared(block) else place for block, place in zip(blocks, places, strict=True)]
        kept = []
        for index in self.values.attach(places, blocks):
            entry = entries[index]
            table.owned[entry] = True
            if stored.told:
                end = min((entry + 1) * self.block_size, stored.length)
                home_end = min(((end - 1) // self.tree_size + 1) * self.tree_size, stored.length)
                kept.append(Kept(entry * self.block_size, end, home_end, blocks[index]))
        return kept

    def move_on(self, table: SideTable, length: int) -> list[Wanted]:
        stop = min(self._first(length), len(table.blocks))
        if stop > table.first:
            self._give_up(table, range(table.first, stop))
            table.first = stop
        return []

    def _give_up(self, table: SideTable, entries: Sequence[int]) -> None:
        """The request needs these no more; nothing stands there then."""
        blocks, owned = table.blocks, table.owned
        self.values.unpin([blocks[entry] for entry in entries if owned[entry]])
        private = [blocks[entry] for entry in entries if not owned[entry] and blocks[entry] != NOTHING]
        if private:
            self.values.pool.give(private)
        for entry in entries:
            blocks[entry], owned[entry] = NOTHING, False

    def written_from(self, written: int) -> int:
        return written // self.block_size

    def fork_needs(self, table: SideTable, cover: int) -> int:
        stop = self._covered(table, cover)
        pairs = zip(table.blocks[:stop], table.owned, strict=False)
        return sum(1 for block, owned in pairs if block != NOTHING and not owned)

    def fork(self, table: SideTable, child: SideTable, computed: int, cover: int) -> list[Wanted]:
        size = self.block_size
        new = iter(self.values.allocate(self.fork_needs(table, cover)))
        wanted = []
        for entry, block in enumerate(table.blocks[: self._covered(table, cover)]):
            owned = table.owned[entry]
            if block != NOTHING and owned:
                self.values.pin((block,))
                child.add((block,), owned=True)
            elif block != NOTHING:
                child.add((next(new),), owned=False)
                if entry * size < computed:
                    tokens = min(size, computed - entry * size)
                    wanted.append(Wanted(self._share(block), child.blocks[entry], tokens))
            else:
                child.add((NOTHING,), owned=False)
        child.first, child.settled, child.twice = table.first, table.settled, table.twice[:]
        return wanted

    # -- going back ---------------------------------------------------------------------------------

    def _returning(self, table: SideTable, back: Back) -> list[tuple[int, int]] | None:
        """(entry, value) to pin again before going back; None when one of them has gone."""
        entries = range(self._first(back.after), min(table.first, -(-back.length // self.block_size)))
        homes = back.homes() if entries else ()
        found = []
        for entry in entries:
            index, offset = self._home(entry)
            value = self.values.at(homes[index], offset) if index < len(homes) else NOTHING
            if value == NOTHING or self.values.covers(value, self.block_size) < self.block_size:
                return None
            found.append((entry, value))
        return found

    def can_go_back(self, table: SideTable, back: Back) -> int:
        returning = self._returning(table, back)
        if returning is None:
            return -1
        back_again = dict(returning)
        kept = [
            entry
            for entry in self._written_again(table, back)
            if entry not in back_again and not self._must_stay(table, entry, back)
        ]
        new = self._covered(table, back.length) - self._written_again(table, back).start - len(kept)
        # What it pins again cannot make room.
        return new + sum(self.values.is_idle(value) for _, value in returning) if new else 0

    def _written_again(self, table: SideTable, back: Back) -> range:
        """The entries that hold kept tokens and positions that are written after going back.

        And those before them in the tree's block that is cut: that is another block from now on, and so has to be all
        that hangs from it.
        """
        stop = min(-(-back.length // self.block_size), len(table.blocks))
        cut = back.after // self.tree_size * self.tree_size
        return range(min(cut // self.block_size, stop), stop)

    def _covered(self, table: SideTable, length: int) -> int:
        """Entries that are left of a table as far as the tree's reaches when it is cut to `length` tokens."""
        covered = -(-length // self.tree_size) * self.tree_size
        return min(-(-covered // self.block_size), len(table.blocks))

    def _must_stay(self, table: SideTable, entry: int, back: Back) -> bool:
        """Whether what is computed in this block is not this request's to overwrite, or to hang somewhere else."""
        begin = entry * self.block_size
        written = begin < back.computed and begin + self.block_size > back.after
        return bool(table.owned[entry]) or (written and self.values.pool.shared(table.blocks[entry]))

    def go_back(self, table: SideTable, back: Back) -> list[Wanted]:
        for entry, value in self._returning(table, back) or ():
            self.values.pin((value,))
            table.blocks[entry], table.owned[entry] = value, True
        again, covered = self._written_again(table, back), self._covered(table, back.length)
        keep = again.stop
        self._give_up(table, range(len(table.blocks) - 1, keep - 1, -1))
        del table.blocks[keep:], table.owned[keep:]
        table.first = min(table.first, self._first(back.after))
        table.settled = min(table.settled, again.start)
        table.twice = [entry for entry in table.twice if entry < again.start]
        wanted = []
        for entry in again:
            if not self._must_stay(table, entry, back):
                continue
            source = Source(self, table.blocks[entry], private=not table.owned[entry])
            table.blocks[entry], table.owned[entry] = self.values.allocate(1)[0], False
            tokens = min(back.after - entry * self.block_size, self.block_size)
            if tokens > 0:
                wanted.append(Wanted(source, table.blocks[entry], tokens))
            else:
                self.let_go(source)
        self.extend(table, covered * self.block_size)
        return wanted
