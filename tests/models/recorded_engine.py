"""An engine that writes down the logits of every token that it computes, and what it scheduled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from kvhybrid.cache.request import Request
from kvhybrid.cache.stats import StepStats
from kvhybrid.engine.engine import Engine
from kvhybrid.models.base import ForwardBatch
from kvhybrid.scheduling.base import SchedulerOutput
from kvhybrid.scheduling.scheduler import Scheduler

Place = tuple[str, int]
"""A request's id and a position in it."""


@dataclass
class Record:
    """One run."""

    prompts: dict[str, list[int]]
    tokens: dict[str, list[int]]
    """What was generated, by request id."""
    logits: list[tuple[Place, Tensor]] = field(default_factory=list)
    """In the order of computation; a recomputed token occurs more than once."""
    steps: list[StepStats] = field(default_factory=list)

    @property
    def num_scheduled_tokens(self) -> int:
        return sum(step.num_scheduled_tokens for step in self.steps)

    def positions(self, name: str) -> list[int]:
        """Of one request, in the order of computation."""
        return [position for (owner, position), _ in self.logits if owner == name]


class StopAt:
    """Ends a prefill's step at every given position that lies inside it: the same chunks, whatever is cached."""

    def __init__(self, *positions: int) -> None:
        self.positions = positions

    def clip(self, request: Request, start: int, num_tokens: int) -> int:
        return min(stop - start for stop in (*self.positions, start + num_tokens) if stop > start)


class SpiedScheduler:
    """A scheduler that remembers what it planned last."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.planned: SchedulerOutput | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scheduler, name)

    def schedule(self) -> SchedulerOutput:
        self.planned = self._scheduler.schedule()
        return self.planned


class RecordedEngine:
    def __init__(self, engine: Engine, chunking: StopAt | None = None) -> None:
        self.engine = engine
        if chunking is not None:
            engine.scheduler._chunking = chunking  # type: ignore[assignment]
        for tensor in engine.pool.tensors:
            tensor[1:] = 0xFF  # not a number: reading an unwritten entry shows in the logits
        self._record = Record({}, {})
        self._scheduler, self._forward = SpiedScheduler(engine.scheduler), engine.model.forward
        engine.scheduler = self._scheduler  # type: ignore[assignment]
        engine.model.forward = self._spy_on_forward  # type: ignore[method-assign]

    def run(
        self, prompts: Sequence[Sequence[int]], num_tokens: int, encoder_inputs: Sequence[Any] | None = None
    ) -> Record:
        """Generate for all prompts together; requests are called after their place among them."""
        names = [str(index) for index in range(len(prompts))]
        self._record = record = Record(
            prompts=dict(zip(names, map(list, prompts), strict=True)), tokens={name: [] for name in names}
        )
        given = encoder_inputs or [None] * len(names)
        for (name, prompt), encoder_input in zip(record.prompts.items(), given, strict=True):
            self.engine.add_request(
                prompt, encoder_input=encoder_input, max_new_tokens=num_tokens, request_id=name
            )
        for output in self.engine.stream():
            record.steps.append(output.stats)
            for name, tokens in output.tokens.items():
                record.tokens[name] += tokens
        return record

    def _spy_on_forward(self, batch: ForwardBatch) -> Tensor:
        assert self._scheduler.planned is not None
        logits_TV = self._forward(replace(batch, logit_rows=torch.arange(len(batch.token_ids_T))))
        places = [
            (request.request_id, position)
            for request, start, num_tokens, _ in self._scheduler.planned.scheduled
            for position in range(start, start + num_tokens)
        ]
        self._record.logits += zip(places, logits_TV.clone(), strict=True)
        return logits_TV[batch.logit_rows]
