"""Conversations: the prompt of a turn is the whole conversation so far, including the model's answers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from kvhybrid.replay.generators.base import GeneratedTrace, Turn, answer
from kvhybrid.replay.prefix_numbers import Segment


@dataclass(frozen=True, kw_only=True)
class MultiTurn(GeneratedTrace):
    """``num_conversations`` conversations with the same ``system_tokens`` at the start. A turn follows the
    previous one after ``think_seconds``."""

    num_conversations: int = 64
    turns_per_conversation: int = 8
    system_tokens: int = 512
    user_tokens: int = 128
    output_tokens: int = 256
    think_seconds: float = 30.0

    def turns(self, random: np.random.Generator) -> Iterator[Turn]:
        for conversation, start in enumerate(self.arrival_times(random, self.num_conversations)):
            session = f"conversation{conversation}"
            prompt = [Segment("system", self.system_tokens)]
            for turn in range(self.turns_per_conversation):
                name = f"{session}-turn{turn}"
                prompt = [*prompt, Segment(("user", name), self.user_tokens)]
                output = answer(name, self.output_tokens)
                think = self.think_seconds if turn else 0.0
                yield Turn(name, prompt, output, start + turn * self.think_seconds, session, think)
                prompt = [*prompt, output]
