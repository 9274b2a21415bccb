"""Tokens per second of the engine against transformers' batched `generate`, side by side, on the CPU.

Writes table.md and plot.png, and ends with 1 if tokens differ by more than a tie or a median misses its bound.
"""

from __future__ import annotations

import argparse
import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

import torch

from kvhybrid.engine.engine import Engine
from kvhybrid.run_folder import RunFolder
from runs.pictures import figure_of, read_table, save

HERE = Path(__file__).parent
PAIRS = 5
"""Of the committed table."""
REQUESTS = 16
PREFIX = 1024
TAILS = range(8, 8 + 2 * REQUESTS, 2)
"""Tokens of each prompt after the first 1,024: lengths differ, so that the other side pads its batch."""
NEW_TOKENS = 64
VOCAB = 8192
BLOCK_SIZE = 16
BOUNDS = {"shared prefix": 2.0, "nothing shared": 1.0}
"""What the median ratio must reach, by workload."""
TIE = 1e-5
"""Rounding alone decides between logits this close, and padding and batching change it on either side."""


def gemma() -> Any:
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    return Gemma3ForCausalLM(
        Gemma3TextConfig(
            vocab_size=VOCAB,
            hidden_size=256,
            intermediate_size=1024,
            num_hidden_layers=6,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=64,
            query_pre_attn_scalar=64,
            sliding_window=256,
            layer_types=[*["sliding_attention"] * 5, "full_attention"],
            max_position_embeddings=2048,
            tie_word_embeddings=False,
            initializer_range=0.06,
            eos_token_id=None,
            pad_token_id=0,
        )
    )


def jamba() -> Any:
    from transformers import JambaConfig, JambaForCausalLM

    return JambaForCausalLM(
        JambaConfig(
            vocab_size=VOCAB,
            hidden_size=128,
            intermediate_size=256,
            num_hidden_layers=8,
            num_attention_heads=4,
            num_key_value_heads=2,
            attn_layer_period=8,
            attn_layer_offset=4,
            expert_layer_period=2,
            expert_layer_offset=1,
            num_experts=8,
            num_experts_per_tok=2,
            mamba_d_state=16,
            mamba_d_conv=4,
            mamba_expand=2,
            max_position_embeddings=2048,
            initializer_range=0.06,
            eos_token_id=None,
            bos_token_id=None,
            pad_token_id=0,
        )
    )


MODELS = {"gemma": gemma, "jamba": jamba}


@dataclass(frozen=True)
class Run:
    """What one side generated, with its wall-clock and processor seconds."""

    tokens: list[list[int]]
    seconds: float
    cpu_seconds: float

    @property
    def speed(self) -> float:
        """New tokens per second."""
        return REQUESTS * NEW_TOKENS / self.seconds


@dataclass(frozen=True)
class Pair:
    """Both sides on the same prompts, one right after the other."""

    ours: Run
    theirs: Run

    @property
    def ratio(self) -> float:
        """Our tokens per second divided by theirs."""
        return self.theirs.seconds / self.ours.seconds

    @property
    def cpu_ratio(self) -> float:
        """The same by processor time, which other work on the machine disturbs less."""
        return self.theirs.cpu_seconds / self.ours.cpu_seconds


def prompts(shared: bool, seed: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)

    def draw(count: int) -> list[int]:
        tokens: list[int] = torch.randint(1, VOCAB, (count,), generator=generator).tolist()
        return tokens

    prefix = draw(PREFIX)
    return [(prefix if shared else draw(PREFIX)) + draw(tail) for tail in TAILS]


def timed(work: Callable[[], list[list[int]]]) -> Run:
    began, cpu_began = perf_counter(), process_time()
    tokens = work()
    return Run(tokens, perf_counter() - began, process_time() - cpu_began)


def run_ours(model: Any, asked: Sequence[Sequence[int]]) -> Run:
    """On a new engine each time: its cache is empty when the clock starts."""
    longest = max(map(len, asked))
    engine = Engine.from_hf(
        model,
        block_size=BLOCK_SIZE,
        max_batched_tokens=2048,
        max_num_seqs=REQUESTS,
        max_model_len=longest + NEW_TOKENS + 1,
    )
    return timed(lambda: engine.generate(asked, NEW_TOKENS))


@torch.inference_mode()
def run_theirs(model: Any, asked: Sequence[Sequence[int]]) -> Run:
    longest = max(map(len, asked))
    ids_SL = torch.zeros(len(asked), longest, dtype=torch.long)
    mask_SL = torch.zeros_like(ids_SL)
    for row, prompt in enumerate(asked):
        ids_SL[row, longest - len(prompt) :] = torch.tensor(prompt)
        mask_SL[row, longest - len(prompt) :] = 1

    def generate() -> list[list[int]]:
        out = model.generate(ids_SL, attention_mask=mask_SL, max_new_tokens=NEW_TOKENS, do_sample=False)
        tokens: list[list[int]] = out[:, longest:].tolist()
        return tokens

    return timed(generate)


def measure(model: Any, shared: bool, num_pairs: int) -> Iterator[Pair]:
    """Every pair has its own prompts, and the side that runs first alternates."""
    for number in range(num_pairs):
        asked = prompts(shared, seed=number)
        if number % 2:
            theirs, ours = run_theirs(model, asked), run_ours(model, asked)
        else:
            ours, theirs = run_ours(model, asked), run_theirs(model, asked)
        pair = Pair(ours, theirs)
        print(
            f"  ours {ours.seconds:.2f} s, theirs {theirs.seconds:.2f} s: {pair.ratio:.2f}; "
            f"processor time {ours.cpu_seconds:.2f} s, {theirs.cpu_seconds:.2f} s: {pair.cpu_ratio:.2f}",
            flush=True,
        )
        yield pair


@torch.inference_mode()
def gaps_where_tokens_part(model: Any, asked: Sequence[Sequence[int]], pair: Pair) -> list[float]:
    """For each request that got different tokens: how far below the largest logit the lower of the first two that
    differ is, by transformers for that request alone, without padding and without a cache."""
    gaps: list[float] = []
    for prompt, ours, theirs in zip(asked, pair.ours.tokens, pair.theirs.tokens, strict=True):
        if ours != theirs:
            at = next(i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b)
            logits_V = model(torch.tensor([[*prompt, *ours[:at]]]), use_cache=False).logits[0, -1]
            gaps.append(float(logits_V.max() - logits_V[[ours[at], theirs[at]]].min()))
    return gaps


def spread(values: Sequence[float], digits: int) -> str:
    low, middle, high = min(values), median(values), max(values)
    return f"{low:,.{digits}f} / {middle:,.{digits}f} / {high:,.{digits}f}"


def row(name: str, workload: str, num_pairs: int) -> tuple[str, bool]:
    """One line of the table, and whether its tokens are equal and its bound is reached."""
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    for side in (run_ours, run_theirs):  # warm up
        side(model, [prompt[-64:] for prompt in prompts(shared=False, seed=0)])
    print(f"{name}, {workload}", flush=True)
    shared = workload == "shared prefix"
    pairs = list(measure(model, shared, num_pairs))
    gaps = [
        gap
        for number, pair in enumerate(pairs)
        for gap in gaps_where_tokens_part(model, prompts(shared, seed=number), pair)
    ]
    ties = f"equal but for {len(gaps)} of {num_pairs * REQUESTS} requests, which part at a tie within"
    ratios = [pair.ratio for pair in pairs]
    cells = (
        name,
        workload,
        f"**{spread(ratios, 2)}**",
        spread([pair.cpu_ratio for pair in pairs], 2),
        f"{BOUNDS[workload]:.0f}",
        spread([pair.ours.speed for pair in pairs], 0),
        spread([pair.theirs.speed for pair in pairs], 0),
        f"{ties} {max(gaps):.0e}" if gaps else "equal",
    )
    return f"| {' | '.join(cells)} |", max(gaps, default=0.0) < TIE and median(ratios) >= BOUNDS[workload]


def plot(folder: Path) -> None:
    """Draw ``plot.png`` of a folder from its ``table.md``."""
    rows = read_table(folder / "table.md")
    figure, axes = figure_of(figsize=(7, 0.9 + 0.5 * len(rows)))
    for place, cells in enumerate(reversed(rows)):
        low, middle, high = map(float, cells["ratio of tokens/s"].strip("*").split(" / "))
        axes.plot([low, high], [place, place], color="tab:blue", linewidth=2, alpha=0.5)
        axes.plot(middle, place, "o", color="tab:blue")
        axes.plot(float(cells["must reach"]), place, "|", color="black", markersize=14, markeredgewidth=1.5)
    axes.set_yticks(range(len(rows)), [f"{cells['model']}, {cells['workload']}" for cells in reversed(rows)])
    axes.set_xlim(left=0)
    axes.margins(y=0.15)
    axes.set_xlabel("new tokens/s, kvhybrid / transformers; dot: median, line: all pairs, black: bound")
    axes.grid(axis="x", alpha=0.25)
    save(figure, folder / "plot.png")


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m runs.engine_speed.run", description=__doc__)
    parser.add_argument(
        "--pairs", type=int, default=PAIRS, help=f"other than {PAIRS}: write to runs/outputs/engine_speed"
    )
    parser.add_argument("--redraw", action="store_true", help="only draw plot.png from table.md")
    options = parser.parse_args(given)
    folder = HERE if options.pairs == PAIRS else HERE.parent / "outputs" / "engine_speed"
    good = options.redraw or compare(options.pairs, folder)
    plot(folder)
    return 0 if good else 1


def compare(num_pairs: int, folder: Path) -> bool:
    """Write the table. Returns whether every line is as it must be."""
    # One thread: several would wait for the one that other work on the machine slows down.
    torch.set_num_threads(1)
    rows = [row(name, workload, num_pairs) for name in MODELS for workload in BOUNDS]
    columns = (
        "model",
        "workload",
        "ratio of tokens/s",
        "the same by processor time",
        "must reach",
        "kvhybrid, new tokens/s",
        "transformers, new tokens/s",
        "tokens",
    )
    lines = [
        f"| {' | '.join(columns)} |",
        "|---" * len(columns) + "|",
        *(line for line, _ in rows),
        "",
        f"Minimum / median / maximum of {num_pairs} pairs. {date.today()}, one thread, "
        f"kvhybrid {version('kvhybrid')}, torch {version('torch')}, transformers {version('transformers')}, "
        f"Python {platform.python_version()}, {platform.machine()}.",
    ]
    folder.mkdir(parents=True, exist_ok=True)
    RunFolder(folder).write_text("table.md", "\n".join(lines) + "\n")
    return all(good for _, good in rows)


if __name__ == "__main__":
    raise SystemExit(main())
