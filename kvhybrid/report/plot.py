"""``hits.png``: the hit rates and the use of the pool over the steps of a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from warnings import catch_warnings, simplefilter

from kvhybrid.report.history import History
from kvhybrid.report.summary import RunSummary, merge_alike

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Series = list[float]
Colour = tuple[float, float, float]
"""Red, green and blue, 0 to 1."""

COLOURS = ("#2f6db3", "#d9782d", "#3f9b6c", "#b5476b", "#7d62b5", "#8a6f3e", "#3aa0ad", "#6f7f2f")
"""One colour per kind of spec."""
INK, PALE, FREE = "#222222", "#d9d9d9", "#f1f1f1"
REUSABLE_SHADE = 0.4


def plot_run(history: History, summary: RunSummary, place: Path) -> None:
    """Draw two panels over the steps and write them to ``place`` as PNG."""
    from matplotlib.ticker import MaxNLocator

    with draw_figure(place, size=(10, 7)) as figure:
        rates, blocks = figure.subplots(2, 1, sharex=True, height_ratios=(1, 1.1))
        for axes in (rates, blocks):
            axes.spines[["top", "right"]].set_visible(False)
            axes.spines[["left", "bottom"]].set_color(PALE)
            axes.tick_params(colors=INK, labelsize=9)
        _draw_rates(rates, history, summary)
        _draw_blocks(blocks, history, summary)
        blocks.set_xlabel("step", color=INK)
        blocks.xaxis.set_major_locator(MaxNLocator(integer=True))
        figure.suptitle(f"{summary.name}: {summary.hit_rate:.1%} of the prompt tokens from the cache", color=INK)


@contextmanager
def draw_figure(place: Path, size: tuple[float, float]) -> Iterator[Figure]:
    """An empty figure of ``size`` inches; what the block draws is written to ``place`` as PNG."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # Names are not formulas, and the font may lack some of their characters.
    with rc_context({"text.parse_math": False}), catch_warnings():
        simplefilter("ignore", UserWarning)
        figure = Figure(figsize=size, dpi=130, layout="constrained", facecolor="white")
        yield figure
        FigureCanvasAgg(figure).print_figure(place, format="png")


def _draw_rates(axes: Axes, history: History, summary: RunSummary) -> None:
    """Draw each group's own hit rate, with one line for groups that are alike, and the joint hit rate on top."""
    steps = [point.step for point in history.points]
    own = [
        tuple(100 * point.cache.groups[index].own_hit_rate for point in history.points)
        for index in range(len(summary.groups))
    ]
    lines = merge_alike(
        [(group.name, group.kind, course) for group, course in zip(summary.groups, own, strict=True)]
    )
    colours = dict(zip((group.kind for group in summary.groups), _colours(summary), strict=True))
    for place, (names, kind, course) in enumerate(lines):
        width = max(5.5 - 2 * place, 1.5)  # so that lines that coincide are all visible
        axes.plot(steps, course, color=colours[kind], linewidth=width, label=f"{names} alone")
    joint = [100 * point.cache.hit_rate for point in history.points]
    axes.plot(steps, joint, color=INK, linewidth=1.2, linestyle=(0, (4, 2)), label="joint hit of all groups")
    axes.set_ylim(0, 103)
    axes.set_ylabel("hit rate so far, %", color=INK)
    axes.grid(axis="y", color=PALE, linewidth=0.6)
    axes.set_axisbelow(True)
    place_legend(axes)


def _draw_blocks(axes: Axes, history: History, summary: RunSummary) -> None:
    """Draw stacked bands: live blocks at the bottom, then reusable ones, then free ones; a band per group, a
    colour per kind."""
    from matplotlib.colors import to_rgb

    steps = [point.step for point in history.points]
    columns = [point.cache.groups for point in history.points]
    everyone = range(len(summary.groups))
    # Adjacent groups of one kind differ by a shade, so that their bands can be distinguished.
    full = [_paler(to_rgb(_colours(summary)[i]), 0.82 if i % 2 else 1.0) for i in everyone]
    pale = [_paler(colour, REUSABLE_SHADE) for colour in full]
    layers: list[Series] = [[column[i].blocks_live for column in columns] for i in everyone]
    layers += [[column[i].blocks_reusable for column in columns] for i in everyone]
    taken = [sum(column) for column in zip(*layers, strict=True)]
    # With a pool for each kind, a unit of memory may hold several blocks.
    most = max(summary.cache.num_blocks, *taken)
    layers.append([most - count for count in taken])
    kinds = [group.kind for group in summary.groups]
    words = [f"{kind}: live" for kind in kinds] + [f"{kind}: reusable" for kind in kinds]
    # matplotlib omits labels that start with an underscore from a legend: one entry per kind is enough.
    labels = [word if word not in words[:place] else f"_{word}" for place, word in enumerate(words)]
    axes.stackplot(
        steps,
        layers,
        colors=[*full, *pale, FREE],
        labels=[*labels, "free"],
        linewidth=0,
    )
    axes.set_ylim(0, most)
    axes.set_xlim(steps[0], max(steps[-1], steps[0] + 1))
    axes.set_ylabel("blocks of the pool", color=INK)
    place_legend(axes, reverse=True)


def _colours(summary: RunSummary) -> list[str]:
    """The colour of every group: that of its kind."""
    kinds = list(dict.fromkeys(group.kind for group in summary.groups))
    return [COLOURS[kinds.index(group.kind) % len(COLOURS)] for group in summary.groups]


def _paler(colour: Colour, strength: float) -> Colour:
    """``colour`` on white, at ``strength`` 0 to 1."""
    red, green, blue = (1 - strength * (1 - channel) for channel in colour)
    return red, green, blue


def place_legend(axes: Axes, *, reverse: bool = False) -> None:
    """A legend to the right of the axes."""
    axes.legend(
        loc="center left",
        bbox_to_anchor=(1.01, 0.5),
        frameon=False,
        fontsize=9,
        labelcolor=INK,
        reverse=reverse,
    )
