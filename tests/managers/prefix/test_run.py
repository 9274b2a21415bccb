"""Runs of keys: which lists they keep, and that they never write to another's."""

from __future__ import annotations

from kvhybrid.managers.prefix.run import Run

TEN = [b"%d" % i for i in range(10)]


def run_of(keys: list[bytes], start: int) -> Run:
    run = Run(100, None, start, keys, start, len(keys) - start)
    run.drop_foreign_keys()
    return run


def keys_of(run: Run) -> list[bytes]:
    return run.keys_between(run.base, run.base + run.length - 1)


def test_a_run_keeps_the_list_that_brought_it_where_most_of_that_is_its_own() -> None:
    keys = list(TEN)
    run = run_of(keys, 5)
    assert run.keys is keys
    assert keys_of(run) == TEN[5:]
    assert [run.key(n) for n in (100, 104)] == [b"5", b"9"]


def test_a_run_copies_its_keys_where_most_of_the_list_is_not_its_own() -> None:
    run = run_of(TEN, 6)
    assert run.keys == TEN[6:]
    assert keys_of(run) == TEN[6:]


def test_a_run_grows_with_its_request_and_copies_nothing() -> None:
    keys = list(TEN)
    run = run_of(keys, 0)
    run.room = 3
    keys += [b"10", b"11"]
    run.grow(keys, 10, 2)
    assert run.keys is keys
    assert (keys_of(run), run.room) == ([*TEN, b"10", b"11"], 1)


def test_a_run_that_another_request_grows_leaves_the_list_of_the_first_alone() -> None:
    first, second = list(TEN), [*TEN, b"10"]
    run = run_of(first, 0)
    run.room = 3
    first.append(b"other")
    run.grow(second, 10, 1)
    assert keys_of(run) == [*TEN, b"10"]
    assert (first, second) == ([*TEN, b"other"], [*TEN, b"10"])


def test_a_run_with_a_list_of_its_own_grows_there() -> None:
    run = run_of(TEN, 7)
    run.room = 8
    own = run.keys
    run.grow([*TEN, b"10"], 10, 1)
    assert run.keys is own
    assert keys_of(run) == [*TEN[7:], b"10"]


def test_both_parts_of_a_split_run_read_the_same_list() -> None:
    run = run_of(TEN, 0)
    run.room = 2
    tail = run.split(4)
    assert (keys_of(run), keys_of(tail)) == (TEN[:4], TEN[4:])
    assert (tail.base, tail.units_before, tail.room, run.room) == (104, 4, 2, 0)
    assert run.children == {b"4": tail}
    assert tail.parent is run
    tail.grow([*TEN, b"10"], 10, 1)
    assert (keys_of(run), keys_of(tail)) == (TEN[:4], [*TEN[4:], b"10"])


def test_a_part_lets_go_of_the_keys_of_the_other_and_can_still_grow() -> None:
    run = run_of(TEN, 0)
    run.room = 2
    tail = run.split(6)
    tail.drop_foreign_keys()
    run.drop_foreign_keys()
    assert (tail.keys, run.keys is TEN) == (TEN[6:], True)
    tail.grow([*TEN, b"10"], 10, 1)
    assert (keys_of(run), keys_of(tail)) == (TEN[:6], [*TEN[6:], b"10"])


def test_keys_come_in_the_order_of_their_numbers() -> None:
    run = run_of(TEN, 0)
    assert run.keys_between(102, 104) == [b"2", b"3", b"4"]
    assert run.keys_between(104, 102) == [b"4", b"3", b"2"]
    assert run.keys_between(101, 100) == [b"1", b"0"]
