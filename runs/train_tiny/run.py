"""Train the byte models that ship with kvhybrid on the source of the Python standard library.

Each gets a folder with a Hugging Face checkpoint and curve.jsonl; table.md and plot.png are written beside them.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import partial
from importlib.metadata import version
from math import log
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from kvhybrid.engine.engine import Engine
from kvhybrid.engine.quality import excerpts, measure
from kvhybrid.run_folder import RunFolder
from kvhybrid.text.codec import ByteCodec
from kvhybrid.text.corpus import held_out_text, training_text
from runs.pictures import figure_of, save
from runs.train_tiny.scan import mixer_forward

HERE = Path(__file__).parent
OUTPUTS = HERE.parent / "outputs" / "train_tiny"
HEADINGS = ("model", "weights", "steps", "bytes seen", "held out, recipe", "held out, through pages", "file")

LOG_EVERY = 10
"""Steps."""
EVAL_SEQUENCES = 32

COMMON = {
    "vocab_size": 256,
    "hidden_size": 192,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "head_dim": 32,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
GEMMA3 = {
    **COMMON,
    "model_type": "gemma3_text",
    "intermediate_size": 384,
    "num_key_value_heads": 2,
    "query_pre_attn_scalar": 32,
    "sliding_window": 64,
    "layer_types": [*["sliding_attention"] * 3, "full_attention"],
}
JAMBA = {
    **COMMON,
    "model_type": "jamba",
    "intermediate_size": 256,
    "num_key_value_heads": 4,
    "attn_layer_period": 4,
    "attn_layer_offset": 2,
    "num_experts": 1,
    "num_experts_per_tok": 1,
    "mamba_d_state": 8,
    "mamba_dt_rank": 8,
}


@dataclass(frozen=True)
class Recipe:
    """A model, and for how long, on how much and how fast it is trained."""

    config: dict[str, Any]
    """The keys of ``config.json``."""
    rounds: tuple[int, ...]
    """Steps of each round. In a round the rates go up and down once, and the optimizers start fresh."""
    batch: int
    """Sequences of a step."""
    length: int = 384
    """Bytes of a sequence."""
    matrix_rate: float = 0.01
    vector_rate: float = 0.005


RECIPES = {
    "gemma3_bytes": Recipe(GEMMA3, rounds=(700,), batch=6),
    "jamba_bytes": Recipe(JAMBA, rounds=(360, 260, 300), batch=3),
}


def build(recipe: Recipe, seed: int) -> Any:
    """The untrained transformers model, with a scan in its Mamba layers that is fast to train."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(**recipe.config), attn_implementation="eager", dtype=torch.float32
    )
    for module in model.modules():
        if type(module).__name__ == "JambaMambaMixer":
            module.forward = partial(_mix, module)
            step = 0.001 * 100.0 ** torch.rand_like(module.dt_proj.bias)
            module.dt_proj.bias.data = step.expm1().log()
    return model


def _mix(mixer: Any, hidden_states: Tensor, **_: Any) -> Tensor:
    return mixer_forward(mixer, hidden_states)


class Trainer:
    """Muon for the matrices of the layers, Adam for the embedding, the vectors and the parameters of decays."""

    def __init__(self, model: Any, recipe: Recipe, steps: int) -> None:
        matrices, others = [], []
        for name, weight in model.named_parameters():
            (matrices if name.endswith("_proj.weight") else others).append(weight)
        self.model = model
        self.optimizers = (
            torch.optim.Muon(matrices, lr=recipe.matrix_rate, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(others, lr=recipe.vector_rate, betas=(0.9, 0.98), weight_decay=0.0),
        )
        self.schedules = [
            torch.optim.lr_scheduler.LambdaLR(optimizer, partial(share_of_rate, steps=steps))
            for optimizer in self.optimizers
        ]

    def step(self, ids_BL: Tensor) -> float:
        """One update, each byte predicted from those before it. Returns the loss before it, in bits per byte.

        Matrices are multiplied in bfloat16, which recent processors do many times faster; the rest is float32.
        """
        self.model.train()
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(self.model, ids_BL)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer, schedule in zip(self.optimizers, self.schedules, strict=True):
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            schedule.step()
        return loss.item() / log(2)


def share_of_rate(step: int, steps: int) -> float:
    """Up within the first 20 steps, then constant, and down to nothing over the last 60 %."""
    return min((step + 1) / 20, 1.0, (steps - step) / (0.6 * steps))


def loss_of(model: Any, ids_BL: Tensor) -> Tensor:
    """Nats per byte; the first byte of a sequence is given."""
    logits_BLV = model(input_ids=ids_BL[:, :-1], use_cache=False).logits
    return nn.functional.cross_entropy(logits_BLV.float().flatten(0, 1), ids_BL[:, 1:].flatten())


def draw(text_L: Tensor, recipe: Recipe, generator: torch.Generator) -> Tensor:
    """``ids_BL`` from random places of the text, one byte longer than a sequence."""
    begins = torch.randint(len(text_L) - recipe.length, (recipe.batch,), generator=generator)
    return text_L[begins[:, None] + torch.arange(recipe.length + 1)].long()


@torch.no_grad()
def held_out_bits(model: Any, length: int) -> float:
    """Bits per byte of sequences spread evenly over the held-out text."""
    model.eval()
    text_L = _as_tensor(held_out_text())
    begins = torch.linspace(0, len(text_L) - length - 1, EVAL_SEQUENCES).long()
    ids_BL = text_L[begins[:, None] + torch.arange(length + 1)].long()
    return torch.stack([loss_of(model, part_BL) for part_BL in ids_BL.split(8)]).mean().item() / log(2)


def train(recipe: Recipe, seed: int, folder: Path) -> float:
    """Train, and write the checkpoint and the curve into ``folder``. Returns the held-out bits per byte."""
    model = build(recipe, seed)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "curve.jsonl").open("w", encoding="utf-8") as curve:
        for number, steps in enumerate(recipe.rounds):
            for step, bits in train_round(model, recipe, steps, seed + number):
                point = {"step": sum(recipe.rounds[:number]) + step, "train_bits_per_byte": round(bits, 4)}
                curve.write(json.dumps(point) + "\n")
            model.to(torch.bfloat16)  # as stored: the next round and the result start from what the file holds
            save_checkpoint(model, folder)
            model.float()
    return held_out_bits(model, recipe.length)


def train_round(model: Any, recipe: Recipe, steps: int, seed: int) -> Iterator[tuple[int, float]]:
    """Every `LOG_EVERY` steps, the number of the step and the mean bits per byte since the last one."""
    trainer = Trainer(model, recipe, steps)
    generator = torch.Generator().manual_seed(seed)
    text_L = _as_tensor(training_text())
    began, recent = perf_counter(), []
    for step in range(1, steps + 1):
        recent.append(trainer.step(draw(text_L, recipe, generator)))
        if step % LOG_EVERY == 0 or step == steps:
            bits = sum(recent) / len(recent)
            print(f"{step:5} {bits:.3f} {perf_counter() - began:6.0f} s", flush=True)
            yield step, bits
            recent = []


def save_checkpoint(model: Any, folder: Path) -> None:
    """``config.json`` and ``model.safetensors``, and nothing else."""
    from safetensors.torch import save_file

    model.config.dtype = next(model.parameters()).dtype
    model.config.save_pretrained(folder)
    weights = {name: weight for name, weight in model.state_dict().items() if name != "lm_head.weight"}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)


def _as_tensor(text: bytes) -> Tensor:
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


def bits_through_pages(checkpoint: Path) -> float:
    """Bits per byte of 16,384 held-out bytes in excerpts of 256, read through kvhybrid's pages."""
    engine = Engine.from_hf(checkpoint)
    return measure(engine, ByteCodec(), excerpts(held_out_text(), 16_384, 256)).bits_per_byte


def row(name: str, recipe: Recipe, bits: float, checkpoint: Path) -> str:
    """One line of the table."""
    weights = sum(weight.numel() for weight in build(recipe, seed=0).parameters())
    seen = sum(recipe.rounds) * recipe.batch * recipe.length
    size = (checkpoint / "model.safetensors").stat().st_size
    cells = (
        f"`{name}`",
        f"{weights:,}",
        " + ".join(map(str, recipe.rounds)),
        f"{seen / 1e6:.1f} million",
        f"{bits:.3f}",
        f"{bits_through_pages(checkpoint):.3f}",
        f"{size / 1e6:.1f} MB",
    )
    return f"| {' | '.join(cells)} |"


def plot(curves: Mapping[str, Path], path: Path) -> None:
    """Draw the bits per byte in training, one curve for each model."""
    figure, axes = figure_of(figsize=(7, 4))
    for name, curve in curves.items():
        points = [json.loads(line) for line in curve.read_text(encoding="utf-8").splitlines()]
        axes.plot([p["step"] for p in points], [p["train_bits_per_byte"] for p in points], label=name)
    axes.set_xlabel("step")
    axes.set_ylabel("bits per byte in training, mean of ten steps")
    axes.grid(alpha=0.25)
    axes.legend()
    save(figure, path)


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m runs.train_tiny.run", description=__doc__)
    parser.add_argument("--models", nargs="+", choices=RECIPES, default=list(RECIPES))
    parser.add_argument("--out", type=Path, default=OUTPUTS, help="default: runs/outputs/train_tiny")
    parser.add_argument("--seed", type=int, default=0, help="of the weights and the places of the text")
    parser.add_argument("--redraw", action="store_true", help="only draw plot.png here from the curves here")
    options = parser.parse_args(given)
    if options.redraw:
        plot({name: HERE / f"curve-{name}.jsonl" for name in RECIPES}, HERE / "plot.png")
        return 0
    out: Path = options.out
    rows = [
        row(name, RECIPES[name], train(RECIPES[name], options.seed, out / name), out / name)
        for name in options.models
    ]
    packages = ", ".join(f"{name} {version(name)}" for name in ("kvhybrid", "torch", "transformers"))
    lines = [
        f"| {' | '.join(HEADINGS)} |",
        "|---" * len(HEADINGS) + "|",
        *rows,
        "",
        f"{date.today()}, seed {options.seed}, {packages}, "
        f"Python {platform.python_version()}, {platform.machine()}.",
    ]
    RunFolder(out).write_text("table.md", "\n".join(lines) + "\n")
    plot({name: out / name / "curve.jsonl" for name in options.models}, out / "plot.png")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
