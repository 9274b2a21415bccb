"""Final statistics of a replay: those of a run, and modelled times."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from kvhybrid.report.summary import RunSummary


@dataclass(frozen=True)
class ReplaySummary(RunSummary):
    """The statistics of a whole replay. ``seconds`` is wall-clock time; modelled times are in ``modelled``."""

    modelled: Mapping[str, float] = field(default_factory=dict)
    bounds: Mapping[str, float] = field(default_factory=dict)
    """Upper bounds of the hit rate by name; empty unless the whole trace was replayed."""
    skipped_rows: int = 0
    """Malformed rows of the trace that were left out."""

    @property
    def requests_per_second(self) -> float:
        """Requests replayed per second of wall-clock time."""
        return self.requests / self.seconds if self.seconds else 0.0

    def figures(self) -> dict[str, Any]:
        figures = super().figures()
        del figures["tokens_per_second"]  # no tokens were generated in these seconds
        return {
            **{f"modelled/{name}": value for name, value in self.modelled.items()},
            "requests_per_second": self.requests_per_second,
            "skipped_rows": self.skipped_rows,
            **{f"bound/{name}/hit_rate": rate for name, rate in self.bounds.items()},
            **{f"bound/{name}/gap": rate - self.hit_rate for name, rate in self.bounds.items()},
            **figures,
        }

    def lines(self) -> Iterator[str]:
        """The lines printed below the table of groups."""
        if self.skipped_rows:
            yield f"{self.skipped_rows:,} malformed rows of the trace were skipped"
        yield f"replayed at {self.requests_per_second:,.0f} requests per second"
        if self.bounds:
            rates = ", ".join(f"{name} {100 * rate:.2f} %" for name, rate in self.bounds.items())
            yield f"hit rate {100 * self.hit_rate:.2f} %; upper bounds: {rates}"
        yield "modelled: " + ", ".join(f"{_WORDS[name]} {value:,.2f} s" for name, value in self.modelled.items())


_WORDS = {
    "seconds": "clock",
    "ttft_mean": "time to first token mean",
    "ttft_median": "median",
    "ttft_p99": "P99",
}
