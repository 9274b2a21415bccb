"""Prefix keys without tokens: a trace says which prefixes are equal, so nothing has to be hashed."""

from __future__ import annotations

import numpy as np

from kvhybrid.replay.trace import PrefixIds

OUTPUT = 1 << 62
"""Marks the keys of units that hold generated tokens."""
INDEX_BITS = 30
"""Of an output key, the bits for the unit's place in its request."""


class PrefixKeys:
    """Gives every full unit of a trace's requests a key that stands for the whole prefix up to its end.

    The prefix that ends at token e is settled by the id of the part in which e lies and by e's place in that
    part. Key and prefix are one to one for every size of unit, whether it divides a part or not. What a request
    generates is its own: a unit with a generated token never equals that of another request.

    Keys are the bytes of whole numbers, without trailing zeros; only their equality is looked at.
    """

    def __init__(self, unit: int, part_tokens: int) -> None:
        self.unit = unit
        self.part_tokens = part_tokens
        self._requests = 0

    def new_request(self) -> int:
        """A number for `of_output` that no other request has."""
        self._requests += 1
        return self._requests

    def of_prompt(self, prefix_ids: PrefixIds, num_tokens: int) -> list[bytes]:
        """The keys of the full units among the first ``num_tokens`` tokens."""
        last = np.arange(self.unit, num_tokens + 1, self.unit, dtype=np.int64) - 1
        part = last // self.part_tokens
        numbers = prefix_ids[part] * self.part_tokens + (last - part * self.part_tokens) + 1
        keys: list[bytes] = numbers.astype("<i8").view("S8").tolist()
        return keys

    def of_output(self, request: int, index: int) -> bytes:
        """The key of the unit ``index`` of a request that `new_request` numbered."""
        return (OUTPUT | request << INDEX_BITS | index).to_bytes(8, "little")
