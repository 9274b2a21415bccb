"""``runs/train_tiny``: its scan and its mixer are those of transformers, and a step lowers the loss."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kvhybrid.engine.engine import Engine
from runs.train_tiny.run import RECIPES, Trainer, bits_through_pages, build, plot, row, train
from runs.train_tiny.scan import SelectiveScan, mixer_forward

SIZES = {"hidden_size": 32, "intermediate_size": 48, "head_dim": 8, "mamba_dt_rank": 4, "query_pre_attn_scalar": 8}


def small(name: str, *rounds: int) -> Any:
    recipe = RECIPES[name]
    config = {**recipe.config, **{key: size for key, size in SIZES.items() if key in recipe.config}}
    return replace(recipe, config=config, rounds=rounds, batch=4, length=64)


def test_the_gradient_of_the_scan_is_its_derivative() -> None:
    generator = torch.Generator().manual_seed(0)
    tokens, sequences, channels, state = 18, 1, 2, 2  # more than a chunk
    shapes = [(tokens, sequences, size) for size in (channels, state, state)]
    dtx, b, c = (torch.randn(shape, generator=generator, dtype=torch.double) for shape in shapes)
    dt = torch.rand(shapes[0], generator=generator, dtype=torch.double)
    decay = -torch.rand(state, channels, generator=generator, dtype=torch.double)
    arguments = [tensor.requires_grad_() for tensor in (dt, dtx, decay, b, c)]
    assert torch.autograd.gradcheck(SelectiveScan.apply, arguments)


def test_the_fast_mixer_is_that_of_transformers() -> None:
    from transformers.models.jamba.modeling_jamba import JambaMambaMixer

    mixer = build(small("jamba_bytes"), seed=0).model.layers[0].mamba
    x = torch.randn(2, 50, 32, generator=torch.Generator().manual_seed(0))
    found, expected = mixer_forward(mixer, x), JambaMambaMixer.forward(mixer, x)
    assert float((found - expected).detach().abs().max()) < 1e-5  # measured: 1e-7


@pytest.mark.parametrize("name", ["gemma3_bytes", "jamba_bytes"])
def test_steps_lower_the_loss(name: str) -> None:
    recipe = small(name)
    trainer = Trainer(build(recipe, seed=0), recipe, steps=15)
    ids = torch.frombuffer(bytearray(b"for index in range(10):\n    print(index)\n" * 7), dtype=torch.uint8)
    ids = ids[: 4 * 65].view(4, 65).long()
    bits = [trainer.step(ids) for _ in range(15)]
    assert bits[0] == pytest.approx(8.0, abs=0.4)  # a byte has 8 bits, and nothing is known yet
    assert bits[-1] < bits[0] - 1  # measured: 1.5 and 1.6 below it


@pytest.mark.parametrize("name", ["gemma3_bytes", "jamba_bytes"])
def test_the_seed_decides_the_weights(name: str) -> None:
    first, again, other = (build(small(name), seed=seed).state_dict() for seed in (1, 1, 2))
    assert all(first[key].equal(again[key]) for key in first)
    assert any(not first[key].equal(other[key]) for key in first)


def test_a_checkpoint_of_the_recipe_is_read_by_the_engine(tmp_path: Path) -> None:
    bits = train(small("jamba_bytes", 11, 1), 0, tmp_path)
    assert 5 < bits < 8
    curve = [json.loads(line) for line in (tmp_path / "curve.jsonl").read_text().splitlines()]
    assert [point["step"] for point in curve] == [10, 11, 12]
    assert {place.name for place in tmp_path.iterdir()} == {"config.json", "model.safetensors", "curve.jsonl"}
    assert bits_through_pages(tmp_path) == pytest.approx(bits, abs=0.5), "other excerpts, the same weights"
    cells = row("small", small("jamba_bytes", 11, 1), bits, tmp_path).split(" | ")
    assert cells[2:5] == ["11 + 1", "0.0 million", f"{bits:.3f}"]
    plot({"small": tmp_path / "curve.jsonl"}, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    assert len(Engine.from_hf(tmp_path, num_blocks=32, max_model_len=64).generate([[1, 2, 3]], 4)[0]) == 4


@pytest.mark.long
@pytest.mark.parametrize("name", ["gemma3_bytes", "jamba_bytes"])
def test_the_whole_recipe_ends_below_2_6_bits_per_byte(name: str, tmp_path: Path) -> None:
    """``python -m pytest -m long tests/runs``: about ten minutes a model on an idle core."""
    assert train(RECIPES[name], 0, tmp_path) < 2.6
