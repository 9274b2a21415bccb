"""The integer arrays of block ids and prefix numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

IntArray: TypeAlias = NDArray[np.int32]
"""Block ids or prefix numbers."""

Entries: TypeAlias = range | IntArray
"""Indices of entries in a block table, ascending: a range if they are consecutive, since slices are fast."""


def read_only(array: IntArray) -> IntArray:
    """``array``, which can no longer be written to."""
    # A keyword would double the cost of this, which every look-up that hits pays.
    array.setflags(False)  # type: ignore[call-arg]
    return array


EMPTY: Final[IntArray] = read_only(np.zeros(0, np.int32))


def columns(entries: Entries) -> slice | IntArray:
    """An index that selects the columns ``entries`` of an array."""
    return slice(entries.start, entries.stop) if isinstance(entries, range) else entries


def int_array(values: Sequence[int] | IntArray) -> IntArray:
    return np.asarray(values, np.int32)
