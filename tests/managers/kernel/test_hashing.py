"""Keys of units: different for different units, and equal in both forms of the kernel."""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvhybrid.managers.kernel import extend_keys, is_native, plain

pytestmark = pytest.mark.skipif(not is_native, reason="no native kernel was compiled here")


def test_a_unit_longer_than_any_list_gives_no_key() -> None:
    for keys in ([], [bytes(32)] * 3):
        found = list(keys)
        extend_keys(found, [1, 2, 3], 2**62, bytes(32))
        assert found == keys


def test_a_token_that_would_run_code_is_refused() -> None:
    tokens: list[object] = [1] * 64

    class Clearing:
        def __index__(self) -> int:
            tokens.clear()
            return 1

    tokens[3] = Clearing()
    with pytest.raises(TypeError):
        extend_keys([], tokens, 16, bytes(32))  # type: ignore[arg-type]


EDGES = [0, 1, 2**30, 2**31, 2**32 - 1, 2**32, 2**33, 2**60, 2**63 - 1, -1, -(2**30), -(2**32), -(2**63)]
"""Token ids on both sides of every limit of an encoding."""
narrow = st.integers(0, 2**32 - 1)
token_ids = narrow | st.sampled_from(EDGES) | st.integers(-(2**63), 2**63 - 1)
digests = st.binary(min_size=32, max_size=32)


@pytest.mark.parametrize("natively", [True, False])
@given(
    tokens=st.lists(narrow, max_size=60) | st.lists(token_ids, max_size=60),
    unit=st.integers(1, 20),
    have=st.integers(0, 3),
    root=digests,
)
def test_keys_are_those_of_hashlib(natively: bool, tokens: list[int], unit: int, have: int, root: bytes) -> None:
    expected: list[bytes] = []
    plain.extend_keys(expected, tokens, unit, root)
    found = expected[:have]
    extend_keys(found, tokens, unit, root, natively)
    assert found == expected
    assert len(found) == len(tokens) // unit


@pytest.mark.parametrize("natively", [True, False])
@pytest.mark.parametrize("wide", [[], [0], [1], [0, 1, 2]])
@pytest.mark.parametrize("unit", [1, 2, 3, 4, 5, 11, 12, 16, 256, 1000])
def test_keys_of_every_padding_are_right(unit: int, wide: list[int], natively: bool) -> None:
    """A message ends its last 64 bytes early or late, and a unit of wide ids follows one of narrow ids."""
    expected: list[bytes] = []
    found: list[bytes] = []
    tokens = list(range(3 * unit))
    for i in wide:
        tokens[i * unit] = 2**40
    plain.extend_keys(expected, tokens, unit, bytes(32))
    extend_keys(found, tokens, unit, bytes(32), natively)
    assert found == expected
    assert len(found) == 3


def read_back(preimage: bytes) -> tuple[list[int], bytes, bytes]:
    """The token ids, the parent and the extra keys."""
    width, count = preimage[-9], int.from_bytes(preimage[-8:], "little")
    ids, rest = preimage[: width * count], preimage[width * count : -9]
    return list(struct.unpack(f"<{count}{ {4: 'I', 8: 'q'}[width] }", ids)), rest[:32], rest[32:]


extras = st.binary(max_size=20) | st.integers(0, 5).map(lambda count: bytes([4]) + count.to_bytes(8, "little"))


@given(st.lists(token_ids, min_size=1, max_size=20), digests, extras)
def test_a_preimage_can_be_read_back(tokens: list[int], parent: bytes, extra: bytes) -> None:
    assert read_back(plain.preimage(tokens, parent, extra)) == (tokens, parent, extra)


ALIASES: list[tuple[list[int], list[int]]] = [
    ([5 + (6 << 32)], [5, 6]),
    ([5, 6], [5 + (6 << 32), 0]),
    ([1, 0, 2, 0], [1, 2]),
    ([1, 2], [1, 2, 0, 0]),
    ([-1], [2**32 - 1]),
    ([-1], [2**32 - 1, 2**32 - 1]),
    ([-1, 7], [2**32 - 1, 7]),
    ([2**32], [0]),
    ([2**32 + 7, 0], [7, 0]),
    ([-(2**63)], [0]),
    ([-(2**63)], [0, 2**31]),
    ([2**31], [-(2**31)]),
]
"""Units whose bytes are equal if an encoding truncates ids, ignores their sign or omits their number."""


@pytest.mark.parametrize(("one", "other"), ALIASES)
@pytest.mark.parametrize("form", [extend_keys, plain.extend_keys], ids=["native", "plain"])
def test_units_that_a_naive_encoding_confuses_have_different_keys(
    form: Callable[..., None], one: list[int], other: list[int]
) -> None:
    keys: list[list[bytes]] = []
    for tokens in (one, other):
        keys.append([])
        form(keys[-1], tokens, len(tokens), bytes(32))
    assert keys[0] != keys[1]


@pytest.mark.parametrize("form", [extend_keys, plain.extend_keys], ids=["native", "plain"])
def test_an_error_in_a_later_unit_adds_no_key(form: Callable[..., None]) -> None:
    keys = [bytes(32)]
    with pytest.raises(OverflowError):
        form(keys, [1, 2, 3, 4, 5, 2**63], 1, bytes(32))
    assert keys == [bytes(32)]


@pytest.mark.parametrize(
    ("keys", "tokens", "unit", "error"),
    [
        ([], [2**63], 1, OverflowError),
        ([], ["a"], 1, TypeError),
        ([], [1.5], 1, TypeError),
        ([], [None], 1, TypeError),
        ([], [True], 1, TypeError),
        ([], [np.int64(1)], 1, TypeError),
        ([], [-(2**63) - 1], 1, OverflowError),
        ([], [1], 0, ValueError),
        ([b"short"], [1, 2], 1, ValueError),
        ([7], [1, 2], 1, ValueError),
    ],
)
@pytest.mark.parametrize("form", [extend_keys, plain.extend_keys], ids=["native", "plain"])
def test_what_cannot_be_hashed_is_an_error(
    form: Callable[..., None],
    keys: list,  # type: ignore[type-arg]
    tokens: list,  # type: ignore[type-arg]
    unit: int,
    error: type[Exception],
) -> None:
    with pytest.raises(error):
        form(keys, tokens, unit, bytes(32))
