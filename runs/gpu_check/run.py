"""What only a GPU can tell: whether the kernels compute what torch computes, and how fast.

Needs a CUDA device; without one it says so, writes nothing and ends with 2. Takes at most about six minutes on one
H200. Writes table.md, and ends with 1 if kernels fail, or if a model on them is further from transformers than
twice the torch backend is.
"""

from __future__ import annotations

import argparse
import logging
import platform
from collections.abc import Callable, Iterator, Sequence
from datetime import date, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import perf_counter

import torch

from kvhybrid.models.base import BackendChoice
from kvhybrid.run_folder import RunFolder
from kvhybrid.workloads.shared_prefix import SharedPrefix
from runs.gpu_check.hits import hit_rates, models
from runs.gpu_check.parity import FAMILIES, Parity, compare, one_line
from runs.gpu_check.throughput import (
    AttentionSizes,
    StateSizes,
    copy_bandwidth,
    decode_bandwidth,
    prefill_speed,
    product_speed,
    state_bandwidth,
)

MOST_SECONDS = 360.0
"""Measurements that do not start by then are left out, and the table says so."""
ATTENTION = ("torch", "torch_varlen", "flash_attention2", "flash_attention3", "flash_attention4")
PACKAGES = ("torch", "transformers", "flash-attn", "flash-attn-4", "mamba-ssm", "causal-conv1d", "triton")
SLACK = 0.02
"""What kernels may be further off than twice the torch backend, as a share of the logits' standard deviation."""

Section = Callable[[], Iterator[str]]


def choices(family: str, attention: tuple[str, ...]) -> list[BackendChoice]:
    """The torch backend first: the others are compared with it."""
    found = [BackendChoice(attention=name) for name in attention]
    if family in ("jamba", "bamba"):
        found.append(BackendChoice(mamba="mamba_ssm"))
    return found


def is_good(result: Parity, torch_result: Parity) -> bool:
    return all(
        difference <= 2 * torch_result.differences[way] + SLACK for way, difference in result.differences.items()
    )


def parity_lines(results: list[Parity]) -> Iterator[str]:
    """Rows of one family's table; the first result is the torch backend's."""
    for result in results:
        name = f"{result.family} | {result.backends.attention} | {result.backends.mamba}"
        if result.refusal:
            yield f"| {name} | refused: {result.refusal} | | | |"
            continue
        if result.failure:
            yield f"| {name} | failed: {result.failure} | | | NO |"
            continue
        cells = " | ".join(f"{result.differences[way]:.4f}" for way in ("prompt", "chunks", "decode"))
        yield f"| {name} | {cells} | {'yes' if is_good(result, results[0]) else 'NO'} |"


def parity_section(device: str, dtype: torch.dtype) -> Iterator[str]:
    yield "| family | attention | mamba | prompt | chunks | decode | good |"
    yield "|---|---|---|---|---|---|---|"
    for family in FAMILIES:
        yield from parity_lines(list(compare(family, choices(family, ATTENTION), device, dtype)))


def speed_section(
    device: str,
    dtype: torch.dtype,
    attention: tuple[str, ...] = ATTENTION,
    mamba: tuple[str, ...] = ("torch", "mamba_ssm"),
    sizes: AttentionSizes | None = None,
    states: StateSizes | None = None,
) -> Iterator[str]:
    sizes, states = sizes or AttentionSizes(), states or StateSizes()
    copied = sizes.sequences * sizes.context * sizes.num_kv_heads * sizes.head_size * 2 * dtype.itemsize
    copy, product = copy_bandwidth(copied, device), product_speed(sizes.context, device, dtype)
    yield "| backend | decoding, GB/s | of a copy's | prompt, TFLOP/s | of a matrix product's |"
    yield "|---|---|---|---|---|"
    yield f"| a copy; a product | {copy / 1e9:.0f} | 100 % | {product / 1e12:.1f} | 100 % |"
    for name in attention:
        try:
            read, speed = (measure(name, sizes, device, dtype) for measure in (decode_bandwidth, prefill_speed))
        except Exception as error:  # the other rows are still wanted
            yield f"| {name} | {refused_or_failed(error)} | | | |"
            continue
        yield (f"| {name} | {read / 1e9:.0f} | {read / copy:.0%} | {speed / 1e12:.1f} | {speed / product:.0%} |")
    for name in mamba:
        try:
            read = state_bandwidth(name, states, device)
        except Exception as error:
            yield f"| {name}, Mamba-1 states | {refused_or_failed(error)} | | | |"
            continue
        yield f"| {name}, Mamba-1 states | {read / 1e9:.0f} | {read / copy:.0%} | | |"


def refused_or_failed(error: Exception) -> str:
    return f"{'refused' if isinstance(error, ValueError) else 'failed'}: {one_line(error)}"


def hits_section(device: str, dtype: str, workload: SharedPrefix, block_size: int, folder: Path) -> Iterator[str]:
    yield "| model | group | hit rate |"
    yield "|---|---|---|"
    for name, model in models(dtype).items():
        for found in hit_rates(name, model, workload, device, block_size, folder / name):
            yield f"| {found.model} | {found.group} | {found.hit_rate:.1%} |"


def gathered(sections: dict[str, Section], most_seconds: float) -> list[str]:
    """The lines of every section, until time is up."""
    began, lines = perf_counter(), []
    for heading, section in sections.items():
        lines += ["", f"## {heading}", ""]
        for line in section():
            print(line, flush=True)
            lines.append(line)
            if perf_counter() - began > most_seconds:
                return [*lines, "", f"The rest was left out: {most_seconds:.0f} s were over."]
    return lines


def heading(device: str) -> list[str]:
    """Date, card and versions."""
    card = torch.cuda.get_device_name(device) if device != "cpu" else platform.processor() or "CPU"
    return [f"# GPU check of {date.today()}", "", f"{card}; {', '.join(map(spelled, PACKAGES))}."]


def spelled(package: str) -> str:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return f"no {package}"


def main(given: Sequence[str] | None = None) -> int:
    argparse.ArgumentParser(prog="python -m runs.gpu_check.run", description=__doc__).parse_args(given)
    if not torch.cuda.is_available():
        print("gpu_check needs a CUDA device, and torch finds none; nothing was run and nothing is written")
        return 2
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    device, dtype = "cuda", torch.bfloat16
    here = Path(__file__).resolve().parent
    outputs = here.parent / "outputs" / "gpu_check" / f"{datetime.now():%Y-%m-%d_%H-%M-%S}"
    workload = SharedPrefix(prefix_tokens=1536, suffix_tokens=64, max_new_tokens=16)
    lines = heading(device) + gathered(
        {
            "Parity with transformers": lambda: parity_section(device, dtype),
            "Speed of one layer": lambda: speed_section(device, dtype),
            "Hit rates": lambda: hits_section(device, "bfloat16", workload, 256, outputs),
        },
        MOST_SECONDS,
    )
    RunFolder(here).write_text("table.md", "\n".join(lines) + "\n")
    print(here / "table.md")
    return int(any(line.endswith("| NO |") or "| failed: " in line for line in lines))


if __name__ == "__main__":
    raise SystemExit(main())
