"""Orders of reuse: tokens hit on a public trace, by model and pool size.

Writes table.md and plot.png, and ends with 1 if an expected figure or limit is missed.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from datetime import date
from importlib.metadata import version
from pathlib import Path

from kvhybrid.run_folder import RunFolder
from runs.lifetime.driver import GROUPS, tokens_hit
from runs.pictures import figure_of, read_table, save
from runs.recipe import run_recipe
from runs.speed.side import settle_heap
from runs.speed.trace import Prompt, read_trace

HERE = Path(__file__).parent
ORDERS = ("lru", "lifetime", "s3_fifo", "joint")
REQUESTS = 3_000
FINDING = 60_000
"""Blocks of the pool in the rows that the finding is about."""
EXPECTED = {("jamba", "lru"): 1_673_280, ("jamba2", "lru"): 1_718_336}
"""Tokens hit in the conversation trace with ``FINDING`` blocks."""
LEAST = {
    ("jamba", "lifetime"): 1_850_000,
    ("jamba2", "lifetime"): 1_850_000,
    ("jamba", "joint"): 1_882_048,
    ("jamba2", "joint"): 1_882_048,
}
"""At least this many; 1,882,048 is what SGLang 0.5.23 hits with the same memory."""
LARGE = 250_000
ROWS = (
    *((model, FINDING) for model in ("jamba", "jamba2", "gemma3")),
    *((model, LARGE) for model in ("jamba", "gemma3")),
)
"""Groups and blocks of the pool."""


def row(prompts: Sequence[Prompt], model: str, blocks: int) -> tuple[str, dict[str, int]]:
    """One line of the table, and by order the tokens hit."""
    half = len(prompts) // 2
    sizes = [prompt.num_tokens for prompt in prompts]
    cells, found = [], {}
    for order in ORDERS:
        hits = tokens_hit(prompts, model, blocks, order)
        found[order] = sum(hits)
        first = 100 * sum(hits[:half]) / sum(sizes[:half])
        second = 100 * sum(hits[half:]) / sum(sizes[half:])
        cells.append(f"{found[order]:,} ({first:.2f} / {second:.2f})")
        print(f"{model}, {blocks:,} blocks, {order}: {cells[-1]}", flush=True)
    return f"| {GROUPS[model]} | {blocks:,} | {' | '.join(cells)} |", found


def measure(trace: Path) -> bool:
    """Write the table. Returns whether the expected figures and limits hold."""
    prompts = read_trace(str(trace), REQUESTS)
    settle_heap()
    lines, good = [f"| groups | blocks | {' | '.join(ORDERS)} |", "|---" * (len(ORDERS) + 2) + "|"], True
    for model, blocks in ROWS:
        line, found = row(prompts, model, blocks)
        lines.append(line)
        if blocks == FINDING:
            good &= all(found[o] == tokens for (m, o), tokens in EXPECTED.items() if m == model)
            good &= all(found[o] >= tokens for (m, o), tokens in LEAST.items() if m == model)
    lines += [
        "",
        "Tokens hit, and the token hit rate of the first and of the second half of the requests, in per cent.",
        f"{date.today()}, kvhybrid {version('kvhybrid')}, Python {platform.python_version()}, "
        f"{platform.machine()}.",
    ]
    RunFolder(HERE).write_text("table.md", "\n".join(lines) + "\n")
    return good


def plot(folder: Path) -> None:
    """Draw ``plot.png`` of a folder from its ``table.md``."""
    rows = read_table(folder / "table.md")
    figure, axes = figure_of(figsize=(9, 4.5))
    width = 0.8 / len(ORDERS)
    for number, order in enumerate(ORDERS):
        tokens = [int(cells[order].split()[0].replace(",", "")) / 1e6 for cells in rows]
        axes.bar([i + number * width for i in range(len(rows))], tokens, width, label=order)
    names = [f"{cells['groups'].replace(', ', chr(10))}\n{cells['blocks']} blocks" for cells in rows]
    axes.set_xticks([i + 0.3 for i in range(len(rows))], names, fontsize=7)
    axes.set_ylabel("tokens hit, millions")
    axes.grid(alpha=0.25, axis="y")
    axes.legend(fontsize=7)
    save(figure, folder / "plot.png")


def main(given: Sequence[str] | None = None) -> int:
    return run_recipe(
        given,
        name="lifetime",
        description=__doc__,
        source="--trace",
        metavar="FILE",
        source_help="conversation_trace.jsonl",
        measure=measure,
        plot=plot,
        folder=HERE,
    )


if __name__ == "__main__":
    raise SystemExit(main())
