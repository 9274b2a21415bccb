"""``runs/gpu_check``: without a GPU it says so and writes nothing; its parts run on the CPU at small sizes."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from kvhybrid.models.base import BackendChoice
from kvhybrid.workloads.shared_prefix import SharedPrefix
from runs.gpu_check.parity import Parity, compare, hidden
from runs.gpu_check.run import gathered, heading, hits_section, main, parity_lines, speed_section
from runs.gpu_check.throughput import AttentionSizes, StateSizes

FOLDER = Path(__file__).resolve().parents[2] / "runs" / "gpu_check"
SMALL = {"prompt": 24, "chunks": 24, "decode": 5}
TORCH = BackendChoice()


def test_without_a_gpu_it_says_so_and_writes_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    before = sorted(FOLDER.iterdir())
    assert main([]) == 2
    assert capsys.readouterr().out.startswith("gpu_check needs a CUDA device")
    assert [path for path in sorted(FOLDER.iterdir()) if path.name != "__pycache__"] == [
        path for path in before if path.name != "__pycache__"
    ]


def test_the_readme_says_that_it_has_not_been_run() -> None:
    """To be changed with the first table."""
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert (FOLDER / "table.md").is_file() is ("has not been run" not in readme)


@pytest.mark.parametrize("family", ["gemma3_text", "jamba"])
def test_torch_backend_is_as_close_to_transformers_as_float32_is(family: str) -> None:
    refused = BackendChoice(attention="torch_varlen")
    ours, other = compare(family, [TORCH, refused], "cpu", torch.float32, SMALL)
    assert set(ours.differences) == set(SMALL)
    assert max(ours.differences.values()) < 5e-5  # measured maximum: 1.2e-5 of the standard deviation, Jamba
    assert other.differences == {}
    assert "torch_varlen" in other.refusal


def test_transformers_as_the_oracle_gets_no_kernels() -> None:
    stand_in = ModuleType("mamba_ssm")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "mamba_ssm", stand_in)
        with hidden("mamba_ssm", "causal_conv1d"), pytest.raises(ImportError):
            __import__("mamba_ssm")
        assert sys.modules["mamba_ssm"] is stand_in
    assert "causal_conv1d" not in sys.modules


def test_a_backend_further_off_than_torch_is_marked() -> None:
    ways = ("prompt", "chunks", "decode")
    base, near, far = (
        Parity("gemma2", BackendChoice(attention=name), dict.fromkeys(ways, 0.01) | {"decode": decode})
        for name, decode in (("torch", 0.01), ("near", 0.03), ("far", 0.3))
    )
    refused = Parity("gemma2", BackendChoice(attention="no"), {}, refusal="cannot")
    broken = Parity("gemma2", BackendChoice(attention="broken"), {}, failure="RuntimeError: misaligned")
    assert list(parity_lines([base, near, far, refused, broken])) == [
        "| gemma2 | torch | torch | 0.0100 | 0.0100 | 0.0100 | yes |",
        "| gemma2 | near | torch | 0.0100 | 0.0100 | 0.0300 | yes |",
        "| gemma2 | far | torch | 0.0100 | 0.0100 | 0.3000 | NO |",
        "| gemma2 | no | torch | refused: cannot | | | |",
        "| gemma2 | broken | torch | failed: RuntimeError: misaligned | | | NO |",
    ]


def test_speed_is_measured_for_every_backend_that_fits() -> None:
    sizes = AttentionSizes(4, 2, 16, block_size=16, sequences=3, context=64)
    states = StateSizes(channels=16, state_size=4, sequences=3)
    lines = list(
        speed_section("cpu", torch.float32, ("torch", "torch_varlen"), ("torch",), sizes=sizes, states=states)
    )
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    assert [row[0] for row in cells[2:]] == ["a copy; a product", "torch", "torch_varlen", "torch, Mamba-1 states"]
    assert cells[3][2].endswith("%")
    assert cells[4][1].startswith("refused: layer layer: attention backend torch_varlen cannot keep 'k'")


def test_hit_rates_come_from_a_run_that_wandb_has_logged(tmp_path: Path) -> None:
    workload = SharedPrefix(
        num_prefixes=2, requests_per_prefix=2, prefix_tokens=48, suffix_tokens=8, max_new_tokens=2
    )
    lines = list(hits_section("cpu", "float32", workload, 16, tmp_path))
    assert {line.split(" | ")[0] for line in lines[2:]} == {"| gemma3", "| jamba"}
    assert all(float(line.split("|")[3].strip(" %")) > 10 for line in lines[2:])
    assert list(tmp_path.glob("*/wandb/offline-run-*"))


def test_measurements_after_the_time_limit_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    sections: dict[str, Any] = {"Parity": lambda: iter(["| a |", "| b |"])}
    assert gathered(sections, float("inf")) == ["", "## Parity", "", "| a |", "| b |"]
    assert gathered(sections, -1.0) == ["", "## Parity", "", "| a |", "", "The rest was left out: -1 s were over."]


def test_heading_names_date_card_and_versions() -> None:
    title, _, versions = heading("cpu")
    assert title.startswith("# GPU check of 20")
    assert f"torch {torch.__version__}" in versions
    assert "flash-attn" in versions
