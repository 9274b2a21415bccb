"""Limits of prefix caching on two public traces: eviction orders, MIN, an unlimited cache, and checkpoint rules.

Writes table.md and plot.png, and ends with 1 if a figure is not the expected one.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from datetime import date
from importlib.metadata import version
from pathlib import Path

from kvhybrid.replay.bounds.belady import units_hit
from kvhybrid.replay.bounds.references import References
from kvhybrid.replay.lru_curve import lru_hit_tokens
from kvhybrid.replay.mooncake import MooncakeTrace
from kvhybrid.replay.trace import TraceRequest
from kvhybrid.run_folder import RunFolder
from runs.mooncake_limits.checkpoints import RULES, unlimited
from runs.mooncake_limits.trace_rule import CACHES, ID_TOKENS, hit_rate
from runs.pictures import figure_of, read_table, save
from runs.recipe import run_recipe

HERE = Path(__file__).parent
BLOCKS = (1_000, 4_000, 8_000, 16_000, 32_000)
UNLIMITED = 200_000
"""Blocks that hold every prefix of either trace."""
TOLERANCE = 0.1
"""Points: the expected figures are rounded to one decimal."""

TRACE_RULE = {
    "conversation": {
        "LRU": (4.5, 8.8, 18.2, 26.8, 33.9),
        "S3-FIFO": (5.7, 11.8, 18.0, 23.6, 31.9),
        "LFU": (4.9, 8.7, 12.0, 18.2, 29.0),
        "MIN": (19.4, 32.9, 37.3, 37.4, 37.4),
    },
    "synthetic": {
        "LRU": (8.6, 23.9, 38.0, 54.0, 64.0),
        "S3-FIFO": (8.8, 24.7, 37.3, 53.7, 62.8),
        "LFU": (4.3, 16.4, 31.1, 55.5, 64.1),
        "MIN": (28.2, 50.3, 60.6, 65.1, 65.1),
    },
}
"""Token hit rates in per cent of an independent simulator, at `BLOCKS`."""
ENGINE_RULE = {
    "conversation": (4.59, 9.20, 18.89, 27.33, 34.39, 37.34),
    "synthetic": (8.68, 25.28, 38.83, 54.71, 64.46, 65.04),
}
"""As `TRACE_RULE`, at `BLOCKS` and without a limit: what a cache manager does with LRU."""
CHECKPOINTS = {
    "conversation": ((37.3, 170_899), (37.0, 49_273), (36.2, 17_561), (35.0, 9_633), (35.9, 10_237)),
    "synthetic": ((65.0, 40_148), (64.7, 10_869), (63.2, 3_547), (50.9, 1_607), (58.2, 1_700)),
}
"""Token hit rates in per cent and states stored, in the order of `RULES`."""


def trace_rule(requests: Sequence[TraceRequest], policy: str, blocks: int) -> float:
    """Token hit rate in per cent under the trace rule."""
    if policy != "MIN":
        return hit_rate(requests, CACHES[policy](blocks))
    references = References.of_trace_rule(requests, ID_TOKENS)
    return 100 * references.hit_tokens(units_hit(references, blocks)) / int(references.tokens.sum())


def engine_rule(requests: Sequence[TraceRequest], blocks: Sequence[int]) -> list[float]:
    """Token hit rates in per cent of LRU under the engine rule, in one pass."""
    asked = sum(request.num_prompt_tokens for request in requests)
    tokens = lru_hit_tokens(requests, ID_TOKENS, ID_TOKENS, blocks).tokens
    return (100 * tokens / asked).tolist()


class Table:
    """Rows of Markdown, and whether every figure so far was the expected one."""

    def __init__(self) -> None:
        self.lines = [
            f"| trace | rule | policy | {' | '.join(f'{blocks:,}' for blocks in BLOCKS)} | unlimited | mark |",
            "|---" * (len(BLOCKS) + 5) + "|",
        ]
        self.good = True

    def add(self, trace: str, rule: str, policy: str, found: Sequence[float], expected: Sequence[float]) -> None:
        mark = "exact"
        cells = []
        for rate, stated in zip(found, expected, strict=True):
            good = abs(rate - stated) <= TOLERANCE
            mark = mark if good else "same data"
            self.good &= good
            cells.append(f"{rate:.2f} ({stated})")
        cells += [""] * (len(BLOCKS) + 1 - len(cells))
        self.lines.append(f"| {trace} | {rule} | {policy} | {' | '.join(cells)} | {mark} |")
        print(self.lines[-1])


def measure(folder: Path) -> bool:
    """Write the table. Returns whether every figure in it is the expected one."""
    table = Table()
    checkpoints = ["", "| trace | states kept | token hit rate | states stored | mark |", "|---" * 5 + "|"]
    for name in TRACE_RULE:
        # One token of output is sampled from the prompt and never computed: only prompts are in the cache.
        requests = MooncakeTrace(path=str(folder / f"{name}_trace.jsonl"), max_new_tokens=1).read()
        for policy, expected in TRACE_RULE[name].items():
            rates = [trace_rule(requests, policy, blocks) for blocks in BLOCKS]
            table.add(name, "trace", policy, rates, expected)
        table.add(name, "engine", "LRU", engine_rule(requests, (*BLOCKS, UNLIMITED)), ENGINE_RULE[name])
        for (rule, keep), (rate, states) in zip(RULES.items(), CHECKPOINTS[name], strict=True):
            found, stored = unlimited(requests, keep)
            good = abs(found - rate) <= TOLERANCE and stored == states
            table.good &= good
            mark = "exact" if good else "same data"
            checkpoints.append(f"| {name} | {rule} | {found:.2f} ({rate}) | {stored:,} ({states:,}) | {mark} |")
            print(checkpoints[-1])
    note = f"{date.today()}, kvhybrid {version('kvhybrid')}, Python {platform.python_version()}."
    lines = [*table.lines, *checkpoints, "", note]
    RunFolder(HERE).write_text("table.md", "\n".join(lines) + "\n")
    return table.good


def plot(folder: Path) -> None:
    """Draw ``plot.png`` of a folder from its ``table.md``."""
    figure, panels = figure_of(1, 2, figsize=(11, 4), sharex=True)
    rows = read_table(folder / "table.md")
    for axes, name in zip(panels, TRACE_RULE, strict=True):
        for cells in rows:
            if cells["trace"] == name:
                rates = [float(cells[f"{blocks:,}"].split()[0]) for blocks in BLOCKS]
                style = "--" if cells["rule"] == "engine" else "-"
                axes.plot(BLOCKS, rates, style, marker="o", label=f"{cells['policy']}, {cells['rule']} rule")
        axes.set_xscale("log")
        axes.set_xticks(BLOCKS, [f"{blocks:,}" for blocks in BLOCKS])
        axes.minorticks_off()
        axes.set_title(name)
        axes.set_xlabel("blocks of 512 tokens")
        axes.set_ylabel("token hit rate, %")
        axes.grid(alpha=0.25)
        axes.legend(fontsize=8)
    save(figure, folder / "plot.png")


def main(given: Sequence[str] | None = None) -> int:
    return run_recipe(
        given,
        name="mooncake_limits",
        description=__doc__,
        source="--traces",
        metavar="FOLDER",
        source_help="with conversation_trace.jsonl and synthetic_trace.jsonl",
        measure=measure,
        plot=plot,
        folder=HERE,
    )


if __name__ == "__main__":
    raise SystemExit(main())
