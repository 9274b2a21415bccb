"""Tables on stdout: the groups of a run, the jobs of a sweep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kvhybrid.cache.stats import MissCauses
from kvhybrid.console import console

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from kvhybrid.report.summary import RunSummary

PLAIN_WIDTH = 120
"""Table width, in columns, if stdout is not a terminal."""
MOST_WIDTH = 10_000
ROOMY_WIDTH = 100
"""Console width, in columns, from which more than one space fits between figures."""


def print_run(summary: RunSummary) -> None:
    """The figures of every group, and of the run as a whole."""
    table = new_table(
        summary.name,
        ["group", "spec"],
        ["layers", "block", "live", "reusable", "hit\nrate", "own hit\nrate", "evicted"],
    )
    for group, figures in zip(summary.groups, summary.cache.groups, strict=True):
        table.add_row(
            group.name,
            group.kind,
            str(group.num_layers),
            str(group.block_size),
            str(figures.blocks_live),
            str(figures.blocks_reusable),
            f"{figures.hit_rate:.1%}",
            f"{figures.own_hit_rate:.1%}",
            f"{figures.evictions:,}",
        )
    causes = _causes(summary)
    end = f" ({summary.status}: {summary.reason})" if summary.reason else ""
    print_table(table)
    if causes is not None:
        print_table(causes)
    print(
        f"{summary.requests} requests{end}, {summary.prompt_tokens:,} prompt and "
        f"{summary.output_tokens:,} new tokens in {summary.seconds:.1f} s and {summary.steps:,} steps"
    )
    for reason in summary.failures.values():
        print(reason)
    if summary.plan is not None:
        print(summary.plan)
    print(
        f"pool of {summary.cache.num_blocks:,} blocks: refused {summary.cache.refusals:,} times, "
        f"preempted {summary.preemptions:,} times"
    )
    if summary.cache.readmitted_tokens:
        print(
            f"after preemptions: {summary.cache.readmitted_tokens:,} tokens asked for again, "
            f"{summary.cache.readmitted_hit_rate:.1%} of them from the cache; the rates above do not count these"
        )
    if summary.quality is not None:
        print(
            f"{summary.quality.bits_per_byte:.3f} bits per byte of {summary.quality.bytes:,} bytes of text, "
            f"read through this cache"
        )


def _causes(summary: RunSummary) -> Table | None:
    """Hits and misses of each group by cause, in per cent of the prompt tokens; omits causes that never
    occurred."""
    from kvhybrid.report.summary import merge_alike

    shares = merge_alike(
        (group.name, group.kind, (figures.tokens_hit, *figures.misses))
        for group, figures in zip(summary.groups, summary.cache.groups, strict=True)
        if figures.misses is not None and figures.tokens_asked
    )
    if not shares:
        return None
    asked = summary.cache.groups[0].tokens_asked
    names = ["hit", *MissCauses().by_name()]
    shown = [i for i in range(len(names)) if any(tokens[i] for _, _, tokens in shares)]
    table = new_table("where the prompt tokens went", ["group"], [names[i].replace("_", "\n") for i in shown])
    for group, _, tokens in shares:
        table.add_row(group, *(f"{tokens[i] / asked:.1%}" for i in shown))
    return table


def print_sweep(jobs: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
    """Print one row per job of a sweep, given as (name, content of ``summary.json``), and why some were not done.

    A job that never started has only ``status``, ``reason`` and ``overrides``.
    """
    measured = any("quality/bits_per_byte" in summary for _, summary in jobs)
    undone = [(name, summary) for name, summary in jobs if summary["status"] != "done"]
    common = set.intersection(*(set(summary["overrides"]) for _, summary in jobs)) if len(jobs) > 1 else set()
    table = new_table(
        "sweep",
        ["job", *(["status"] if undone else []), "run", "own hit rates"],
        [*(["bits\nper byte"] if measured else []), "hit rate", "evictions", "seconds"],
    )
    for name, summary in jobs:
        changed = [override for override in summary["overrides"] if override not in common]
        table.add_row(
            name,
            *([summary["status"]] if undone else []),
            "\n".join(changed) or summary.get("name", ""),
            *(_sweep_figures(summary, measured) if "groups" in summary else ()),
        )
    print_table(table)
    for name, summary in undone:
        print(f"job {name} {summary['status']}: {summary['reason']}")


def _sweep_figures(summary: Mapping[str, Any], measured: bool) -> list[str]:
    from kvhybrid.report.summary import merge_alike

    groups = [(group["name"], group["kind"]) for group in summary["groups"]]
    own = merge_alike((name, kind, summary[f"group/{name}/own_hit_rate"]) for name, kind in groups)
    return [
        "\n".join(f"{rate:6.1%}  {names}" for names, _, rate in own),
        *([_bits(summary)] if measured else []),
        f"{summary['hit_rate']:.1%}",
        f"{sum(summary[f'group/{name}/evictions'] for name, _ in groups):,}",
        f"{summary['seconds']:.1f}",
    ]


def _bits(summary: Mapping[str, Any]) -> str:
    found = summary.get("quality/bits_per_byte")
    return "" if found is None else f"{found:.3f}"


def new_table(title: str, words: Sequence[str], numbers: Sequence[str]) -> Table:
    """An empty table in the project's style: columns of words, then columns of numbers."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(
        title=title,
        title_justify="left",
        box=SIMPLE_HEAD,
        show_edge=False,
        padding=(0, 1 if _console().width >= ROOMY_WIDTH else 0),
        pad_edge=False,
        collapse_padding=True,
    )
    for heading in words:
        table.add_column(heading, no_wrap=True)
    for heading in numbers:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def print_table(table: Table) -> None:
    """Print ``table`` on stdout, as wide as the terminal or `PLAIN_WIDTH`.

    In a terminal that is too narrow for it, its rows are printed as lists, since figures must not be cut.
    """
    console = _console()
    unlimited = console.options.update(width=MOST_WIDTH)
    if not console.is_terminal or console.measure(table, options=unlimited).maximum <= console.width:
        console.print(table)
        return
    print(table.title)
    headings = [str(column.header).replace("\n", " ") for column in table.columns]
    indent = max(map(len, headings)) + 2
    for row in zip(*(column.cells for column in table.columns), strict=True):
        for at, (heading, cell) in enumerate(zip(headings, map(str, row), strict=True)):
            text = cell.replace("\n", " ")
            print(f"{'- ' if at == 0 else '  '}{heading:<{indent}}{text}".rstrip())


def _console() -> Console:
    return console() if console().is_terminal else console(width=PLAIN_WIDTH)
