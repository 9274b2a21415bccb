"""What is compared with what, and how many times faster ours is to be."""

from __future__ import annotations

from dataclasses import dataclass

from runs.speed.works import MODELS

NAMES = {"llama": "one full group", "gemma3": "Gemma-3-27B", "jamba": "Jamba", "llama4": "Llama-4"}
TRAFFIC = {"llama": (14, 30), "gemma3": (18, 40), "jamba": (9, 20), "llama4": (14, 30)}
"""Threshold and aim of the trace, by model."""


@dataclass(frozen=True)
class Comparison:
    """A row of the table: time of the peer by time of ours, pair by pair."""

    label: str
    parts: tuple[str, ...]
    """What is timed: names of works and their parts, which are added up."""
    threshold: float | None = None
    """What the median is to reach, where something was promised."""
    aim: float | None = None
    ours: str = "ours"
    peer: str = "vllm"
    peer_parts: tuple[str, ...] = ()
    """What is timed in the peer, where it is not the same."""

    @property
    def theirs(self) -> tuple[str, ...]:
        return self.peer_parts or self.parts

    @property
    def works(self) -> set[tuple[str, str]]:
        """(side, work) of all that must be run for it."""
        return {
            *((self.ours, part.split("/")[0]) for part in self.parts),
            *((self.peer, part.split("/")[0]) for part in self.theirs),
        }


def _traffic() -> list[Comparison]:
    rows: list[Comparison] = []
    for model in MODELS:
        label, part, (threshold, aim) = f"(a) trace, {NAMES[model]}", f"a:{model}/all", TRAFFIC[model]
        rows += [
            Comparison(label, (part,), threshold, aim),
            Comparison(f"{label}, causes and events on", (part,), threshold / 2, aim / 2, ours="ours, all on"),
            Comparison(f"{label}, hashing counted", (part, "a:hashing/hash")),
        ]
    return rows


COMPARISONS = (
    *_traffic(),
    Comparison("(b) hashing 131,072 tokens", ("b:hashing/hash",), 3),
    Comparison("(b) miss, window group, first look-up", ("b:miss-window/first",), 50),
    Comparison("(b) miss, window group, looked up again", ("b:miss-window/again",)),
    Comparison("(b) miss, state group, first look-up", ("b:miss-state/first",), 50),
    Comparison("(b) miss, state group, looked up again", ("b:miss-state/again",)),
    Comparison("(b) cold admission of 8,192 blocks", ("b:prompt/admit",), 20),
    Comparison("(b) full hit found", ("b:prompt/hit",), 40),
    Comparison("(b) free", ("b:prompt/free",), 8),
    Comparison("(c) decode step, 1 group", ("c:1/step",), 8),
    Comparison("(c) decode step, 7 groups", ("c:7/step",), 10),
    Comparison("(d) worst order, 2,048 blocks", ("d:2048/hit",)),
    Comparison("(d) worst order, 4,096 blocks", ("d:4096/hit",)),
    Comparison("(d) worst order, 8,192 blocks", ("d:8192/hit",), 8),
    Comparison("scheduler, whole trace, Gemma-3-27B", ("scheduler:gemma3/request",), 12),
    Comparison("memory per block of an empty pool, Gemma-3-27B", ("memory/resident",), 10),
    Comparison("memory per block once every page is written to", ("memory/promised",)),
    Comparison("SGLang's radix tree in Python, prompts of the trace", ("a:prompts/all",), 6, peer="sglang"),
    Comparison("SGLang's compiled core, prompts of the trace", ("a:prompts/all",), 1, 2, peer="sglang core"),
    Comparison(
        "SGLang's compiled core, our hashing counted",
        ("a:prompts/all", "a:hashing/hash"),
        peer="sglang core",
        peer_parts=("a:prompts/all",),
    ),
)
