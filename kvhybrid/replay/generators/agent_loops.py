"""Agents that call tools: every step appends the model's call and the tool's result to the context.

With ``collapse_tokens``, a context that would exceed this length is replaced by a summary after the system prompt.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from kvhybrid.replay.generators.base import GeneratedTrace, Turn, answer
from kvhybrid.replay.prefix_numbers import Segment
from kvhybrid.settings.values import at_least


@dataclass(frozen=True, kw_only=True)
class AgentLoops(GeneratedTrace):
    """``sessions`` agents with ``steps`` steps each; tool results have ``tool_tokens`` tokens on average."""

    sessions: int = 32
    steps: int = 24
    system_tokens: int = 2048
    task_tokens: int = 512
    tool_tokens: int = 1024
    output_tokens: int = 128
    collapse_tokens: int | None = None
    summary_tokens: int = 512
    think_seconds: float = 5.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.collapse_tokens is not None:
            start = self.system_tokens + self.task_tokens + self.summary_tokens
            at_least("trace.collapse_tokens", self.collapse_tokens, start)

    def turns(self, random: np.random.Generator) -> Iterator[Turn]:
        for number, start in enumerate(self.arrival_times(random, self.sessions)):
            session = f"session{number}"
            opening = [Segment("system", self.system_tokens), Segment(("task", session), self.task_tokens)]
            history: list[Segment] = []
            for step in range(self.steps):
                name = f"{session}-step{step}"
                if step:
                    result = max(1, int(random.exponential(self.tool_tokens)))
                    history = [*history, Segment(("tool", name), result)]
                    length = sum(segment.num_tokens for segment in [*opening, *history])
                    if self.collapse_tokens is not None and length > self.collapse_tokens:
                        history = [Segment(("summary", name), self.summary_tokens)]
                output = answer(name, self.output_tokens)
                think = self.think_seconds if step else 0.0
                yield Turn(name, [*opening, *history], output, start + step * self.think_seconds, session, think)
                history = [*history, output]
