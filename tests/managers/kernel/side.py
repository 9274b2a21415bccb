"""A small pool's arrays under one form of the kernel."""

from __future__ import annotations

import numpy as np

from kvhybrid.managers.kernel import plain

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
