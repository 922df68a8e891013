"""KV memory in host memory, for block ids from a cache: what `Request.copies` is carried out on.

A cache owns ids and never touches memory. Engines have memory of their own (`engine/kv_pool.py` is that of torch);
this one serves those that keep KV in numpy, and the tests and benchmarks in which KV is really copied.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from prefixcache.errors import OptionError, whole_number


class BlockCopy(Protocol):
    """A copy that a request asks for: the first `tokens` slots of block `source` go to block `target`."""

    @property
    def source(self) -> int: ...
    @property
    def target(self) -> int: ...
    @property
    def tokens(self) -> int: ...
    @property
    def group(self) -> int: ...
    @property
    def source_tier(self) -> str: ...
    @property
    def target_tier(self) -> str: ...


class BlockMemory(Protocol):
    """Whatever holds KV by block id and can copy inside itself, from any thread."""

    def copy(self, copies: Iterable[BlockCopy]) -> None:
        """Do the copies, in order."""
        ...


def _numbers(dtype: npt.DTypeLike) -> np.dtype[Any]:
    """A checked type of numbers."""
    try:
        read = np.dtype(dtype)
    except TypeError:
        read = np.dtype(object)
    if read.hasobject or read.kind in "SUmM":
        raise OptionError(f"dtype is {dtype!r}: expected a type of numbers such as numpy.float16")
    return read


class KVStore:
    """Keys and values of every block of every layer, in one numpy array that is made once.

    Args:
        layers: layers with attention.
        blocks: the `capacity` of the cache whose ids these are.
        block_size: tokens per block.
        width: numbers per token in each of keys and values: heads x dim.
        dtype: of the numbers.
        group: attention group whose blocks these are.
        host_blocks: blocks of the tier below, 0 without one: what a cache with `tiers={"host": n}` spills and loads.

    Attributes:
        memory: the array, of shape (layers, 2, blocks, block_size, width), keys before values. It starts as zeros,
            which cost no memory until they are written.
        host: the same of the tier below.

    Raises `OptionError` for sizes below 1, for more than can be had, and for a `dtype` that is no type of numbers.
    """

    def __init__(
        self,
        *,
        layers: int,
        blocks: int,
        block_size: int,
        width: int,
        dtype: npt.DTypeLike = np.float32,
        group: int = 0,
        host_blocks: int = 0,
    ) -> None:
        self.group = whole_number(group, "group")
        sizes = {"layers": layers, "blocks": blocks, "block_size": block_size, "width": width}
        layers, blocks, block_size, width = (whole_number(size, name, least=1) for name, size in sizes.items())
        below, numbers = whole_number(host_blocks, "host_blocks"), _numbers(dtype)
        try:
            self.memory: npt.NDArray[Any] = np.zeros((layers, 2, blocks, block_size, width), numbers)
            self.host: npt.NDArray[Any] = np.zeros((layers, 2, below, block_size, width), numbers)
        except (ValueError, MemoryError) as error:
            raise OptionError(
                f"a store of {blocks:,} blocks and {below:,} on the host cannot be had: {error}"
            ) from None
        self._tiers = {"device": self.memory, "host": self.host}

    @property
    def block_bytes(self) -> int:
        """Bytes of one block, all layers together."""
        return int(self.memory.nbytes) // int(self.memory.shape[2])

    def copy(self, copies: Iterable[BlockCopy]) -> None:
        """Copy blocks inside the store, within a tier or between two, in order. O(bytes copied), from any thread.

        One call of numpy per block, all layers in it: numpy lets go of the interpreter's lock while it runs. A call per
        layer was a quarter faster alone, and two threads then took turns instead of working side by side.

        Raises `OptionError` for a group, a block or a number of tokens that the store does not have; that copy is not
        begun.
        """
        for copy in copies:
            self._require(copy)
            source = self._tiers[copy.source_tier][:, :, copy.source, : copy.tokens]
            target = self._tiers[copy.target_tier][:, :, copy.target, : copy.tokens]
            np.copyto(target, source)

    def _require(self, copy: BlockCopy) -> None:
        block_size = self.memory.shape[3]
        if copy.group != self.group:
            raise OptionError(f"a copy in attention group {copy.group}: this store holds group {self.group}")
        for block, tier in ((copy.source, copy.source_tier), (copy.target, copy.target_tier)):
            blocks = self._tiers[tier].shape[2] if tier in self._tiers else 0
            if tier == "host" and not blocks:
                raise OptionError("a copy to or from the host: this store has no blocks there, see `host_blocks`")
            if not (0 <= block < blocks and 0 <= copy.tokens <= block_size):
                raise OptionError(
                    f"copy of {copy.tokens} tokens from block {copy.source} of the {copy.source_tier} to block "
                    f"{copy.target} of the {copy.target_tier}: expected {tier} blocks below {blocks} and at most "
                    f"{block_size} tokens"
                )

    def write(self, block_table: npt.ArrayLike, start: int, states: npt.ArrayLike) -> None:
        """Write the KV of positions from `start` on, shape (layers, 2, positions, width), where the table says.

        O(numbers written). Raises `OptionError` for positions outside of the table, for blocks that the store does not
        have (-1 in the table of a window is none), and for another shape; nothing is written then.
        """
        states = np.asarray(states)
        layers, halves, _, _, width = self.memory.shape
        if states.ndim != 4 or (*states.shape[:2], states.shape[3]) != (layers, halves, width):
            raise OptionError(f"states are of shape {states.shape}: expected ({layers}, {halves}, positions, {width})")
        blocks, offsets = self._places(block_table, start, start + states.shape[2])
        self.memory[:, :, blocks, offsets] = states

    def read(self, block_table: npt.ArrayLike, start: int, stop: int) -> npt.NDArray[Any]:
        """The KV of positions start..stop of a table, a copy of shape (layers, 2, stop - start, width).

        Raises `OptionError` for positions outside of the table and for blocks that the store does not have.
        """
        blocks, offsets = self._places(block_table, start, stop)
        return np.asarray(self.memory[:, :, blocks, offsets])

    def _places(self, block_table: npt.ArrayLike, start: int, stop: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        table, block_size = np.asarray(block_table), self.memory.shape[3]
        if table.ndim != 1 or (table.size and table.dtype.kind not in "iu"):
            raise OptionError(f"block_table is {block_table!r}: expected block ids, one for each block of tokens")
        if not 0 <= start <= stop <= len(table) * block_size:
            raise OptionError(f"positions {start} to {stop}: the table covers {len(table) * block_size}")
        positions = np.arange(start, stop)
        blocks = table.astype(np.int64)[positions // block_size]
        if blocks.size and not 0 <= blocks.min() <= blocks.max() < self.memory.shape[2]:
            raise OptionError(
                f"positions {start} to {stop} lie in blocks {blocks.min()} to {blocks.max()}, "
                f"expected blocks from 0 to {self.memory.shape[2] - 1}"
            )
        return blocks, positions % block_size
