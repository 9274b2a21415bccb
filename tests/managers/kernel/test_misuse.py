"""Misuse of the native kernel: an exception, and nothing was changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kvhybrid.managers.arrays import int_array
from kvhybrid.managers.kernel import (
    BlockArrays,
    is_native,
    mark_all,
    mark_each,
    merge_equal_rows,
    plain,
    put_span,
    stretches,
)
from tests.managers.kernel.fuzz import fuzz
from tests.managers.kernel.side import BLOCKS, GROUPS, NUMBERS, Side

pytestmark = pytest.mark.skipif(not is_native, reason="no native kernel was compiled here")

WRONG: list[tuple[str, tuple[object, ...], type[Exception]]] = [
    ("allocate", (int_array([0]), int_array([BLOCKS])), IndexError),
    ("allocate", (int_array([0]), np.zeros(3, np.int64)), TypeError),
    ("allocate", (int_array([0]), [1, 2]), TypeError),
    ("allocate", (int_array([GROUPS]), int_array([1])), IndexError),
    ("allocate", (int_array([-2]), int_array([1])), IndexError),
    ("allocate", (int_array([0]), int_array([[1], [2]])), IndexError),
    ("hold", (int_array([-1]), int_array([0])), IndexError),
    ("hold", (int_array([1, 2]), int_array([0])), IndexError),
    ("hold", (int_array([1]), None), TypeError),
    ("release", (int_array([1]), int_array([0]), 0, int_array([0]), 1), IndexError),
    ("release", (int_array([1]), int_array([0] * BLOCKS), -1, int_array([0]), 1), ValueError),
    ("release", (int_array([1]), int_array([0] * BLOCKS), BLOCKS + 1, int_array([0]), 1), ValueError),
    ("register_rows", (int_array([0]), int_array([1, 2]), int_array([1]), None), IndexError),
    ("forget", (int_array([1, BLOCKS]), None, 0), IndexError),
    ("forget", (int_array([1, 2]), np.zeros((2, 1), np.int32), 0), IndexError),
    ("first_missing", (int_array([0]), int_array([1, 2]), 0, 3), IndexError),
    ("last_missing", (int_array([0]), int_array([1, 2]), -1, 2), IndexError),
    ("last_present", (int_array([0]), int_array([1, 2]), 0, 2), ValueError),
    ("last_run", (int_array([0]), int_array([1, 2]), 0, 2), ValueError),
    ("last_run", (int_array([9]), int_array([1, 2]), 1, 2), IndexError),
    ("gather", (int_array([0]), int_array([1]), np.zeros((1, 2), np.int32)), IndexError),
    ("use_index", (np.zeros((GROUPS, 0), np.int32),), ValueError),
    ("use_index", (np.zeros(4, np.int32),), ValueError),
    ("count_free", (), TypeError),
]


@pytest.mark.parametrize(("name", "values", "error"), WRONG)
def test_a_wrong_value_is_refused(name: str, values: tuple[object, ...], error: type[Exception]) -> None:
    side = Side(BlockArrays)
    before = side.state()
    with pytest.raises(error):
        getattr(side.arrays, name)(*values)
    assert side.state() == before


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "merge_equal_rows": merge_equal_rows,
    "mark_all": mark_all,
    "mark_each": mark_each,
    "put_span": put_span,
    "stretches": stretches,
}
ids, pair, number = int_array([1, 2]), int_array([0, 1]), int_array([1, 2])
CALLS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "allocate": ("vr", (int_array([0]), ids)),
    "count_free": ("r", (ids,)),
    "hold": ("rV", (int_array([0]), np.zeros(1, np.int32))),
    "release": ("rVnVn", (int_array([0]), np.zeros(BLOCKS, np.int32), 0, np.zeros(1, np.int32), 1)),
    "register_rows": ("vrvR", (int_array([0]), ids, number, np.zeros((1, 2), np.int32))),
    "forget": ("vRn", (ids, np.zeros((2, 2), np.int32), 0)),
    "are_keyed_under": ("vrv", (int_array([0]), ids, number)),
    "first_missing": ("vvnn", (int_array([0]), number, 0, 2)),
    "last_missing": ("vvnn", (int_array([0]), number, 0, 2)),
    "last_present": ("vvnn", (int_array([0]), number, 1, 2)),
    "last_run": ("vvnn", (int_array([0]), number, 1, 2)),
    "gather": ("vvR", (int_array([0]), number, np.zeros((1, 2), np.int32))),
    "put_span": ("Vnnnn", (np.zeros(2, np.int32), 0, 2, 1, 1)),
    "stretches": ("vv", (np.zeros(4, np.int32), number)),
    "merge_equal_rows": ("R", (np.zeros((2, 2), np.int32),)),
    "mark_all": ("Rvvn", (np.zeros((2, 2), np.int32), pair, pair, 5)),
    "mark_each": ("Rvvn", (np.zeros((2, 2), np.int32), pair, pair, 5)),
}
"""A right call of everything and each argument's kind: v a vector, r rows, n a number; capitals: written to."""

ARGUMENTS = [(name, place, kind) for name, (kinds, _) in CALLS.items() for place, kind in enumerate(kinds)]


def call(side: Side, name: str, arguments: tuple[Any, ...]) -> Any:
    return (FUNCTIONS.get(name) or getattr(side.arrays, name))(*arguments)


def refused(name: str, place: int, wrong: Any) -> None:
    side, arguments = Side(BlockArrays), [a.copy() if isinstance(a, np.ndarray) else a for a in CALLS[name][1]]
    left = [(a, a.copy()) for i, a in enumerate(arguments) if isinstance(a, np.ndarray) and i != place]
    arguments[place] = wrong
    before = side.state()
    with pytest.raises((TypeError, ValueError, BufferError, IndexError, OverflowError)):
        call(side, name, tuple(arguments))
    assert side.state() == before
    for array, copy in left:
        assert array.tolist() == copy.tolist()


@pytest.mark.parametrize("name", CALLS)
def test_a_right_call_is_accepted(name: str) -> None:
    call(Side(BlockArrays), name, CALLS[name][1])


def misaligned(array: np.ndarray) -> np.ndarray:
    raw = np.zeros(array.nbytes + 1, np.uint8)[1:]
    return raw.view(np.int32).reshape(array.shape)


def read_only(array: np.ndarray) -> np.ndarray:
    array = array.copy()
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(("name", "place", "kind"), ARGUMENTS)
def test_an_array_of_another_shape_type_or_place_is_refused(name: str, place: int, kind: str) -> None:
    right = CALLS[name][1][place]
    if kind == "n":
        for wrong in (None, 1.5, "1", 2**63, -(2**63) - 1, right + 0.0):
            refused(name, place, wrong)
        return
    wrongs: list[Any] = [
        None if kind != "R" or name == "gather" else 7,
        right.tolist(),
        right.astype(np.int64),
        right.astype(np.int16),
        np.zeros((), np.int32),
        np.zeros((1, *right.shape[:1], 2), np.int32),
        misaligned(right),
    ]
    if kind in "vV":
        wrongs += [np.zeros((0, 4), np.int32), np.zeros((1, BLOCKS), np.int32), np.zeros((4, 0), np.int32)]
    if kind in "VR":
        wrongs.append(read_only(right))
    if kind in "vr":
        wrongs.append(np.broadcast_to(int_array([0]), 2**31))
    for wrong in wrongs:
        refused(name, place, wrong)


@pytest.mark.parametrize(("name", "place", "kind"), [case for case in ARGUMENTS if case[2] in "VR"])
def test_room_that_is_too_small_is_refused(name: str, place: int, kind: str) -> None:
    if name in ("gather", "merge_equal_rows"):  # these take the room for what it is
        return
    right = CALLS[name][1][place]
    small = [right[..., :0], right[..., :-1]] + ([right[:0]] if kind == "R" else [])
    for wrong in small:
        refused(name, place, wrong.copy())


@pytest.mark.parametrize(("name", "place", "kind"), [case for case in ARGUMENTS if case[2] in "VR"])
def test_an_array_to_write_to_may_not_be_another_argument(name: str, place: int, kind: str) -> None:
    kinds, arguments = CALLS[name]
    for other, its_kind in enumerate(kinds):
        if its_kind != "n" and other != place:
            side, shared = Side(BlockArrays), list(arguments)
            shared[other] = shared[place].reshape(-1)[:2]
            with pytest.raises(ValueError, match="shares memory with another argument"):
                call(side, name, tuple(shared))


WRITES_POOL = ("allocate", "hold", "release", "register_rows", "forget")


@pytest.mark.parametrize(("name", "place", "kind"), [case for case in ARGUMENTS if case[0] in WRITES_POOL])
def test_an_argument_may_not_be_the_pools_own_array(name: str, place: int, kind: str) -> None:
    for field in ("refs", "number", "index", "counts"):
        side, arguments = Side(BlockArrays), list(CALLS[name][1])
        own = {"index": side.index[0], "counts": side.counts.view(np.int32).reshape(-1)}.get(field)
        if kind != "n":
            arguments[place] = side.records[field] if own is None else own
            before = side.state()
            with pytest.raises(ValueError, match="shares memory with the pool's own arrays"):
                call(side, name, tuple(arguments))
            assert side.state() == before


# ---- what the pool's arrays hold


WRONG_IDS = (-1, BLOCKS, 2**31 - 1, -(2**31))


def keyed() -> Side:
    """Blocks 1 to 3 in one list under number 1 of group 0, block 4 alone under number 2; all are held."""
    side = Side(BlockArrays)
    side.arrays.allocate(int_array([0]), int_array([1, 2, 3, 4]))
    for block in (1, 2, 3):
        assert side.arrays.register_rows(int_array([0]), int_array([block]), int_array([1]), None)
    assert side.arrays.register_rows(int_array([0]), int_array([4]), int_array([2]), None)
    return side


@pytest.mark.parametrize("wrong", WRONG_IDS)
@pytest.mark.parametrize("field", ["ahead", "behind", "group", "number"])
@pytest.mark.parametrize("block", [1, 2, 3, 4])
def test_a_record_that_points_nowhere_is_not_followed(block: int, field: str, wrong: int) -> None:
    side = keyed()
    side.records[field][block] = wrong
    before = side.state()
    with pytest.raises(IndexError, match=f"^block {block} has number "):
        side.arrays.forget(int_array([block]), None, 0)
    assert side.state() == before


@pytest.mark.parametrize("wrong", WRONG_IDS)
def test_an_index_that_points_nowhere_is_not_followed(wrong: int) -> None:
    side = keyed()
    side.index[0, 1] = wrong
    before = side.state()
    with pytest.raises(IndexError, match=f"^the index has block {wrong} for number 1 of group 0"):
        side.arrays.forget(int_array([2]), None, 0)
    with pytest.raises(IndexError, match=f"^the index has block {wrong} for number 1 of group 0"):
        side.arrays.register_rows(int_array([0]), int_array([9]), int_array([1]), None)
    assert side.state() == before


@pytest.mark.parametrize("wrong", WRONG_IDS)
@pytest.mark.parametrize("block", [1, 9])
def test_a_key_is_not_added_to_a_broken_list(block: int, wrong: int) -> None:
    """Neither to the list of the first block nor to one that the new block brings along."""
    side = keyed()
    side.records["ahead"][block] = wrong
    before = side.state()
    with pytest.raises(IndexError, match=f"^block {block} has number "):
        side.arrays.register_rows(int_array([0]), int_array([9]), int_array([1]), None)
    assert side.state() == before


@pytest.mark.parametrize("wrong", WRONG_IDS)
def test_a_list_that_leads_to_a_block_of_another_key_is_not_followed(wrong: int) -> None:
    """Block 4 looks alone, but removing block 3 would give it a neighbour; the index entry of its key is wrong."""
    side = keyed()
    side.records["behind"][3] = 4
    side.index[0, 2] = wrong
    before = side.state()
    with pytest.raises(IndexError, match=f"^the index has block {wrong} for number 2 of group 0"):
        side.arrays.forget(int_array([3, 4]), None, 0)
    assert side.state() == before


@pytest.mark.parametrize("references", [2**31 - 1, 2**31 - 2, -1, -(2**31)])
def test_references_never_overflow(references: int) -> None:
    side = keyed()
    side.refs[4] = references
    before = side.state()
    with pytest.raises(OverflowError, match=f"^block 4 cannot be held: it has {references} references"):
        side.arrays.hold(int_array([4, 4]), np.zeros(2, np.int32))
    assert side.state() == before


def test_a_group_that_does_not_exist_is_not_counted() -> None:
    side = keyed()
    side.records["group"][1] = 10**6
    side.arrays.release(int_array([1, 2]), side.stack, 0, np.zeros(2, np.int32), 1)
    assert side.counts[0].tolist() == [3, 0, 0]


def test_arrays_of_another_form_make_no_pool() -> None:
    def made(**other: Any) -> None:
        side = Side(BlockArrays)
        arrays: dict[str, Any] = {"blocks": side.records, "counts": side.counts, "index": side.index}
        BlockArrays(**{**arrays, **other})

    with pytest.raises(TypeError, match="blocks needs items of 32 bytes, found 4"):
        made(blocks=np.zeros(BLOCKS, np.int32))
    with pytest.raises(TypeError, match="counts needs signed integers, found items of format 'd'"):
        made(counts=np.zeros((4, GROUPS)))
    with pytest.raises(TypeError, match="index needs signed integers, found items of format 'f'"):
        made(index=np.zeros((GROUPS, NUMBERS), np.float32))
    with pytest.raises(ValueError, match="4 counts for each group"):
        made(counts=np.zeros(13, np.int64))
    with pytest.raises(ValueError, match="a row for each of 3 groups"):
        made(index=np.zeros(7, np.int32))
    with pytest.raises(ValueError, match="a row for each of 0 groups"):
        made(counts=np.zeros((4, 0), np.int64))
    with pytest.raises(ValueError, match="not C-contiguous"):
        made(index=np.zeros((GROUPS, 2 * NUMBERS), np.int32)[:, ::2])
    with pytest.raises(ValueError, match="read-only"):
        made(counts=read_only(np.zeros((4, GROUPS), np.int64)))
    raw = np.zeros(40 * BLOCKS, np.uint8)
    with pytest.raises(TypeError, match="blocks must be aligned in memory"):
        made(blocks=raw[4 : 4 + 32 * BLOCKS].view(plain.BLOCK))
    shared = np.zeros(BLOCKS, plain.BLOCK)
    with pytest.raises(ValueError, match="blocks and counts share memory"):
        made(blocks=shared, counts=shared.view(np.int64)[: 4 * GROUPS])
    with pytest.raises(ValueError, match="index shares memory with the pool's other arrays"):
        made(blocks=shared, index=shared.view(np.int32)[: GROUPS * NUMBERS])


def test_there_is_no_pool_without_arrays() -> None:
    with pytest.raises(TypeError):
        BlockArrays.__new__(BlockArrays)


def test_random_calls_end_in_an_answer_or_a_clear_exception() -> None:
    counts = fuzz(seed=1, calls=20_000)
    assert counts["answers"] > 2_000
    assert counts["refusals"] > 2_000
