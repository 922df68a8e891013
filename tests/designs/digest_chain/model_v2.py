"""The rules of TensorRT-LLM's v2 tree as plain lists that are scanned: no digests, no index, no runs of blocks.

Written from the rules, not from the design under test. One window, one tier. Where the contract differs
from the original (at most n-1 tokens are reused, a copy that finds no room is no refusal), it is the contract
that is written here, and marked; so are times to live, which the original does not have.
"""

from __future__ import annotations

from dataclasses import dataclass, field

DEFAULT_PRIORITY = 35


@dataclass(eq=False)
class Page:
    """A block in the tree. A partial one has fewer tokens and never children."""

    tokens: tuple[int, ...]
    parent: Page | None  # None for the root of a scope
    priority: int = DEFAULT_PRIORITY
    ttl: float | None = None
    children: list[Page] = field(default_factory=list)  # in order of insertion
    holders: int = 0
    released: int = 0  # when the last holder let go, as a number in their order
    released_at: float = 0.0  # the same by the clock
    in_tree: bool = True

    def prefix(self) -> tuple[int, ...]:
        return self.parent.prefix() + self.tokens if self.parent is not None else ()


@dataclass(eq=False)
class Sequence:
    tokens: list[int]
    scope: object
    wishes: list[tuple[int, int, float | None]]  # (first token, priority, time to live), sorted
    root: Page
    held: list[Page]  # pages of the tree at its beginning
    private: int  # blocks of its own behind them
    computed: int
    source: Page | None = None  # held until it is copied

    def wish(self, at: int) -> tuple[int, float | None]:
        return next(
            ((level, ttl) for start, level, ttl in reversed(self.wishes) if start <= at), (DEFAULT_PRIORITY, None)
        )


class Refused(Exception):
    pass


class ModelV2:
    def __init__(self, block_size: int, capacity: int, child_limit: int) -> None:
        self.size, self.capacity, self.child_limit = block_size, capacity, child_limit
        self.roots: dict[object, Page] = {}
        self.live: list[Sequence] = []
        self.replaced: list[Page] = []  # out of the tree, held by somebody
        self.time = 0
        self.now = 0.0

    # -- what can be asked ------------------------------------------------------------------------

    def pages(self) -> list[Page]:
        found: list[Page] = []
        for root in self.roots.values():
            stack = list(root.children)
            while stack:
                page = stack.pop()
                found.append(page)
                stack += page.children
        return found

    def idle(self) -> list[Page]:
        return [page for page in self.pages() if not page.holders]

    def books(self) -> tuple[int, int, int]:
        """(free, idle, pinned)."""
        idle = len(self.idle())
        pinned = len(self.pages()) - idle + len(self.replaced) + sum(sequence.private for sequence in self.live)
        return self.capacity - idle - pinned, idle, pinned

    def prefixes(self) -> set[tuple[object, tuple[int, ...]]]:
        found = set()
        for scope, root in self.roots.items():
            stack = list(root.children)
            while stack:
                page = stack.pop()
                found.add((scope, page.prefix()))
                stack += page.children
        return found

    def match(self, scope: object, tokens: list[int]) -> tuple[list[Page], Page | None, int]:
        """Full pages along the tokens; then the page that is reused in part, and how much of it."""
        node = self.roots.get(scope)
        path: list[Page] = []
        at = 0
        while node is not None and at < len(tokens):
            chunk = tuple(tokens[at : at + self.size])
            exact = next((child for child in node.children if child.tokens == chunk), None)
            if exact is not None and len(chunk) == self.size:
                path.append(exact)
                node = exact
                at += self.size
                continue
            if exact is not None:
                return path, exact, len(chunk)  # a partial page with exactly these tokens has this key
            if len(node.children) >= self.child_limit:
                return path, None, 0
            best, longest = None, 0
            for child in node.children:
                common = common_prefix(child.tokens, chunk)
                if common > longest:
                    best, longest = child, common
            return path, best, longest
        return path, None, 0

    def probe(self, scope: object, tokens: list[int]) -> int:
        path, source, common = self.match(scope, tokens[:-1])  # contract: at most n-1
        _, _, take_or_copy, _ = self.plan(path, source, len(tokens))
        return len(path) * self.size + (common if take_or_copy else 0)

    # -- admission --------------------------------------------------------------------------------

    def plan(self, path: list[Page], source: Page | None, length: int) -> tuple[int, int, str, int]:
        """(new blocks, need, "copy", "take" or "", room)."""
        free, idle, _ = self.books()
        room = free + idle
        whole = -(-length // self.size) - len(path)
        drawn = sum(not page.holders for page in path)
        if source is None:
            return whole, whole + drawn, "", room
        unused = not source.holders
        if whole + drawn + unused <= room:
            return whole, whole + drawn + unused, "copy", room
        if whole + drawn > room:
            return whole, whole + drawn, "copy", room  # refused, with or without this hit
        # Contract: a hit inside a block never causes a refusal. The original refuses to resume.
        if unused and (not source.children or whole + drawn == room):
            return whole - 1, whole + drawn, "take", room
        return whole, whole + drawn, "", room

    def open(self, scope: object, tokens: list[int], wishes: list[tuple[int, int, float | None]]) -> Sequence:
        path, source, common = self.match(scope, tokens[:-1])  # contract: at most n-1
        new, need, what, room = self.plan(path, source, len(tokens))
        if need > room:
            raise Refused
        self.expire()
        for page in path:
            page.holders += 1
        cached = len(path) * self.size
        # The original has no root before something is stored under it.
        root = self.roots.get(scope, Page((), None))
        sequence = Sequence(list(tokens), scope, wishes, root, path, 0, cached)
        self.live.append(sequence)
        if what:
            assert source is not None
            source.holders += 1
            sequence.computed += common
        if what == "copy":
            self.take_slots(sequence, 1)
            self.take_slots(sequence, new - 1)
            sequence.source = source
            self.hold_path(source, 1)
        else:
            self.take_slots(sequence, new)
        if what == "take":
            assert source is not None and source.parent is not None and not source.children
            source.holders -= 1
            self.unlink(source)
            sequence.private += 1
        return sequence

    def expire(self) -> None:
        """Contract: what nobody has used for its time falls to the default priority; its recency stays."""
        for page in self.idle():
            if page.ttl is not None and page.released_at + page.ttl <= self.now:
                page.priority, page.ttl = DEFAULT_PRIORITY, None

    def hold_path(self, page: Page, more: int) -> None:
        """Contract: whoever holds a block holds what is before it."""
        node = page.parent
        while node is not None and node.parent is not None:
            node.holders += more
            if not node.holders:
                self.queue(node)
            node = node.parent

    def copied(self, sequence: Sequence) -> None:
        if sequence.source is not None:
            self.let_go(sequence.source)
            self.hold_path(sequence.source, -1)
            sequence.source = None

    def append(self, sequence: Sequence, tokens: list[int]) -> None:
        more = -(-(len(sequence.tokens) + len(tokens)) // self.size) - len(sequence.held) - sequence.private
        free, idle, _ = self.books()
        if max(more, 0) > free + idle:
            raise Refused
        self.take_slots(sequence, max(more, 0))
        sequence.tokens += tokens

    def take_slots(self, sequence: Sequence, count: int) -> None:
        """First all victims are chosen, lowest priority and longest unused first, then all are dropped."""
        free, _, _ = self.books()
        if count > free:
            self.evict(count - free)
        sequence.private += count

    def evict(self, count: int) -> int:
        before = self.books()[0]
        victims = sorted(self.idle(), key=lambda page: (page.priority, page.released))[:count]
        for page in victims:
            if page.in_tree:
                self.prune(page)
        return self.books()[0] - before

    def prune(self, page: Page) -> None:
        """A page that is lost takes all that hangs on it along."""
        stack = [page]
        while stack:
            node = stack.pop()
            assert not node.holders
            node.in_tree = False
            stack += node.children
        self.unlink(page)

    def unlink(self, page: Page) -> None:
        assert page.parent is not None
        page.in_tree = False
        page.parent.children.remove(page)
        for scope, root in list(self.roots.items()):
            if not root.children:
                del self.roots[scope]  # an empty root goes

    # -- committing -------------------------------------------------------------------------------

    def computed(self, sequence: Sequence, n: int) -> None:
        sequence.computed = n
        while (len(sequence.held) + 1) * self.size <= n:
            at = len(sequence.held) * self.size
            tokens = tuple(sequence.tokens[at : at + self.size])
            parent = self.parent_of(sequence)
            page = next((child for child in parent.children if child.tokens == tokens), None)
            if page is None:
                page = self.add(sequence, parent, tokens, at)
            page.holders += 1  # where it was there already, the sequence moves onto it and frees its own
            sequence.held.append(page)
            sequence.private -= 1

    def parent_of(self, sequence: Sequence) -> Page:
        if sequence.held:
            return sequence.held[-1]
        return self.roots.setdefault(sequence.scope, Page((), None))

    def add(self, sequence: Sequence, parent: Page, tokens: tuple[int, ...], at: int) -> Page:
        page = Page(tokens, parent, *sequence.wish(at))
        parent.children.append(page)
        for child in list(parent.children):
            if len(child.tokens) < len(tokens) and tokens[: len(child.tokens)] == child.tokens:
                parent.children.remove(child)
                child.in_tree = False
                if child.holders:
                    self.replaced.append(child)
        return page

    def close(self, sequence: Sequence) -> None:
        if sequence.source is not None:
            sequence.computed = len(sequence.held) * self.size  # contract: the missing copy leaves it unwritten
        at = len(sequence.held) * self.size
        tail = tuple(sequence.tokens[at : sequence.computed])
        if tail:
            parent = self.parent_of(sequence)
            if not any(child.tokens[: len(tail)] == tail for child in parent.children):
                page = self.add(sequence, parent, tail, at)
                page.holders += 1
                sequence.held.append(page)
                sequence.private -= 1
        self.live.remove(sequence)
        for page in reversed(sequence.held):  # the last block first
            self.let_go(page)
        self.copied(sequence)

    def let_go(self, page: Page) -> None:
        page.holders -= 1
        if page.holders:
            return
        if page in self.replaced:
            self.replaced.remove(page)
        else:
            self.queue(page)

    def queue(self, page: Page) -> None:
        self.time += 1
        page.released, page.released_at = self.time, self.now


def common_prefix(left: tuple[int, ...], right: tuple[int, ...]) -> int:
    n = 0
    while n < min(len(left), len(right)) and left[n] == right[n]:
        n += 1
    return n
