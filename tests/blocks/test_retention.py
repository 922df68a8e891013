"""How long blocks are to stay: what `open` takes, and what it refuses before anything is changed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from prefixcache import OptionError, PrefixCache

BEYOND_FLOATS = 10**400


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"priority": 101}, "priority is 101: expected an integer from 0 to 100"),
        ({"priority": True}, "priority is True"),
        ({"priority": 35.0}, "priority is 35.0"),
        ({"priority": "5"}, "priority is '5': expected an integer or a list"),
        ({"priority": ["abc"]}, r"priority\[0\] is 'abc': expected \(start, end, priority, ttl\)"),
        ({"priority": [(0, 4)]}, r"priority\[0\] is \(0, 4\)"),
        ({"priority": [(-1, 4, 5)]}, r"the beginning of priority\[0\] is -1: expected an integer from 0 on"),
        ({"priority": [(True, 4, 5)]}, r"the beginning of priority\[0\] is True"),
        ({"priority": [(0, True, 5)]}, r"the end of priority\[0\] is True"),
        ({"priority": [(0, 4.0, 5)]}, r"the end of priority\[0\] is 4.0"),
        ({"priority": [(4, 0, 5)]}, r"the end of priority\[0\] is 0: expected an integer from 5 on"),
        ({"priority": [(4, 4, 5)]}, r"the end of priority\[0\] is 4"),
        ({"priority": [(0, 4, 5), (3, 6, 5)]}, r"priority\[1\] begins at 3: ranges must be sorted"),
        ({"priority": [(4, 6, 5), (0, 2, 5)]}, r"priority\[1\] begins at 0"),
        ({"priority": [(0, None, 5), (6, 8, 5)]}, r"priority\[1\] begins at 6"),
        ({"priority": [(0, 4, 101)]}, r"priority\[0\]\[2\] is 101"),
        ({"priority": [(0, 4, 5, float("nan"))]}, r"priority\[0\]\[3\] is nan: expected seconds"),
        ({"priority": 50, "ttl": BEYOND_FLOATS}, "ttl is 10+: expected seconds from 0 on"),
        ({"priority": 50, "ttl": -1}, "ttl is -1"),
        ({"ttl": float("inf")}, "ttl is inf"),
        ({"ttl": True}, "ttl is True"),
        ({"decode_priority": -1}, "decode_priority is -1"),
        ({"decode_ttl": "soon"}, "decode_ttl is 'soon'"),
    ],
)
def test_what_is_no_wish_is_named_and_nothing_is_changed(arguments: dict[str, Any], told: str) -> None:
    cache = PrefixCache.preset("trtllm", block_size=2, capacity=8)
    before = (cache.books(), cache.stats())
    with pytest.raises(OptionError, match=told):
        cache.open([1, 2, 3, 4, 5], **arguments)
    assert (cache.books(), cache.stats()) == before
    cache.check()


@pytest.mark.parametrize("preset", ["trtllm", "trtllm-v2"])
def test_numbers_of_numpy_are_numbers(preset: str) -> None:
    """The same blocks survive as with the numbers of Python."""
    wishes: list[dict[str, Any]] = [
        {"priority": [(0, 2, 90, 3), (2, 4, 10, None)]},
        {
            "priority": [
                (np.int64(0), np.int32(2), np.uint8(90), np.float32(3)),
                (np.int64(2), np.int64(4), np.int8(10)),
            ]
        },
        {"priority": np.int64(20), "ttl": np.int64(3), "decode_priority": np.int16(5), "decode_ttl": np.float64(1)},
        {"priority": 20, "ttl": 3, "decode_priority": 5, "decode_ttl": 1.0},
    ]
    left = []
    for arguments in wishes:
        cache = PrefixCache.preset(preset, block_size=2, capacity=8)
        request = cache.open([1, 2, 3, 4, 5], **arguments)
        request.computed(5)
        request.close()
        cache.evict(1)
        left.append(cache.probe([1, 2, 3, 4, 9]).cached)
    assert left[0] == left[1]
    assert left[2] == left[3]
