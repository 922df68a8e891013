"""Blocks come into the trie and leave it, with what is reported of it."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import groupby

from prefixcache.blocks.pool import BlockPool
from prefixcache.blocks.retention import DEFAULT_PRIORITY
from prefixcache.designs.base import EventSink, Holding, Lower, Prompt
from prefixcache.designs.block_trie.run import Run, key_of
from prefixcache.designs.block_trie.tree import Trie
from prefixcache.designs.block_trie.uses import Uses
from prefixcache.errors import InvariantError
from prefixcache.keys.chain import ChainHash
from prefixcache.keys.extras import Extras
from prefixcache.keys.tokens import TOKEN_BYTES

# A leaf that only its writer uses grows in place instead of getting a child per decoded block; beyond this
# many tokens a new leaf is begun, so that growing costs no more than copying this much.
_GROW_LIMIT = 2048

Terms = tuple[int, float | None]  # priority, time to live
_DEFAULT: Terms = (DEFAULT_PRIORITY, None)


def cut_prompt(prompt: Prompt, start: int, end: int) -> tuple[bytes, Extras | None]:
    """The prompt's tokens [start, end) and what they carry."""
    extras = prompt.extras.cut(start, end) if prompt.extras is not None else None
    return bytes(prompt.tokens[start * TOKEN_BYTES : end * TOKEN_BYTES]), extras


class PrivateTerms:
    """How long private blocks ask to stay, where that is not the default. A stored block has its run's terms."""

    def __init__(self) -> None:
        self._terms: dict[int, Terms] = {}

    def __contains__(self, block: int) -> bool:
        return block in self._terms

    def of(self, block: int) -> Terms:
        """The terms of one block."""
        return self._terms.get(block, _DEFAULT)

    def set(self, block: int, terms: Terms) -> None:
        """The block asks for these from now on."""
        if terms == _DEFAULT:
            self._terms.pop(block, None)
        else:
            self._terms[block] = terms

    def forget(self, blocks: Sequence[int]) -> None:
        """The blocks are no longer private, or ask for the default. O(1) while none asks for anything."""
        if self._terms:
            for block in blocks:
                self._terms.pop(block, None)

    def pieces(self, blocks: array[int]) -> list[tuple[Terms, array[int]]]:
        """Neighbours that ask for the same, together."""
        if not self._terms:
            return [(_DEFAULT, blocks)] if blocks else []
        return [(terms, array("i", group)) for terms, group in groupby(blocks, self.of)]


class Store:
    """Puts a request's blocks into the trie and takes idle ones out.

    Args:
        trie, uses, pool: what it works on.
        chain: how the keys in events are made.
        events: where changes are reported; None when nobody listens.
        longest: of tails that begin alike only the longest is kept.
    """

    def __init__(
        self, trie: Trie, uses: Uses, pool: BlockPool, chain: ChainHash, events: EventSink | None, longest: bool
    ) -> None:
        self._trie, self._uses, self._pool = trie, uses, pool
        self._chain, self._events = chain, events
        self._longest = longest
        self._size = trie.block_tokens
        self.terms = PrivateTerms()
        self.lower: Lower | None = None  # where evicted full blocks are kept

    # -- in -----------------------------------------------------------------------------------------

    def append(self, holding: Holding, node: Run, start: int, end: int) -> Run:
        """Store the prompt's full blocks in [start, end) behind `node`, pinned by the holding; the last run."""
        size = self._size
        for terms, blocks in self.terms.pieces(holding.table[start // size : end // size]):
            stop = start + len(blocks) * size
            node = self._append_run(holding, node, *cut_prompt(holding.prompt, start, stop), blocks, terms)
            start = stop
        return node

    def append_tail(self, holding: Holding, node: Run, start: int, end: int) -> Run | None:
        """Store the prompt's tokens [start, end), less than a block; None when they are there already."""
        tokens, extras = cut_prompt(holding.prompt, start, end)
        if key_of(tokens, extras) in node.children:
            return None
        if self._longest and node.children:
            found = self._trie.family.best(node, tokens, extras)
            if found is not None and found[1] == end - start:
                return None
        block = holding.table[start // self._size]
        run = self._append_run(holding, node, tokens, extras, array("i", (block,)), self.terms.of(block))
        holding.held += 1
        return run

    def _append_run(
        self, holding: Holding, node: Run, tokens: bytes, extras: Extras | None, blocks: array[int], terms: Terms
    ) -> Run:
        parent_key = node.keys[-1] if node.keys else None
        keys = self._keys(holding.prompt, parent_key, tokens, extras)
        covered = self._covered_tail(node, tokens, extras)
        self._pool.note_written(blocks)
        self.terms.forget(blocks)
        if self._grows(holding, node, tokens, extras, terms):
            run = node
            run.tokens += tokens
            run.blocks.extend(blocks)
            run.keys += keys
            run.end += len(tokens) // TOKEN_BYTES
            run.last_access = self._uses.tick
        else:
            run = self._trie.append(node, tokens, extras, blocks, keys, self._uses.tick)
            run.priority, run.ttl = terms
            run.pins = 1
        if self._events is not None:
            self._events.stored(keys, parent_key, tokens, holding.prompt.scope)
        if covered is not None:
            self._pool.give(self.strip(covered, 1))
        return run

    def _keys(self, prompt: Prompt, parent: bytes | None, tokens: bytes, extras: Extras | None) -> list[bytes]:
        """The keys of these blocks in events; none when nobody listens."""
        if self._events is None:
            return []
        before = parent if parent is not None else self._chain.root(prompt.root)
        blocks, rest = divmod(len(tokens), self._size * TOKEN_BYTES)
        if rest:
            return [self._chain.block(before, tokens, extras)]
        return self._chain.blocks(before, tokens, 0, blocks, extras)

    def _grows(self, holding: Holding, node: Run, tokens: bytes, extras: Extras | None, terms: Terms) -> bool:
        """Whether `node` is a leaf of the same terms that this request alone uses, and short enough."""
        if node.pins != 1 or node.children or extras is not None or node.extras is not None:
            return False
        index = node.end // self._size - 1
        return (
            (node.priority, node.ttl) == terms
            and len(node.tokens) < _GROW_LIMIT * TOKEN_BYTES
            and len(tokens) % (self._size * TOKEN_BYTES) == 0
            and index < holding.held
            and node.blocks[-1] == holding.table[index]
        )

    def _covered_tail(self, node: Run, tokens: bytes, extras: Extras | None) -> Run | None:
        """The unused tail that a new child with these tokens goes beyond.

        It is the best match, if there is one: another child with more in common would have replaced it.
        """
        if not self._longest or not self._trie.partial_hits or not node.children:
            return None
        first = tokens[: self._size * TOKEN_BYTES]
        own = extras.cut(0, len(first) // TOKEN_BYTES) if extras is not None else None
        found = self._trie.family.best(node, first, own)
        if found is None or found[0].pins or found[1] != found[0].length or found[1] == self._size:
            return None
        return found[0]

    def fill(self, hole: Run, own: array[int]) -> None:
        """The request's own blocks take the place of evicted ones; what lies behind them can be reached again."""
        self._pool.note_written(own)
        for terms, blocks in self.terms.pieces(own):
            run = hole
            if len(blocks) * self._size < hole.length:
                run = self._uses.split(hole, len(blocks) * self._size)
            run.blocks = blocks
            run.pins = 1
            run.priority, run.ttl = terms
            run.created = self._uses.tick
            self._trie.family.show(run)
            self.terms.forget(blocks)
            self._report_found_again(run)

    # -- out ----------------------------------------------------------------------------------------

    def evict(self, run: Run, n: int, leaves_hole: bool = False) -> array[int]:
        """As `strip`, and what the blocks hold may be kept below."""
        if self.lower is not None and run.length % self._size == 0 and self._is_said(run):
            at = len(run.blocks) - n
            self.lower.evicting(run.keys[at:], run.key_before(at), run.blocks[at:])
        return self.strip(run, n, leaves_hole)

    def strip(self, run: Run, n: int, leaves_hole: bool = False) -> array[int]:
        """Take the last n blocks of an idle run out of the trie, the last one first.

        Args:
            run: nobody uses it.
            n: blocks, at most all of its.
            leaves_hole: what lies behind may stay; it cannot be reached until the hole is filled.
        """
        keep = len(run.blocks) - n
        taken = run.blocks[keep:]
        taken.reverse()
        if run.children:
            if not leaves_hole:
                raise InvariantError(f"{run!r} is to be evicted and has children")
            if keep:
                self._uses.split(run, keep * self._size)
            self._report_removed(run, 0)
            self._uses.leave(run)
            self._trie.family.hide(run)
            run.blocks = array("i")
        elif keep:
            self._report_removed(run, keep)
            self._trie.shorten(run, keep)
            self._uses.shortened(run)
        else:
            self._report_removed(run, 0)
            self._uses.leave(run)
            parent = self._trie.remove(run)
            if parent is not None and self._uses.queued(parent) and parent not in self._uses.items:
                self._uses.wait(parent)
        self._uses.idle -= n
        return taken

    # -- what is said -------------------------------------------------------------------------------

    def report_retired(self) -> None:
        """Nothing that is stored can be found any more."""
        if self._events is None:
            return
        for run in self.reachable():
            if run not in self._uses.items.stale:
                self._events.removed(run.keys)

    def reachable(self) -> Iterator[Run]:
        """The runs that a prompt can reach."""
        for root in self._trie.roots.values():
            yield from self._trie.reachable(root)

    def _report_removed(self, run: Run, first: int) -> None:
        """The blocks of a run from index `first` on leave; what lies behind them is out of reach, too."""
        if self._events is None or not self._is_said(run):
            return
        self._events.removed(run.keys[first:])
        for below in self._trie.reachable(run):
            self._events.removed(below.keys)

    def _is_said(self, run: Run) -> bool:
        """Whether a reader of the events takes it for stored: else its end was said when a hole above it came."""
        return run not in self._uses.items.stale and all(above.blocks for above in self._uses.path(run)[:-1])

    def _report_found_again(self, run: Run) -> None:
        """A hole is filled: its run and what can be reached behind it are there again."""
        if self._events is None:
            return
        scope = self._trie.root_of(run).scope
        for found in (run, *self._trie.reachable(run)):
            assert found.parent is not None
            parent_key = found.parent.keys[-1] if found.parent.keys else None
            self._events.stored(found.keys, parent_key, found.tokens, scope)
