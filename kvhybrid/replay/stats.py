"""The figures of a replay while it goes on."""

from __future__ import annotations

from dataclasses import dataclass

from kvhybrid.cache.stats import StepStats


@dataclass(frozen=True)
class ReplayStats(StepStats):
    """The state after some steps. Tokens and seconds are those of all steps since the last of these."""

    num_finished: int
    """Requests, since the start."""
    modelled_seconds: float
    """The modelled clock."""
    modelled_ttft_mean: float
    """Seconds, over all requests that have their first token."""

    def metrics(self) -> dict[str, float]:
        return {
            "replay/requests": self.num_finished,
            "modelled/seconds": self.modelled_seconds,
            "modelled/ttft_mean": self.modelled_ttft_mean,
            **super().metrics(),
        }
