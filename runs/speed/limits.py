"""What Python and numpy take for the least that a block needs: this design cannot go below it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import sha256
from time import process_time
from typing import Any

import numpy as np

from runs.speed.works import BLOCK

COUNT = 200_000
"""Blocks; far more than any processor cache holds the keys of."""


def floors() -> Mapping[str, float]:
    """Microseconds for one block."""
    keys = [sha256(number.to_bytes(8, "little")).digest() for number in range(COUNT)]
    known = {key: number for number, key in enumerate(keys)}
    again = [bytes(bytearray(key)) for key in keys]  # equal keys that are other objects, as those of a new request
    tokens = bytes(8 * BLOCK)
    table, order = np.zeros(COUNT, np.int32), np.random.default_rng(0).permutation(COUNT)
    return {
        "hashing: one SHA-256 of a key and 16 tokens": _each(lambda: [sha256(k + tokens).digest() for k in keys]),
        "key to number: one probe of a dictionary": _each(lambda: list(map(known.get, again))),
        "number to block: one entry of a flat array, in random order": _each(lambda: table[order]),
    }


def _each(call: Callable[[], Any]) -> float:
    times = []
    for _ in range(3):
        began = process_time()
        call()
        times.append(process_time() - began)
    return 1e6 * min(times) / COUNT
