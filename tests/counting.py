"""Counts of executed bytecode: what a call costs on any machine, whatever else runs there."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Count:
    """Executed bytecode instructions."""

    def __init__(self) -> None:
        self.opcodes = 0

    def trace(self, frame: FrameType, event: str, _: Any) -> Callable[..., Any]:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        self.opcodes += event == "opcode"
        return self.trace


@contextmanager
def counting() -> Iterator[Count]:
    count, before = Count(), sys.gettrace()
    sys.settrace(count.trace)
    try:
        yield count
    finally:
        sys.settrace(before)
