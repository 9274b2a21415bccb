"""docs/add-a-model.md: its files are written, its test passes, and what it ships runs."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import fields
from importlib import import_module
from pathlib import Path

import pytest
import torch
import transformers

from kvhybrid.engine.engine import Engine
from kvhybrid.models.backends.base import AttentionNeed
from kvhybrid.models.initialization import fill_randomly

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "add-a-model.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
FILES = {
    text.splitlines()[0].removeprefix("# "): text for language, text in BLOCKS if language in ("python", "toml")
}
COMMANDS = [line for language, text in BLOCKS if language == "sh" for line in text.splitlines()]
PIP_OPTIONS = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--target", "site"]
SMALL = [
    "model.dtype=float32",
    "workload.requests_per_prefix=2",
    "workload.max_new_tokens=4",
    "tracking=none",
]
SHARING = {
    "vocab_size": 131,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 256,
    "sliding_window": 8,
    "layer_types": ["sliding_attention", "full_attention"] * 2 + ["sliding_attention"],
    "num_kv_shared_layers": 3,
}


def run(command: str, folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """A command of the page, by this Python."""
    program, *arguments = shlex.split(command)
    if program == "pip":
        arguments = ["install", *PIP_OPTIONS, *arguments[1:]]
    return subprocess.run(
        [sys.executable, "-m", program, *arguments, *more],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": "site", "PYTHONUTF8": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def test_the_page_is_understood() -> None:
    assert list(FILES) == ["ministral.py", "test_ministral.py", "pyproject.toml", "sharing.py"]
    assert [command.split()[0] for command in COMMANDS] == ["pytest", "pip", "kvhybrid"]


def test_the_family_gives_the_tokens_of_transformers(folder: Path) -> None:
    result = run(COMMANDS[0], folder, "-q", "-p", "no:cacheprovider")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "1 passed" in result.stdout


def test_the_shipped_family_runs_by_its_entry_point(folder: Path) -> None:
    install, command = COMMANDS[1:]
    installed = run(install, folder)
    assert installed.returncode == 0, installed.stdout + installed.stderr
    (folder / "ministral.py").unlink()
    torch.manual_seed(0)
    config = transformers.MinistralConfig(
        vocab_size=131,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        sliding_window=8,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        max_position_embeddings=512,
    )
    transformers.MinistralForCausalLM(config).save_pretrained(folder / "checkpoint")
    result = run(command.replace("FOLDER", "checkpoint"), folder, *SMALL)
    assert result.returncode == 0, result.stdout + result.stderr
    assert re.search(r"^sliding_window\S* +sliding_window ", result.stdout, re.MULTILINE)
    assert re.search(r"^full +full ", result.stdout, re.MULTILINE)


def test_layers_that_read_anothers_cache_have_no_spec_and_generate(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(folder)
    model = import_module("sharing").SharingMinistral.from_config(SHARING)
    for name in ("sharing", "ministral"):
        monkeypatch.delitem(sys.modules, name)
    fill_randomly(model, seed=0)
    assert list(model.layer_specs(4, torch.float32)) == ["layers.0.self_attn", "layers.1.self_attn"]
    prompts = [list(range(length)) for length in (3, 20, 45)]
    whole, cut = (
        Engine(model, block_size=4, max_batched_tokens=most, max_model_len=64).generate(prompts, 12)
        for most in (256, 7)
    )
    assert whole == cut
    assert len({token for tokens in whole for token in tokens}) > 10


def test_the_table_of_needs_is_complete() -> None:
    cells = re.findall(r"^\| (`[^|]+`) \|", PAGE, re.MULTILINE)[1:]
    assert [name for cell in cells for name in re.findall(r"`(\w+)`", cell)] == [
        field.name for field in fields(AttentionNeed)
    ]
