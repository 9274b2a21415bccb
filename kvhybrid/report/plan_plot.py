"""``plan.png``: the bytes that one request holds against its context length."""

from __future__ import annotations

from pathlib import Path

from kvhybrid.planning.capacity import PADDING, blocks_held, costs
from kvhybrid.planning.plan import CachePlan
from kvhybrid.report.plot import COLOURS, INK, PALE, draw_figure, place_legend

NUM_POINTS = 240
MIB = 1 << 20


def plot_plan(name: str, plan: CachePlan, twin: CachePlan | None, place: Path) -> None:
    """Write a stacked plot to ``place`` as PNG: a band per kind and one for padding, and a dashed line for the
    same model with full attention in all layers."""
    lengths = sorted({max(1, plan.max_model_len * point // NUM_POINTS) for point in range(1, NUM_POINTS + 1)})
    by_length = [costs(plan, blocks_held(plan, length)) for length in lengths]
    kinds = [cost.kind for cost in by_length[0]]
    colours = [PALE if kind == PADDING else COLOURS[i % len(COLOURS)] for i, kind in enumerate(kinds)]
    with draw_figure(place, size=(10, 5)) as figure:
        axes = figure.subplots()
        axes.spines[["top", "right"]].set_visible(False)
        bands = [[found[i].num_bytes / MIB for found in by_length] for i in range(len(kinds))]
        axes.stackplot(lengths, bands, colors=colours, labels=kinds, linewidth=0)
        if twin is not None:
            full = [twin.request_bytes(blocks_held(twin, length)) / MIB for length in lengths]
            axes.plot(lengths, full, color=INK, linewidth=1.2, linestyle=(0, (4, 2)), label="all full attention")
        axes.set_xlim(lengths[0], max(lengths[-1], lengths[0] + 1))
        axes.set_ylim(0)
        axes.set_xlabel("tokens of the request", color=INK)
        axes.set_ylabel("MiB on one GPU", color=INK)
        place_legend(axes, reverse=True)
        figure.suptitle(f"{name}: what one request holds", color=INK)
