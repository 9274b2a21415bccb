"""The metrics of a running replay."""

from __future__ import annotations

from dataclasses import dataclass

from kvhybrid.cache.stats import StepStats


@dataclass(frozen=True)
class ReplayStats(StepStats):
    """A sample of a replay. Tokens and seconds cover all steps since the previous sample."""

    num_finished: int
    """Completed requests since the start."""
    modelled_seconds: float
    """The modelled clock, in seconds."""
    modelled_ttft_mean: float
    """Modelled seconds, over all requests that have their first token."""

    def metrics(self) -> dict[str, float]:
        return {
            "replay/requests": self.num_finished,
            "modelled/seconds": self.modelled_seconds,
            "modelled/ttft_mean": self.modelled_ttft_mean,
            **super().metrics(),
        }
