"""Cost models: the modelled duration of a step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields

from kvhybrid.settings.values import at_least


class CostModel(ABC):
    """Computes how long a step takes on the modelled clock.

    Subclasses are dataclasses whose fields are the keys of ``conf/cost/<name>.yaml``.
    """

    @abstractmethod
    def seconds(self, prefill_tokens: int, decode_tokens: int, context_tokens: int) -> float:
        """Modelled seconds of one step, more than 0.

        ``prefill_tokens`` are prompt tokens or tokens recomputed after a preemption, ``decode_tokens`` generated
        tokens that are fed back. ``context_tokens`` is the context computed before this step, summed over its
        requests.
        """


@dataclass(frozen=True, kw_only=True)
class LinearCost(CostModel):
    """Seconds as a weighted sum of a step's work. Fit the weights to a machine, or compare policies with equal
    weights."""

    base: float = 0.01
    """Seconds of every step."""
    prefill_token: float = 2e-5
    """Seconds per prompt token, or per token recomputed after a preemption."""
    decode_token: float = 5e-5
    """Seconds per generated token that is fed back."""
    context_token: float = 1e-9
    """Seconds per token of context, summed over the scheduled requests."""

    def __post_init__(self) -> None:
        for field in fields(LinearCost):  # a subclass checks its own
            at_least(f"cost.{field.name}", getattr(self, field.name), 0)
        if not self.base:
            raise ValueError("cost.base must be more than 0 seconds, so that the clock advances in every step")

    def seconds(self, prefill_tokens: int, decode_tokens: int, context_tokens: int) -> float:
        return (
            self.base
            + self.prefill_token * prefill_tokens
            + self.decode_token * decode_tokens
            + self.context_token * context_tokens
        )
