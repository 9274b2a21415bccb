"""``kvhybrid plan`` from end to end: what it prints, writes and refuses."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kvhybrid.cli import main

SMALL = {
    "model_type": "gemma3_text",
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "sliding_window": 64,
    "vocab_size": 64,
    "max_position_embeddings": 1024,
}


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A ``config.json``, in the folder that the verb is started from."""
    monkeypatch.chdir(tmp_path)
    place = tmp_path / "config.json"
    place.write_text(json.dumps(SMALL))
    return place


def test_it_prints_the_plan_and_fills_a_folder(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", f"model.path={config}", "pool.memory=1MiB", "lengths=[100,5000]"]) == 0
    *printed, folder = capsys.readouterr().out.splitlines()
    text = "\n".join(printed)
    for part in (
        "gemma3_text, 6 layers",
        "5 sliding_window 64: 0-4",
        "1 full: 5",
        "sliding_window.0 … .4",
        "a block: 16 tokens (as asked for), 2,048 bytes",
        "pool: 512 blocks",
        "longest request that fits:",
        "padding",
    ):
        assert part in text
    assert {place.name for place in Path(folder).iterdir()} == {
        "config.yaml",
        "plan.png",
        "provenance.json",
        "summary.json",
    }
    assert (Path(folder) / "plan.png").read_bytes().startswith(b"\x89PNG")
    summary = json.loads((Path(folder) / "summary.json").read_text())
    assert summary["num_blocks"] * summary["bytes_per_block"] == summary["pool_bytes"] == 1 << 20
    assert [row["tokens"] for row in summary["at_lengths"]] == [100, 1024]
    assert summary["layers"] == {"sliding_window 64": [f"layer{i}" for i in range(5)], "full": ["layer5"]}


def test_its_folder_runs_again(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", f"model.path={config}"]) == 0
    folder = capsys.readouterr().out.splitlines()[-1]
    assert main(["plan", "--config-dir", folder, "--config-name", "config", "hydra.run.dir=again"]) == 0
    first, second = (json.loads((Path(place) / "summary.json").read_text()) for place in (folder, "again"))
    assert {**first, "overrides": []} == {**second, "overrides": []}


def test_json_is_all_that_stdout_has(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", f"model.path={config}", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["model_type"] == "gemma3_text"
    assert main(["plan", "-m", f"model.path={config}", "tp=1,2", "--json"]) == 0
    assert [plan["bytes_per_block"] for plan in json.loads(capsys.readouterr().out)] == [2048, 1024]


def test_a_sweep_puts_plans_side_by_side(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [f"model.path={config}", "-m", "tp=1,2,3", "pool.memory=1MiB", "hydra.sweep.dir=sweep"]
    assert main(["plan", *words]) == 2
    lines = capsys.readouterr().out.splitlines()
    rows = [line.split() for line in lines if re.match(r"\d +tp=", line)]
    assert [row[1:5] for row in rows[:2]] == [["tp=1", "6", "16", "2,048"], ["tp=2", "6", "16", "1,024"]]
    assert "job 2 refused: tp=3: layer 0 has 2 key-value heads; accepted: a divisor or a multiple of 2" in lines


def test_small_models_of_the_run_verb_can_be_planned(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "model=jamba_tiny", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["layers"]["full"] == ["layer4"]


def test_a_gpu_is_divided_up(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["gpu=l4-24gb", "utilization=0.5", "weights=2GiB", "reserve=1GiB", "--json"]
    assert main(["plan", f"model.path={config}", *words]) == 0
    memory = json.loads(capsys.readouterr().out)["memory"]
    total = 23_034 << 20
    assert memory == {
        "gpu": "l4-24gb",
        "weights": 2 << 30,
        "reserve": 1 << 30,
        "left_for_the_cache": total // 2 - (3 << 30),
    }


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([], ["model.path is missing: give model=PRESET"]),
        (["model=gemma3_72b"], ["model=gemma3_72b: no such choice; did you mean model=gemma3_27b?"]),
        (
            ["model.path=nothing.json"],
            ["model.path: nothing.json: cannot be read: No such file", "accepted: a config"],
        ),
        (["model.path=bad.json"], ["model.path: bad.json: cannot be read: ", "line 1"]),
        (["model.path=list.json"], ["list.json: expected an object, found list"]),
        (["model.path=config.json", "gpu=h100"], ["gpu=h100: unknown; did you mean gpu=h100-80gb?"]),
        (["model.path=config.json", "gpu=t4-16gb", "weights=20GiB"], ["no memory is left for the cache"]),
        (["model.path=config.json", "kv_dtype=fp8"], ["kv_dtype must be auto or one of float32"]),
        (["model.path=config.json", "pool.memory=much"], ["pool.memory must be a number with B, KB"]),
        (["model.path=config.json", "pool.memory=1KiB"], ["no memory for the cache"]),
        (["model.path=config.json", "tp=0"], ["tp must be at least 1, found 0"]),
        (["model.path=config.json", "utilization=2"], ["utilization must lie in (0, 1], found 2.0"]),
        (["model.path=config.json", "maxlen=4"], ["maxlen"]),
        (["model.path=config.json", "+model.config.model_type=gema3_text"], ["unknown to transformers"]),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(
    overrides: list[str], expected: list[str], config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("bad.json").write_text("{")
    Path("list.json").write_text("[]")
    assert main(["plan", *overrides]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("kvhybrid plan: ")
    for part in expected:
        assert part in line
    assert {place.name for place in config.parent.iterdir()} == {"config.json", "bad.json", "list.json"}


def test_help_comes_without_torch() -> None:
    code = (
        "import sys; from kvhybrid.cli import main; main(['plan', '--help'])\n"
        "print(sorted({'torch', 'transformers', 'hydra'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert "gemma3_27b" in done.stdout
