"""Hit rates of two public traces against pool size: one request after another, one full-attention group, LRU.

Writes table.md and plot.png, and ends with 1 if a rate is not the expected one.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from datetime import date
from importlib.metadata import version
from pathlib import Path
from time import perf_counter

from kvhybrid.replay.arrivals import OneByOne
from kvhybrid.replay.layers import CacheSettings, LayerSettings
from kvhybrid.replay.mooncake import MooncakeTrace
from kvhybrid.run_folder import RunFolder
from kvhybrid.sessions.replay import build_loop
from kvhybrid.sessions.replay_settings import ReplaySettings
from kvhybrid.sessions.run_settings import PoolSettings, SchedulerSettings
from runs.pictures import figure_of, read_table, save
from runs.recipe import run_recipe

HERE = Path(__file__).parent
UNLIMITED = 200_000
"""Blocks that hold every prefix of either trace."""
BLOCKS = (1_000, 4_000, 8_000, 16_000, 32_000, UNLIMITED)
EXPECTED = {
    "conversation": (4.59, 9.20, 18.89, 27.33, 34.39, 37.34),
    "synthetic": (8.68, 25.28, 38.83, 54.71, 64.46, 65.04),
}
"""Token hit rates in per cent from an independent simulator of the same rule: only full blocks count, and a hit
leaves at least one token to compute."""
TOLERANCE = 0.05


def hit_rate(trace: MooncakeTrace, blocks: int) -> tuple[float, float]:
    """Token hit rate in per cent with ``blocks`` usable blocks of 512 tokens, and requests replayed per second."""
    requests = trace.read()
    settings = ReplaySettings(
        trace=trace,
        executor=OneByOne(),
        cache=CacheSettings(layers=[LayerSettings(spec="full")]),
        pool=PoolSettings(block_size=512, num_blocks=blocks + 1),  # one more: the null block holds nothing
        scheduler=SchedulerSettings(max_batched_tokens=8192, max_num_seqs=1),
        track_misses=False,
    )
    loop = build_loop(settings, requests)
    began = perf_counter()
    while loop.advance(10_000):
        pass
    seconds = perf_counter() - began
    return 100 * loop.scheduler.cache.stats().groups[0].hit_rate, len(requests) / seconds


def row(folder: Path, name: str) -> tuple[str, bool]:
    """One line of the table, and whether every figure in it is the expected one."""
    # One token of output is sampled from the prompt and never computed: nothing but prompts is in the cache.
    trace = MooncakeTrace(path=str(folder / f"{name}_trace.jsonl"), max_new_tokens=1)
    cells, good, speeds = [], True, []
    for blocks, expected in zip(BLOCKS, EXPECTED[name], strict=True):
        found, speed = hit_rate(trace, blocks)
        print(f"{name}, {blocks:,} blocks: {found:.2f} %, expected {expected:.2f} %, {speed:,.0f} requests/s")
        cells.append(f"{found:.2f} ({expected:.2f})")
        good &= abs(found - expected) <= TOLERANCE
        speeds.append(speed)
    return f"| {name} | {' | '.join(cells)} | {min(speeds):,.0f} to {max(speeds):,.0f} |", good


def plot(folder: Path) -> None:
    """Draw ``plot.png`` of a folder from its ``table.md``."""
    figure, axes = figure_of(figsize=(7, 4))
    for number, cells in enumerate(read_table(folder / "table.md")):
        name, color = cells["trace"], f"C{number}"
        rates = [float(cells[_heading(blocks)].split()[0]) for blocks in BLOCKS]
        axes.plot(BLOCKS, rates, color=color, label=f"{name}: kvhybrid")
        axes.plot(BLOCKS, EXPECTED[name], "o", color=color, markerfacecolor="none", label=f"{name}: simulator")
    axes.set_xscale("log")
    axes.set_xticks(BLOCKS, map(_heading, BLOCKS))
    axes.minorticks_off()
    axes.set_xlabel("blocks of 512 tokens in the pool")
    axes.set_ylabel("token hit rate, %")
    axes.grid(alpha=0.25)
    axes.legend()
    save(figure, folder / "plot.png")


def _heading(blocks: int) -> str:
    return "unlimited" if blocks == UNLIMITED else f"{blocks:,}"


def main(given: Sequence[str] | None = None) -> int:
    return run_recipe(
        given,
        name="engine_rule",
        description=__doc__,
        source="--traces",
        metavar="FOLDER",
        source_help="with conversation_trace.jsonl and synthetic_trace.jsonl",
        measure=measure,
        plot=plot,
        folder=HERE,
    )


def measure(folder: Path) -> bool:
    """Write the table. Returns whether every rate in it is the expected one."""
    rows = [row(folder, name) for name in EXPECTED]
    lines = [
        f"| trace | {' | '.join(map(_heading, BLOCKS))} | requests/s |",
        "|---" * (len(BLOCKS) + 2) + "|",
        *(line for line, _ in rows),
        "",
        f"{date.today()}, kvhybrid {version('kvhybrid')}, numpy {version('numpy')}, "
        f"Python {platform.python_version()}, {platform.machine()}.",
    ]
    RunFolder(HERE).write_text("table.md", "\n".join(lines) + "\n")
    return all(good for _, good in rows)


if __name__ == "__main__":
    raise SystemExit(main())
