"""The KV oracle itself: what it accepts, and that each way to be wrong makes it speak."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

from prefixcache.scenario.oracle import KVOracle, OracleError


@dataclass(frozen=True)
class Scope:
    model: str = ""
    generation: int = 0
    adapter: str | None = None
    salt: str | None = None


@dataclass(frozen=True)
class Copy:
    source: int
    target: int
    tokens: int
    group: int = 0
    source_tier: str = "device"
    target_tier: str = "device"


@dataclass
class Owner:
    id: int
    tokens: list[int]
    block_table: list[int]
    scope: Scope = field(default_factory=Scope)
    media: tuple[tuple[int, int, bytes, int], ...] = ()  # (first token, end token, digest, offset in the item)
    extra_ids: tuple[int, ...] | None = None
    why_not: str = ""

    @property
    def tables(self) -> tuple[list[int], ...]:
        return (self.block_table,)


def _written(owner: Owner, block_size: int = 2) -> KVOracle:
    oracle = KVOracle(block_size)
    oracle.write(owner, 0, len(owner.tokens))
    return oracle


BASE = Owner(0, [1, 2, 3, 4], [5, 6])
PICTURE = Owner(0, [1, 2, 3, 4], [5, 6], media=((1, 3, b"a", 0),))


def test_what_was_written_is_found_through_another_table_with_the_same_blocks() -> None:
    oracle = _written(BASE)
    oracle.verify(BASE, 4)
    oracle.verify(Owner(1, [1, 2, 3, 4, 9], [5, 6, 7], Scope(adapter="", salt="")), 4)


@pytest.mark.parametrize(
    ("reader", "position"),
    [
        (Owner(1, [1, 9, 3, 4], [5, 6]), 1),  # another token before
        (Owner(1, [1, 2, 3, 4], [5, 6], Scope(salt="s")), 0),
        (Owner(1, [1, 2, 3, 4], [5, 6], Scope(adapter="x")), 0),
        (Owner(1, [1, 2, 3, 4], [5, 6], Scope(generation=1)), 0),
        (Owner(1, [1, 2, 3, 4], [5, 6], extra_ids=(0, 0, 7, 0)), 2),
        (Owner(1, [1, 2, 3, 4], [5, 6], media=((2, 4, b"a", 0),)), 2),
        (Owner(1, [1, 2, 3, 4], [6, 5]), 0),
        (Owner(1, [1, 2, 3, 4], [5, 7]), 2),  # never written
    ],
)
def test_a_wrong_slot_is_named_with_what_it_holds(reader: Owner, position: int) -> None:
    oracle = _written(BASE)
    slot = reader.block_table[position // 2] * 2 + position % 2
    with pytest.raises(OracleError, match=rf"position {position}, slot {slot} .*expected .*, found "):
        oracle.verify(reader, 4)


def test_media_belong_to_the_tokens_they_cover() -> None:
    oracle = _written(PICTURE)
    oracle.verify(Owner(1, [1, 2, 3, 4], [5, 6], media=((1, 2, b"a", 0), (2, 3, b"a", 1))), 4)
    for other in ((1, 3, b"b", 0), (1, 3, b"a", 1), (1, 2, b"a", 0)):
        with pytest.raises(OracleError):
            oracle.verify(Owner(2, [1, 2, 3, 4], [5, 6], media=(other,)), 4)


def test_kv_of_an_uncacheable_request_is_good_for_itself_and_its_forks() -> None:
    owner = Owner(0, [1, 2, 3, 4], [5, 6], why_not="uncacheable")
    oracle = _written(owner)
    oracle.verify(owner, 4)
    child, grandchild = (Owner(id, [1, 2, 3, 4], [5, 6], why_not="uncacheable") for id in (1, 2))
    for stranger in (child, Owner(3, [1, 2, 3, 4], [5, 6])):
        with pytest.raises(OracleError, match="position 0"):
            oracle.verify(stranger, 1)
    oracle.fork(owner, child)
    oracle.fork(child, grandchild)
    oracle.verify(grandchild, 4)


def test_a_copy_carries_content_and_needs_a_written_source() -> None:
    oracle = _written(BASE)
    oracle.copy([Copy(5, 8, 2), Copy(8, 9, 1)])
    oracle.verify(Owner(1, [1, 2], [8]), 2)
    oracle.verify(Owner(2, [1, 7], [9]), 1)
    with pytest.raises(OracleError, match="slot 19 was never written"):
        oracle.copy([Copy(9, 10, 2)])


def test_an_overwritten_shared_block_is_seen_by_its_other_reader() -> None:
    oracle = _written(BASE)
    oracle.write(Owner(1, [1, 2, 3, 9], [5, 6]), 3, 4)
    with pytest.raises(OracleError, match="position 3"):
        oracle.verify(BASE, 4)


def test_a_rewound_request_is_followed_to_its_new_tokens() -> None:
    owner = Owner(0, [1, 2, 3, 4], [5, 6], extra_ids=(0, 0, 1, 1))
    oracle = _written(owner)
    owner.tokens, owner.extra_ids = [1, 2, 3, 8, 9], (0, 0, 1, 2, 2)
    owner.block_table = [5, 6, 7]
    oracle.verify(owner, 3)
    with pytest.raises(OracleError, match="position 3"):
        oracle.verify(owner, 4)
    oracle.write(owner, 3, 5)
    oracle.verify(owner, 5)
    owner.extra_ids = (0, 0, 2, 2, 2)
    with pytest.raises(OracleError, match="position 2"):
        oracle.verify(owner, 5)


def test_positions_outside_the_table_or_the_tokens_are_refused() -> None:
    oracle = KVOracle(2)
    with pytest.raises(OracleError, match="table of 1 blocks"):
        oracle.write(Owner(0, [1, 2, 3], [4]), 0, 3)
    with pytest.raises(OracleError, match="knows 3 tokens"):
        oracle.verify(Owner(0, [1, 2, 3], [4, 5]), 4)


def test_tokens_may_be_any_sequence() -> None:
    oracle = KVOracle(2)
    oracle.write(Owner(0, np.array([1, 2, 2**32 - 1], dtype=np.uint32), [0, 1]), 0, 3)  # type: ignore[arg-type]
    oracle.verify(Owner(1, [1, 2, 2**32 - 1], [0, 1]), 3)
