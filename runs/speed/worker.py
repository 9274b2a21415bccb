"""A process that runs works on the sides of one environment, one run at a time, as it is told over its pipes: a
line of JSON each way.

usage: python -m runs.speed.worker SIDE, with the Python of that side's environment
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict
from importlib import import_module
from typing import Any

from runs.speed.side import Run, Side
from runs.speed.works import Size

SIDES = {
    "ours": "runs.speed.ours:Ours",
    "ours, all on": "runs.speed.ours:OursWatching",
    "vllm": "runs.speed.vllm_peer:VLLM",
    "vllm, events": "runs.speed.vllm_peer:VLLMWithEvents",
    "sglang": "runs.speed.sglang_peer:RadixTree",
    "sglang core": "runs.speed.sglang_peer:CompiledCore",
}


def make_side(name: str) -> Side:
    module, kind = SIDES[name].split(":")
    side: Side = getattr(import_module(module), kind)()
    return side


class Answers:
    """Opens works and runs them, each side's own."""

    def __init__(self) -> None:
        self._sides: dict[str, Side] = {}
        self._opened: dict[str, Iterator[Run]] = {}

    def to(self, command: dict[str, Any]) -> Any:
        """``open``: the side's version. ``run``: what the next run of its open work took. ``close``: nothing."""
        name = command["side"]
        if command["do"] == "run":
            return asdict(next(self._opened[name]))
        self._opened.pop(name, None)
        if command["do"] == "close":
            return None
        side = self._side(name)
        self._opened[name] = side.open(command["work"], Size(**command["size"]))
        return side.version()

    def _side(self, name: str) -> Side:
        if name not in self._sides:
            self._sides[name] = make_side(name)
        return self._sides[name]


def main(name: str) -> None:
    pipe = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a package prints does not get between our lines
    import_module(SIDES[name].split(":")[0])
    print(json.dumps("ready"), file=pipe, flush=True)
    answers = Answers()
    for line in sys.stdin:
        print(json.dumps(answers.to(json.loads(line))), file=pipe, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
