"""Designs with one rule broken: each must make the randomised tests fail, or these prove nothing.

Most are broken through the interface that all designs share; what differs by design has a line for
each. A mutation breaks a class for the length of a test, through pytest's `monkeypatch`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pytest import MonkeyPatch

from prefixcache.cache.journal import Journal
from prefixcache.designs import BASELINES, DESIGNS, Design, Holding, Match, Prompt
from prefixcache.designs.block_trie import BlockTrieDesign
from prefixcache.designs.digest_chain import DigestChainDesign
from prefixcache.designs.hash_chain import HashChainDesign
from prefixcache.designs.naive import NaiveDesign
from prefixcache.designs.radix import RadixDesign
from prefixcache.designs.token_trie import TokenTrieDesign

Mutation = Callable[[str, MonkeyPatch], None]


def _class(design: str) -> type[Design]:
    return (DESIGNS | BASELINES)[design]


def unpin_early(design: str, patch: MonkeyPatch) -> None:
    """The hit of an admitted request is let go of at once, as if the request had ended."""
    original = _class(design).claim

    def claim(self: Any, holding: Holding, match: Match) -> None:
        original(self, holding, match)
        self.release(replace(holding))

    patch.setattr(_class(design), "claim", claim)


def skip_the_parent(design: str, patch: MonkeyPatch) -> None:
    """A parent is evicted before its child."""
    EVICT_PARENTS_FIRST[design](patch)


def forget_the_scope(design: str, patch: MonkeyPatch) -> None:
    """Tokens alone identify a prefix."""
    original = _class(design).match

    def match(self: Any, prompt: Prompt, limit: int) -> Match:
        prompt.root = b""
        return original(self, prompt, limit)

    patch.setattr(_class(design), "match", match)


def publish_what_is_not_computed(design: str, patch: MonkeyPatch) -> None:
    """The whole prompt becomes findable with its first computed token."""
    original = _class(design).publish

    def publish(self: Any, holding: Holding, length: int, tail: bool = False) -> Any:
        return original(self, holding, len(holding.table) * self.block_size, tail)

    patch.setattr(_class(design), "publish", publish)


def reach_old_weights(design: str, patch: MonkeyPatch) -> None:
    """A weight update leaves the index as it was."""
    patch.setattr(_class(design), "retire", lambda self: None)


def free_without_a_word(design: str, patch: MonkeyPatch) -> None:
    """Removed events are dropped: the canary of the mirror."""
    patch.setattr(Journal, "removed", lambda self, keys: None)


def announce_twice(design: str, patch: MonkeyPatch) -> None:
    original = Journal.removed
    patch.setattr(Journal, "removed", lambda self, keys: [original(self, keys), original(self, keys)])


def refresh_at_a_probe(design: str, patch: MonkeyPatch) -> None:
    """Looking is taken for using: every match makes its path the most recently used."""
    original = _class(design).match

    def match(self: Any, prompt: Prompt, limit: int) -> Match:
        found = original(self, prompt, limit)
        visitor = Holding(prompt)
        self.claim(visitor, found)
        self.release(visitor)
        return original(self, prompt, limit)

    patch.setattr(_class(design), "match", match)


def _hash_chain_parents_first(patch: MonkeyPatch) -> None:
    def evict(self: HashChainDesign, blocks: int) -> int:
        gone = 0
        for run in list(self._order)[::-1]:
            if gone >= blocks:
                break
            last, count = run.keys[-1], len(run.keys)
            victims, keys, lost = self._index.trim(run, count)
            keys = keys[:lost]
            self._idle_blocks -= count
            if self._content is not None:
                self._content.trimmed(run)
            self._order.trimmed(run, last, bool(keys))
            if self.events is not None:
                self.events.removed(keys)
            self.pool.give(victims)
            gone += count
        return gone

    patch.setattr(HashChainDesign, "evict", evict)


def _radix_parents_first(patch: MonkeyPatch) -> None:
    def evict(self: RadixDesign, blocks: int) -> int:
        gone = 0
        for node in list(self._idle)[::-1]:
            if gone < blocks:
                gone += len(node.blocks)
                self.pool.give(self._take_out(node))
        return gone

    patch.setattr(RadixDesign, "_evict", evict)


def _naive_parents_first(patch: MonkeyPatch) -> None:
    def evict(self: NaiveDesign, blocks: int) -> int:
        idle = [entry for entry in self._entries.values() if not entry.pins]
        victims = sorted(idle, key=lambda entry: -entry.last_access)[:blocks]
        for entry in victims:
            del self._entries[entry.prefix]
            self.pool.give((entry.block,))
            if self.events is not None and not entry.stale:
                self.events.removed([entry.key])
        return len(victims)

    patch.setattr(NaiveDesign, "_evict", evict)


def _digest_chain_parents_first(patch: MonkeyPatch) -> None:
    def evict(self: DigestChainDesign, blocks: int) -> int:
        gone = 0
        for node in [node for node in self._tree.nodes() if not node.pins]:  # parents before children
            if gone < blocks:
                gone += self._drop_blocks(node, 0)
        return gone

    patch.setattr(DigestChainDesign, "_evict", evict)


def _block_trie_parents_first(patch: MonkeyPatch) -> None:
    def evict(self: BlockTrieDesign, blocks: int) -> int:
        gone = 0
        for run in [run for run in self._trie.runs() if not run.pins]:  # parents before children
            if gone < blocks and run.parent is not None:
                self._trie.family.remove(run)
                self._uses.leave(run)
                self._uses.idle -= len(run.blocks)
                self.pool.give(run.blocks)
                gone += len(run.blocks)
        return gone

    patch.setattr(BlockTrieDesign, "_evict", evict)


def _token_trie_parents_first(patch: MonkeyPatch) -> None:
    def evict(self: TokenTrieDesign, blocks: int) -> int:
        victims = [node for node in self._nodes() if not node.pins][:blocks]
        for node in victims:
            assert node.parent is not None
            self._idle.discard(node)
            del node.parent.children[node.routing]
        self.pool.give([node.block for node in victims])
        return len(victims)

    patch.setattr(TokenTrieDesign, "_evict", evict)


EVICT_PARENTS_FIRST: dict[str, Callable[[MonkeyPatch], None]] = {
    "block_trie": _block_trie_parents_first,
    "digest_chain": _digest_chain_parents_first,
    "hash_chain": _hash_chain_parents_first,
    "naive": _naive_parents_first,
    "radix": _radix_parents_first,
    "token_trie": _token_trie_parents_first,
}

MUTATIONS: dict[str, Mutation] = {
    mutation.__name__: mutation
    for mutation in (
        unpin_early,
        skip_the_parent,
        forget_the_scope,
        publish_what_is_not_computed,
        reach_old_weights,
        free_without_a_word,
        announce_twice,
        refresh_at_a_probe,
    )
}
