"""The block table of one request."""

from __future__ import annotations

from kvhybrid.managers.table import BlockTable


def test_added_entries_are_null_and_old_ones_stay() -> None:
    table = BlockTable(2)
    table.resize(3)
    table.ids[:, :3] = [[1, 2, 3], [4, 5, 6]]
    table.resize(40)
    assert table.row(0).tolist() == [1, 2, 3] + [0] * 37
    assert table.row(1).tolist() == [4, 5, 6] + [0] * 37


def test_a_table_never_gets_shorter_by_itself() -> None:
    table = BlockTable(1)
    table.resize(5)
    table.resize(2)
    assert table.length == 5


def test_reserved_room_is_taken_without_another_array() -> None:
    table = BlockTable(1)
    table.reserve(100)
    assert table.length == 0
    room = table.ids
    table.resize(60)
    table.resize(100)
    assert table.ids is room
    assert table.length == 100
