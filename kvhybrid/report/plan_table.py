"""Plans on stdout: one plan in full, or a comparison of several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvhybrid.planning.capacity import kinds_of, longest_request
from kvhybrid.report.plan_summary import PlanSummary
from kvhybrid.report.summary import merge_alike
from kvhybrid.report.table import new_table, print_table


def print_plan(summary: PlanSummary) -> None:
    """Print layers, groups, blocks, capacity, and the bytes of each kind."""
    plan = summary.plan
    print(f"{summary.name}: {summary.model_type}, {summary.num_layers} layers")
    for kind, layers in kinds_of(plan).items():
        print(f"  {len(layers)} {kind}: {ranges(_index(layer) for layer in layers)}")
    _print_groups(summary)
    print(
        f"a block: {' and '.join(map(str, sorted(set(plan.config.block_sizes))))} tokens "
        f"({summary.block_size_reason()}), {plan.bytes_per_block:,} bytes"
    )
    print(
        f"pool: {plan.num_blocks:,} blocks of {_size(plan.memory_bytes)}, "
        f"{plan.capacity_tokens:,} tokens, {plan.concurrency:.2f} requests of {plan.max_model_len:,} tokens"
    )
    longest = longest_request(plan)
    limit = "longer than any that is searched for" if longest is None else f"{longest:,} tokens"
    print(f"longest request that fits: {limit}")
    print(f"a token of the longest request: {summary.bytes_per_token:,.1f} bytes")
    _print_lengths(summary)
    _print_costs(summary)
    print(f"a cache with every token in every layer would waste {summary.uniform_waste:.2%} of such a request")
    for name, value in summary.memory.items():
        print(f"{name.replace('_', ' ')}: {value:,} bytes" if isinstance(value, int) else f"{name}: {value}")
    for line in summary.warnings:
        print(f"warning: {line}")


def print_plans(jobs: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
    """Print one row per job of a sweep, given as (name, content of ``summary.json``), and why some were not
    done."""
    common = set.intersection(*(set(found["overrides"]) for _, found in jobs)) if len(jobs) > 1 else set()
    numbers = ["groups", "block", "bytes per\nblock", "blocks", "capacity,\ntokens", "max\nlength", "at once"]
    table = new_table("plans", ["job", "plan"], [*numbers, "longest\nrequest", "bytes per\ntoken", "padding"])
    for job, found in jobs:
        changed = [override for override in found["overrides"] if override not in common]
        table.add_row(job, "\n".join(changed) or found.get("name", ""), *_figures(found))
    print_table(table)
    for job, found in jobs:
        if found["status"] != "done":
            print(f"job {job} {found['status']}: {found['reason']}")
        for line in found.get("warnings", ()):
            print(f"job {job}: warning: {line}")


def _figures(found: Mapping[str, Any]) -> list[str]:
    if "groups" not in found:
        return []
    sizes = sorted({group["block_size"] for group in found["groups"]})
    longest = found["longest_request"]
    return [
        str(len(found["groups"])),
        "/".join(map(str, sizes)),
        f"{found['bytes_per_block']:,}",
        f"{found['num_blocks']:,}",
        f"{found['capacity_tokens']:,}",
        f"{found['max_model_len']:,}",
        f"{found['concurrency']:.2f}",
        "any" if longest is None else f"{longest:,}",
        f"{found['bytes_per_token']:,.0f}",
        f"{found['request_share_by_kind']['padding']:.1%}",
    ]


def _print_groups(summary: PlanSummary) -> None:
    plan = summary.plan
    table = new_table(
        "groups",
        ["group", "spec"],
        ["layers", "block", "bytes per\npage", "padding per\nblock", "blocks per\nrequest"],
    )
    figures = [
        (
            group.name,
            group.spec.kind,
            (len(group.layers), group.spec.block_size, group.spec.page_bytes, pad, blocks),
        )
        for group, pad, blocks in zip(
            plan.config.groups, plan.padding_bytes_per_block, plan.blocks_per_request, strict=True
        )
    ]
    for names, kind, row in merge_alike(figures):
        table.add_row(names, kind, *(f"{value:,}" for value in row))
    print_table(table)


def _print_lengths(summary: PlanSummary) -> None:
    table = new_table("by length", [], ["tokens", "requests\nat once", "bytes of one"])
    for row in summary.at_lengths():
        table.add_row(f"{row['tokens']:,}", f"{row['requests_at_once']:,}", f"{row['bytes_per_request']:,}")
    print_table(table)


def _print_costs(summary: PlanSummary) -> None:
    table = new_table("bytes of the longest request", ["kind"], ["bytes", "share"])
    for cost in summary.costs:
        table.add_row(cost.kind, f"{cost.num_bytes:,}", f"{cost.share:.2%}")
    print_table(table)


def _index(layer: str) -> int:
    return int(layer.removeprefix("layer").partition(".")[0])


def ranges(numbers: Any) -> str:
    """Ascending numbers with runs abbreviated, e.g. ``0-4, 6, 8``."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def _size(num_bytes: int) -> str:
    return f"{num_bytes / (1 << 30):.2f} GiB"
