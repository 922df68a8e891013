"""NVIDIA Dynamo's router index from ai-dynamo-runtime: block hashing and RadixTree. No GPU, no dependencies.

An index tells a router which worker has which prefix. It owns no memory, so it finds and stores but serves
nothing. Its tree runs in a thread of its own, and events reach it as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import xxhash
from bench.rivals.side import Tokens, unpack

PACKAGE, VERSION = "ai-dynamo-runtime", "1.6.1"
_SEED = 1337


def load(folder: Path) -> str:
    """Make the package importable; why it is not, or "" when it is."""
    fault = unpack(PACKAGE, VERSION, folder)
    if fault:
        return fault
    sys.path.append(str(folder / "unpacked"))
    try:
        import dynamo._core  # type: ignore[import-not-found]  # noqa: F401
    except ImportError as error:
        return f"{PACKAGE} does not import: {error}"
    return ""


class Dynamo:
    """RadixTree with one worker; a prompt is hashed and looked up, as a router does it."""

    def __init__(self, block_size: int) -> None:
        from dynamo._core import RadixTree, compute_block_hash_for_seq

        self.name = f"dynamo RadixTree at {block_size}"
        self.block_size = block_size
        self._tree = RadixTree()
        self._hash = compute_block_hash_for_seq
        self._events = 0

    def prompt(self, tokens: Tokens | list[int]) -> list[int]:
        return tokens if isinstance(tokens, list) else tokens.tolist()

    def hashes(self, prompt: list[int]) -> list[int]:
        return list(self._hash(prompt, self.block_size))

    def event(self, prompt: list[int]) -> bytes:
        """That these blocks are stored, in Dynamo's own words; sequence hashes as its documentation chains them."""
        sequence, blocks = None, []
        for local in self.hashes(prompt):
            if sequence is None:
                sequence = local
            else:
                both = sequence.to_bytes(8, "little") + local.to_bytes(8, "little")
                sequence = xxhash.xxh3_64_intdigest(both, _SEED)
            blocks.append({"block_hash": sequence, "tokens_hash": local})
        self._events += 1
        stored = {"parent_hash": None, "blocks": blocks}
        return json.dumps({"event_id": self._events, "dp_rank": 0, "data": {"stored": stored}}).encode()

    def store(self, prompt: Any) -> None:
        self._tree.apply_event(1, prompt if isinstance(prompt, bytes) else self.event(prompt))

    def find(self, prompt: list[int]) -> int:
        return int(self._tree.find_matches(self.hashes(prompt)).scores.get((1, 0), 0)) * self.block_size
