"""What blocks really hold, for hashes whose equal keys do not prove it.

Every distinct prefix that is cached has a number; a block remembers the number of its prefix, that of the
prefix before it, and as much of its own content as the key does not vouch for. A chain of blocks is confirmed
when each continues the number before it and holds what the prompt has there.

    prompt      | 9 8 7 6 | 5 4 3 2 |
    found       block 7     block 3          by equal keys
    content     9 8 7 6     5 4 3 2          compared in one piece
    number      12          15
    continues   0           12               so 3 was really computed behind 7, not behind a twin of its key
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, replace

from prefixcache.designs.base import Prompt
from prefixcache.designs.hash_chain.index import Index, Part
from prefixcache.designs.hash_chain.run import Path, Run
from prefixcache.errors import InvariantError
from prefixcache.keys.chain import ChainHash
from prefixcache.keys.extras import Extras
from prefixcache.keys.tokens import TOKEN_BYTES, common_tokens

_NO_PREFIX = 0  # what a first block continues


@dataclass(slots=True)
class Held:
    """What the blocks of one run hold.

    Attributes:
        blocks: how many these are.
        first: number of the prefix that ends with the first block; those of the others follow it.
        numbers: all of them, where they do not: of copies, which have the numbers of their originals.
        continues: number of the prefix before the first block.
        root: the encoded scope.
        text: the tokens that the keys cover; b"" where these vouch for tokens.
        carried: media and extra ids of each block; None when no block carries any.
        plain: how many leading blocks of their prompt carry nothing, so that trusted keys alone prove them.
    """

    blocks: int
    first: int
    numbers: array[int] | None
    continues: int
    root: bytes
    text: bytes
    carried: list[Extras | None] | None
    plain: int = 0

    def number(self, index: int) -> int:
        """Of the prefix that ends with the block at this index of the run; -1: of the one before."""
        if index < 0:
            return self.continues
        return self.first + index if self.numbers is None else self.numbers[index]

    @property
    def last(self) -> int:
        """Number of the prefix that ends with the run."""
        return self.number(self.blocks - 1)

    def every(self) -> array[int]:
        """The numbers of all blocks."""
        return array("q", range(self.first, self.first + self.blocks)) if self.numbers is None else self.numbers

    def add(self, first: int, blocks: int) -> None:
        """So many more blocks, their numbers from `first` on."""
        if self.numbers is not None or (self.blocks and first != self.first + self.blocks):
            self.numbers = self.every()
            self.numbers.extend(range(first, first + blocks))
        elif not self.blocks:
            self.first = first
        self.blocks += blocks

    def keep(self, start: int, end: int) -> None:
        """Only the numbers of the blocks [start, end) stay."""
        self.continues, self.first = self.number(start - 1), self.first + start
        self.numbers = self.numbers[start:end] if self.numbers is not None else None
        self.blocks = end - start


class Content:
    """See the module. Tokens are kept only where the chain is not trusted at all.

    Args:
        chain: says what its keys vouch for.
        index: the cached blocks.
    """

    def __init__(self, chain: ChainHash, index: Index) -> None:
        self._index = index
        self._keeps_tokens = not chain.trusted
        self._size, self._ahead = chain.block_size, chain.lookahead
        self._step, self._ahead_bytes = self._size * TOKEN_BYTES, self._ahead * TOKEN_BYTES
        self._last_number = _NO_PREFIX

    # -- asking -----------------------------------------------------------------------------------

    def confirmed(self, prompt: Prompt, parts: list[Part], at: int = 0, number: int = _NO_PREFIX) -> int:
        """How many blocks, found by the keys of a prompt from block `at` on, really hold it there.

        `number` is that of the prefix before. O(blocks), one memcmp per run.
        """
        begin = at
        for run, start, end in parts:
            held, first = _held(run), start - run.start
            if number != held.number(first - 1):
                break
            agree = self._agree(held, prompt, first, end - start, at)
            at += agree
            if at < end:
                break
            number = held.number(first + agree - 1)
        return at - begin

    def _agree(self, held: Held, prompt: Prompt, first: int, count: int, at: int) -> int:
        """How many of `count` blocks of a run, from `first` on, hold what the prompt has from block `at` on."""
        if self._keeps_tokens:
            if held.root != prompt.root:
                return 0
            most = count * self._size + self._ahead
            same = common_tokens(held.text, first * self._size, prompt.tokens, at * self._size, most)
            count = max(same - self._ahead, 0) // self._size
        if held.carried is None and prompt.extras is None:
            return count
        theirs = self._carried(prompt, at, at + count) or [None] * count
        ours = held.carried[first : first + count] if held.carried is not None else [None] * count
        return next((i for i in range(count) if ours[i] != theirs[i]), count)

    def _carried(self, prompt: Prompt, start: int, end: int) -> list[Extras | None] | None:
        """What the blocks [start, end) of a prompt carry, None when the prompt carries nothing."""
        extras, size, covered = prompt.extras, self._size, self._size + self._ahead
        if extras is None:
            return None
        return [extras.cut(at, at + covered) for at in range(start * size, end * size, size)]

    def plain(self, prompt: Prompt, blocks: int) -> int:
        """How many of the first blocks of a prompt carry nothing."""
        if prompt.extras is None:
            return blocks
        return min(max(prompt.extras.first - self._ahead, 0) // self._size, blocks)

    def storable(self, prompt: Prompt, keys: list[bytes], start: int, end: int, path: Path | None) -> tuple[int, int]:
        """What of the blocks [start, end) of a prompt is cached, and up to where the rest can be stored.

        Returns (leading blocks cached as this very prefix, end of what does not collide). A key that another
        prefix has, or that occurs twice, ends it: what collides is not published.
        """
        oldest = self._index.oldest
        number = _held(path.runs[-1]).last if path is not None and path.runs else _NO_PREFIX
        known = self.confirmed(prompt, self._index.parts(keys, start, end), start, number)
        new: set[bytes] = set()
        for at in range(start + known, end):
            if keys[at] in oldest or keys[at] in new:
                return known, at
            new.add(keys[at])
        return known, end

    # -- remembering --------------------------------------------------------------------------------

    def store(self, run: Run, prompt: Prompt, path: Path, originals: list[Part]) -> None:
        """Remember what a new run of a path holds; its first blocks are copies of `originals`."""
        continues = _held(path.runs[-1]).last if path.runs else _NO_PREFIX
        held = run.held = Held(0, 0, None, continues, prompt.root, b"", None)
        for original, start, end in originals:
            for index in range(start - original.start, end - original.start):
                held.add(_held(original).number(index), 1)
        self._fill(run, prompt)

    def grown(self, run: Run, prompt: Prompt) -> None:
        """A run got more blocks of its prompt."""
        self._fill(run, prompt)

    def _fill(self, run: Run, prompt: Prompt) -> None:
        """Remember what the last blocks of a run hold, those that have no number and no text yet."""
        held, end = _held(run), run.start + len(run.keys)
        held.plain = self.plain(prompt, end)
        if held.carried is not None or prompt.extras is not None:
            held.carried = self._carried(prompt, run.start, end) or [None] * len(run.keys)
        if self._keeps_tokens:
            held.text = bytes(prompt.tokens[run.start * self._step : end * self._step + self._ahead_bytes])
        new = len(run.keys) - held.blocks
        held.add(self._last_number + 1, new)
        self._last_number += new

    def cut(self, upper: Run, lower: Run) -> None:
        """A run was cut into these; the lower one is the run as it was known."""
        held, at = _held(lower), len(upper.keys)
        upper.held = replace(
            held,
            text=held.text[: at * self._step + self._ahead_bytes],
            carried=held.carried[:at] if held.carried is not None else None,
        )
        upper.held.keep(0, at)
        held.keep(at, held.blocks)
        held.text = held.text[at * self._step :]
        if held.carried is not None:
            del held.carried[:at]

    def trimmed(self, run: Run) -> None:
        """The last blocks of a run were evicted."""
        held, left = _held(run), len(run.keys)
        held.text = held.text[: left * self._step + self._ahead_bytes]
        held.keep(0, left)
        if held.carried is not None:
            del held.carried[left:]

    def check(self) -> None:
        """Assert that every run knows what each of its blocks holds."""
        for run in self._index:
            held, blocks = _held(run), len(run.keys)
            if held.blocks != len(held.every()) or held.blocks != blocks:
                raise InvariantError(f"{run!r} has numbers for {held.blocks} blocks")
            if held.carried is not None and len(held.carried) != blocks:
                raise InvariantError(f"{run!r} has content for {len(held.carried)} blocks")
            if self._keeps_tokens and len(held.text) != blocks * self._step + self._ahead_bytes:
                raise InvariantError(f"{run!r} has {len(held.text)} bytes of tokens")


def _held(run: Run) -> Held:
    assert run.held is not None
    return run.held
