"""The kernel: its native form does what the numpy form does, array for array."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvhybrid.managers.arrays import IntArray, int_array
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
from tests.managers.kernel.side import BLOCKS, GROUPS, NUMBERS, Side

pytestmark = pytest.mark.skipif(not is_native, reason="no native kernel was compiled here")

blocks = st.integers(0, BLOCKS - 1)
rows = st.lists(st.lists(blocks, min_size=3, max_size=3), min_size=1, max_size=GROUPS)
numbers = st.lists(st.integers(-1, NUMBERS), min_size=3, max_size=3)


@st.composite
def calls(draw: st.DrawFn) -> tuple[str, list[object]]:
    name = draw(st.sampled_from(["allocate", "hold", "release", "register", "forget", "mark", "look"]))
    if name == "register":
        return name, [draw(rows), draw(numbers)]
    if name == "allocate":
        return name, [draw(st.lists(st.integers(1, BLOCKS - 1), unique=True)), draw(st.integers(-1, GROUPS - 1))]
    if name == "look":
        return name, [draw(st.integers(1, 4)), draw(st.integers(0, NUMBERS)), draw(st.integers(0, NUMBERS))]
    if name in ("hold", "release"):
        return name, [draw(rows)]
    return name, [draw(st.lists(blocks, unique=True)), draw(st.integers(0, 1))]


def play(side: Side, name: str, values: list) -> object:  # type: ignore[type-arg]
    arrays = side.arrays
    if name == "allocate":
        ids = int_array([b for b in values[0] if not side.refs[b] and not side.records["number"][b]])
        arrays.allocate(int_array([values[1]]), ids[None])
        return ids.tolist()
    if name == "hold":
        room = np.zeros(3 * len(values[0]), np.int32)
        count = arrays.hold(int_array(values[0]), room)
        side.records["release"][room[: max(count, 0)]] = (
            0  # as the pool does once they are out of the order of reuse
        )
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
    if name == "mark":
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
            arrays.are_keyed_under(chosen, out, path),
            arrays.are_keyed_under(int_array(range(len(groups))), out, path),
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
    side.arrays.allocate(int_array([0, 1]), wide)
    side.arrays.register_rows(int_array([0, 1]), wide[:, 1:7:2], int_array(range(1, 12))[::4], None)
    assert side.index[0, [1, 5, 9]].tolist() == [2, 4, 6]
    assert side.index[1, [1, 5, 9]].tolist() == [12, 14, 16]
    room = np.zeros(20, np.int32)
    height, cached = side.arrays.release(wide[:, ::-1], side.stack, 0, room, 1)
    assert side.stack[:height][::-1].tolist() == [20, 19, 18, 17, 15, 13, 11, 10, 9, 8, 7, 5, 3, 1]
    assert room[:cached].tolist() == [6, 4, 2, 16, 14, 12]


def test_a_wrong_number_is_never_cached() -> None:
    side = Side(BlockArrays)
    path: IntArray = int_array([NUMBERS, -5, 2**31 - 1])
    assert side.arrays.last_present(int_array([0]), path, 1, 3) == -1
    assert not side.arrays.register_rows(int_array([0]), int_array([1]), path, None)


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
            with pytest.raises(IndexError, match=r"number (-1|12) is not in \[0, 12\)"):
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
    count = merge_equal_rows(left)
    assert count == plain.merge_equal_rows(right)
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
