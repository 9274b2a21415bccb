"""Prefix keys without tokens: a trace identifies equal prefixes, so no hashing is needed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvhybrid.replay.trace import PrefixIds

OUTPUT = 1 << 62
"""Marks the keys of units that hold generated tokens."""
INDEX_BITS = 30
"""Bits of an output key for the unit's index in its request."""


class PrefixKeys:
    """Assigns every full unit of a trace's requests a key that identifies the whole prefix up to its end.

    The prefix that ends at token e is determined by the id of the part that contains e and by e's offset in that
    part. So keys and prefixes correspond one to one for every unit size, even if it does not divide a part. A unit
    with a generated token never equals a unit of another request.

    Keys are the bytes of integers, without trailing zeros; only their equality matters.
    """

    def __init__(self, unit: int, part_tokens: int) -> None:
        self.unit = unit
        self.part_tokens = part_tokens
        self._requests = 0

    def new_request(self) -> int:
        """A unique number for `of_output`."""
        self._requests += 1
        return self._requests

    def numbers(self, prefix_ids: PrefixIds, num_tokens: int) -> NDArray[np.int64]:
        """What the keys of the full units among the first ``num_tokens`` tokens are made of, one integer each."""
        last = np.arange(self.unit, num_tokens + 1, self.unit, dtype=np.int64) - 1
        part = last // self.part_tokens
        return prefix_ids[part] * self.part_tokens + (last - part * self.part_tokens) + 1

    def of_tokens(self, prefix_ids: PrefixIds, num_tokens: int) -> list[bytes]:
        """The keys of the full units among the first ``num_tokens`` tokens."""
        keys: list[bytes] = self.numbers(prefix_ids, num_tokens).astype("<i8").view("S8").tolist()
        return keys

    def of_output(self, request: int, index: int) -> bytes:
        """The key of unit ``index``, which has generated tokens, of the request with number ``request``."""
        return (OUTPUT | request << INDEX_BITS | index).to_bytes(8, "little")
