"""The kernel: its native form does what the numpy form does, array for array."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvhybrid.managers.arrays import IntArray, int_array
from kvhybrid.managers.kernel import (
    BlockArrays,
    extend_keys,
    gather_alike,
    is_native,
    mark_all,
    mark_each,
    plain,
    put_span,
    stretches,
)

pytestmark = pytest.mark.skipif(not is_native, reason="no native kernel was compiled here")

BLOCKS, GROUPS, NUMBERS = 24, 3, 12


class Side:
    """One form of the kernel, with arrays of its own."""

    def __init__(self, form: type[plain.BlockArrays]) -> None:
        self.records = np.zeros(BLOCKS, plain.BLOCK)
        self.refs, self.irregular = self.records["refs"], self.records["irregular"]
        self.counts = np.zeros((4, GROUPS), np.int64)
        self.index = np.zeros((GROUPS, NUMBERS), np.int32)
        self.stack = np.zeros(BLOCKS, np.int32)
        self.arrays = form(self.records, self.counts, self.index)

    def state(self) -> dict[str, list[object]]:
        arrays = {name: self.records[name] for name in plain.BLOCK.fields or ()}
        return {name: a.tolist() for name, a in {**arrays, "counts": self.counts, "index": self.index}.items()}


blocks = st.integers(0, BLOCKS - 1)
rows = st.lists(st.lists(blocks, min_size=3, max_size=3), min_size=1, max_size=GROUPS)
numbers = st.lists(st.integers(-1, NUMBERS), min_size=3, max_size=3)


@st.composite
def calls(draw: st.DrawFn) -> tuple[str, list[object]]:
    name = draw(st.sampled_from(["hand_out", "hold", "release", "register", "forget", "tangle", "look"]))
    if name == "register":
        return name, [draw(rows), draw(numbers)]
    if name == "hand_out":
        return name, [draw(st.lists(st.integers(1, BLOCKS - 1), unique=True)), draw(st.integers(-1, GROUPS - 1))]
    if name == "look":
        return name, [draw(st.integers(1, 4)), draw(st.integers(0, NUMBERS)), draw(st.integers(0, NUMBERS))]
    if name in ("hold", "release"):
        return name, [draw(rows)]
    return name, [draw(st.lists(blocks, unique=True)), draw(st.integers(0, 1))]


def play(side: Side, name: str, values: list) -> object:  # type: ignore[type-arg]
    arrays = side.arrays
    if name == "hand_out":
        ids = int_array([b for b in values[0] if not side.refs[b] and not side.records["number"][b]])
        arrays.hand_out(int_array([values[1]]), ids[None])
        return ids.tolist()
    if name == "hold":
        room = np.zeros(3 * len(values[0]), np.int32)
        count = arrays.hold(int_array(values[0]), room)
        return count, room[: max(count, 0)].tolist()
    if name == "release":
        room = np.zeros(3 * len(values[0]), np.int32)
        height, cached = arrays.release(int_array(values[0])[:, ::-1], side.stack, 0, room, 7)
        return height, side.stack[: max(height, 0)].tolist(), room[:cached].tolist()
    if name == "register":
        stored = np.zeros((len(values[0]), 3), np.int32)
        ids = int_array(values[0])
        ids = np.where(np.isin(ids, np.unique(ids)[np.unique(ids, return_counts=True)[1] == 1]), ids, 0)
        distinct = int_array(values[1]) if len(set(values[1])) == 3 else int_array([1, 2, 3])
        done = arrays.register_rows(int_array(range(GROUPS)), ids.astype(np.int32), distinct, stored)
        return done, stored.tolist() if done else None
    if name == "forget":
        gone = np.zeros((2, BLOCKS), np.int32)
        count = arrays.forget(int_array(values[0]), gone, values[1])
        return count, sorted(gone[:, : max(count, 0)].T.tolist())
    if name == "tangle":
        alone = [b for b in values[0] if side.records[["ahead", "behind"]][b].tolist() == (0, 0)]
        side.irregular[alone] = values[1]
        side.irregular[0] = 0
        return None
    return look(arrays, *values)


def look(arrays: plain.BlockArrays, step: int, start: int, end: int) -> list[object]:
    found: list[object] = []
    for groups in ([0], [2, 0], [0, 1, 2]):
        chosen, path = int_array(groups), int_array(range(NUMBERS))
        out = np.zeros((len(groups), NUMBERS), np.int32)
        arrays.gather(chosen, path, out)
        found += [
            arrays.first_missing(chosen, path, start, end) if start <= end else None,
            arrays.last_missing(chosen, path, start, end) if start <= end else None,
            arrays.last_present(chosen, path, step, end),
            arrays.last_run(chosen, path, step, end),
            arrays.count_free(int_array(range(BLOCKS))),
            arrays.stand_for(out, path),
            out.tolist(),
        ]
    return found


@settings(max_examples=300, deadline=None)
@given(st.lists(calls(), max_size=40))
def test_both_forms_give_the_same_answers_and_leave_the_same_arrays(script: list) -> None:  # type: ignore[type-arg]
    native, reference = Side(BlockArrays), Side(plain.BlockArrays)
    for name, values in script:
        assert play(native, name, values) == play(reference, name, values), (name, values)
        assert native.state() == reference.state(), (name, values)


def test_strided_and_reversed_views_are_read_as_they_are() -> None:
    side = Side(BlockArrays)
    wide = int_array(range(1, 21)).reshape(2, 10)
    side.arrays.hand_out(int_array([0, 1]), wide)
    side.arrays.register_rows(int_array([0, 1]), wide[:, 1:7:2], int_array(range(1, 12))[::4], None)
    assert side.index[0, [1, 5, 9]].tolist() == [2, 4, 6]
    assert side.index[1, [1, 5, 9]].tolist() == [12, 14, 16]
    room = np.zeros(20, np.int32)
    height, cached = side.arrays.release(wide[:, ::-1], side.stack, 0, room, 1)
    assert side.stack[:height][::-1].tolist() == [20, 19, 18, 17, 15, 13, 11, 10, 9, 8, 7, 5, 3, 1]
    assert room[:cached].tolist() == [6, 4, 2, 16, 14, 12]


WRONG: list[tuple[str, tuple[object, ...], type[Exception]]] = [
    ("hand_out", (int_array([0]), int_array([BLOCKS])), IndexError),
    ("hand_out", (int_array([0]), np.zeros(3, np.int64)), TypeError),
    ("hand_out", (int_array([0]), [1, 2]), TypeError),
    ("hand_out", (int_array([GROUPS]), int_array([1])), IndexError),
    ("hand_out", (int_array([-2]), int_array([1])), IndexError),
    ("hand_out", (int_array([0]), int_array([[1], [2]])), IndexError),
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
def test_a_wrong_argument_is_an_error_and_never_a_wild_pointer(
    name: str, values: tuple[object, ...], error: type[Exception]
) -> None:
    side = Side(BlockArrays)
    before = side.state()
    with pytest.raises(error):
        getattr(side.arrays, name)(*values)
    assert side.state() == before


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


def test_a_record_that_points_nowhere_is_an_error() -> None:
    side = Side(BlockArrays)
    side.records["number"][3] = 10**6
    with pytest.raises(IndexError, match="block 3 has number 1000000"):
        side.arrays.forget(int_array([3]), None, 0)


def test_a_wrong_number_is_never_cached() -> None:
    side = Side(BlockArrays)
    path: IntArray = int_array([NUMBERS, -5, 2**31 - 1])
    assert side.arrays.last_present(int_array([0]), path, 1, 3) == -1
    assert not side.arrays.register_rows(int_array([0]), int_array([1]), path, None)


def test_arrays_of_another_form_are_refused() -> None:
    side = Side(BlockArrays)
    with pytest.raises(TypeError, match="blocks needs items of 32 bytes, found 4"):
        BlockArrays(np.zeros(BLOCKS, np.int32), side.counts, side.index)
    with pytest.raises(ValueError, match="a row for each of 3 groups"):
        BlockArrays(side.records, side.counts, np.zeros(7, np.int32))


# ---- keys


@pytest.mark.parametrize("natively", [True, False])
@given(
    tokens=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=60),
    unit=st.integers(1, 20),
    have=st.integers(0, 3),
    root=st.binary(min_size=32, max_size=32),
)
def test_keys_are_those_of_hashlib(natively: bool, tokens: list[int], unit: int, have: int, root: bytes) -> None:
    expected: list[bytes] = []
    plain.extend_keys(expected, tokens, unit, root)
    found = expected[:have]
    extend_keys(found, tokens, unit, root, natively)
    assert found == expected


@pytest.mark.parametrize("natively", [True, False])
@pytest.mark.parametrize("unit", [1, 2, 3, 4, 5, 11, 12, 16, 256, 1000])
def test_keys_of_every_padding_are_right(unit: int, natively: bool) -> None:
    """A message ends its last 64 bytes early or late: both ways to pad occur."""
    expected: list[bytes] = []
    found: list[bytes] = []
    plain.extend_keys(expected, list(range(3 * unit)), unit, bytes(32))
    extend_keys(found, list(range(3 * unit)), unit, bytes(32), natively)
    assert found == expected
    assert len(found) == 3


@pytest.mark.parametrize(
    ("keys", "tokens", "unit", "error"),
    [
        ([], [2**63], 1, OverflowError),
        ([], ["a"], 1, TypeError),
        ([], [1.5], 1, TypeError),
        ([], [None], 1, TypeError),
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


# ---- spans of numbers


@given(st.integers(-1, 8), st.integers(-1, 9), st.integers(-5, 5), st.integers(-2, 2), st.sampled_from([1, 2, -1]))
def test_both_forms_put_the_same_span(start: int, end: int, first: int, step: int, stride: int) -> None:
    told, left = [], []
    for form in (put_span, plain.put_span):
        array = int_array(range(100, 116))
        try:
            told.append(form(array[::stride][:8], start, end, first, step))
        except IndexError as error:
            told.append(str(error))
        left.append(array.tolist())
    assert told[0] == told[1]
    assert left[0] == left[1]


def test_a_span_counts_up_or_repeats() -> None:
    array = int_array([9] * 6)
    put_span(array, 1, 4, 5, 1)
    put_span(array, 4, 6, 3, 0)
    assert array.tolist() == [9, 5, 6, 7, 3, 3]


# ---- what observers are told


@given(st.lists(st.integers(0, 3), min_size=12, max_size=12), st.lists(st.integers(-1, 12), max_size=30))
def test_both_forms_find_the_same_stretches(runs: list[int], numbers: list[int]) -> None:
    run_of, given = int_array(runs), int_array(numbers)
    if not all(0 <= number < 12 for number in numbers):
        for form in (stretches, plain.stretches):
            with pytest.raises(IndexError, match=r"number (-1|12) is not of 12"):
                form(run_of, given)
        return
    found = stretches(run_of, given)
    assert found == plain.stretches(run_of, given)
    told = [n for _, a, b in found for n in (range(a, b + 1) if a <= b else range(a, b - 1, -1))]
    assert told == numbers
    assert all({runs[n] for n in range(min(a, b), max(a, b) + 1)} == {run} for run, a, b in found)


def test_a_prompt_in_one_run_is_one_stretch() -> None:
    run_of = np.full(1000, 7, np.int32)
    assert stretches(run_of, np.arange(5, 995, dtype=np.int32)) == [(7, 5, 994)]
    assert stretches(run_of, np.arange(994, 4, -1, dtype=np.int32)) == [(7, 994, 5)]


@given(st.lists(st.integers(0, 2), max_size=6), st.integers(0, 3), st.integers(0, 17))
def test_both_forms_gather_rows_that_are_alike(row: list[int], rows: int, spoilt: int) -> None:
    given = np.tile(int_array(row), (rows, 1))
    if spoilt < given.size:
        given[spoilt // len(row), spoilt % len(row)] += 1
    left, right = given.copy(), given.copy()
    count = gather_alike(left)
    assert count == plain.gather_alike(right)
    assert left.tolist() == right.tolist()
    if count > 0:
        assert left[0, :count].tolist() == [number for number in given[0].tolist() if number]
    elif count < 0:
        assert left.tolist() == given.tolist()


places = st.lists(st.integers(-1, 5), max_size=4)


@given(places, places)
def test_both_forms_mark_the_same_places(rows: list[int], columns: list[int]) -> None:
    for mark, plainly in ((mark_all, plain.mark_all), (mark_each, plain.mark_each)):
        left, right = np.zeros((3, 5), np.int32), np.zeros((3, 5), np.int32)
        told: list[object] = []
        for form, marks in ((mark, left), (plainly, right)):
            try:
                form(marks, int_array(rows), int_array(columns), 7)
            except IndexError as error:
                told.append(type(error))
        assert told in ([], [IndexError] * 2)
        assert left.tolist() == right.tolist()


def test_marks_of_all_and_of_each() -> None:
    rows, columns = int_array([0, 2]), int_array([1, 3])
    marks = np.zeros((3, 4), np.int32)
    mark_all(marks, rows, columns, 5)
    assert marks.tolist() == [[0, 5, 0, 5], [0, 0, 0, 0], [0, 5, 0, 5]]
    mark_each(marks, rows, columns, 9)
    assert marks.tolist() == [[0, 9, 0, 5], [0, 0, 0, 0], [0, 5, 0, 9]]


# ---- without a compiler


def test_scenarios_play_the_same_in_the_plain_form() -> None:
    """Everything above the kernel, without the native form: what a machine without a compiler runs."""
    scenarios = sorted(str(path) for path in (Path(__file__).parents[2] / "scenarios").glob("*.jsonl"))
    assert scenarios
    command = "from kvhybrid.managers.kernel import is_native; from kvhybrid.cli import main; import sys; "
    command += "sys.exit(3 if is_native else main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", command, "scenario", *scenarios],
        env={**os.environ, "KVHYBRID_KERNEL": "plain"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
