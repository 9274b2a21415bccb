"""A mistake in a config: exit code 2, one line that names the key, what was found and what is accepted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kvhybrid.cli import main

MISTAKES = {
    "a misspelt key": (
        ["pool.blok_size=16"],
        ["pool.blok_size: no such key", "did you mean pool.block_size?", "accepted: block_size, num_blocks"],
    ),
    "a misspelt section": (["schedular.max_num_seqs=2"], ["schedular: no such key", "did you mean scheduler?"]),
    "a misspelt group": (["modle=jamba_tiny"], ["modle: no such key", "did you mean model?"]),
    "a key of another choice": (
        ["workload.turns=2"],
        ["workload.turns: no such key", "accepted: kind, seed, num_prefixes"],
    ),
    "a key forced in": (["+pool.colour=red"], ["pool.colour: no such key", "accepted: block_size"]),
    "a tracker that is not there": (["tracking.csv=1"], ["tracking.csv: no such key; accepted: jsonl, wandb"]),
    "no such choice": (
        ["model=nope"],
        [
            "model=nope: no such choice",
            "accepted: bamba_tiny, config, gemma3_bytes, gemma3_tiny, ",
            ", hf, jamba_bytes, ",
        ],
    ),
    "nearly a choice": (["model=gema3_tiny"], ["did you mean model=gemma3_tiny?"]),
    "a word for a number": (
        ["pool.block_size=big"],
        ["pool.block_size must be a whole number, found big"],
    ),
    "a broken number": (["pool.num_blocks=1.5"], ["pool.num_blocks must be a whole number or null, found 1.5"]),
    "null": (["seed=null"], ["seed must be a whole number, found null"]),
    "a word for a truth": (
        ["pool.enable_prefix_caching=perhaps"],
        ["pool.enable_prefix_caching must be true or false, found perhaps"],
    ),
    "a number for a list": (["tracking.wandb.tags=3"], ["tracking.wandb.tags must be a list"]),
    "several values without a sweep": (
        ["pool.block_size=16,32"],
        ["pool.block_size=16,32 has several values", "-m pool.block_size=16,32"],
    ),
    "two choices at once": (["workload=[random,few_shot]"], ["workload takes one choice, found few_shot"]),
    "no equals sign": (["pool.block_size"], ["cannot read 'pool.block_size'"]),
    "an unknown reference": (["name=${nope}"], ["Interpolation key 'nope' not found"]),
    "a value out of range": (["pool.block_size=0"], ["pool.block_size must be at least 1, found 0"]),
    "a path left out": (["model=hf"], ["model.path is missing: give model.path=VALUE"]),
    "a path that is not there": (
        ["model=hf", "model.path=/no/such/folder"],
        ["model.path must be a folder with config.json", "/no/such/folder"],
    ),
    "memory that cannot be read": (["pool=memory", "pool.memory=lots"], ["pool.memory must be a number with"]),
    "more than all of a GPU": (
        ["pool=gpu", "pool.utilization=1.5"],
        ["pool.utilization must lie in (0, 1], found"],
    ),
    "a reserve that cannot be read": (
        ["pool=gpu", "pool.reserve=some"],
        ["pool.reserve must be a number with B, KB"],
    ),
    "no such plug-in": (
        ["eviction=wrong"],
        ["eviction=wrong: no such choice; accepted: ", "lru, ", ", module:Class"],
    ),
    "no such backend": (["backends.attention=WRONG"], ["backends.attention: unknown attention backend 'WRONG'"]),
    "no such backend of a checkpoint": (
        ["model=gemma3_bytes", "backends.mamba=WRONG"],
        ["backends.mamba: unknown mamba backend 'WRONG'"],
    ),
    "a tracker that was not chosen": (
        ["tracking=jsonl", "tracking.wandb.mode=offline"],
        ["tracking.wandb: wandb is not among the trackers", "tracking=[jsonl,wandb]"],
    ),
    "a pool that is too small": (
        ["model=gemma3_tiny", "workload=random", "pool.num_blocks=60"],
        ["the pool has 60", "Lower scheduler.max_model_len to", "(pool.num_blocks = 92)"],
    ),
    "keys of odd sizes": (["pool.hash_block_size=7"], ["pool.hash_block_size = 7 must divide"]),
    "blocks and bytes": (["pool.memory=1MiB"], ["give one of pool.num_blocks and pool.memory"]),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_it_is_one_line_and_leaves_nothing(
    mistake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    overrides, expected = MISTAKES[mistake]
    assert main(["run", *overrides]) == 2
    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    assert line.startswith("kvhybrid run: ")
    for part in expected:
        assert part in line
    assert captured.out == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("verb", "overrides", "key"),
    [
        ("run", [], "hydra.run.dir"),
        ("plan", ["model=llama3_8b"], "hydra.run.dir"),
        ("run", ["-m", "seed=1,2"], "hydra.sweep.dir"),
    ],
)
@pytest.mark.parametrize("place", ["file", "file/run"])
def test_a_file_in_place_of_a_run_folder_names_the_key(
    verb: str, overrides: list[str], key: str, place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("kept")
    assert main([verb, *overrides, f"{key}={tmp_path / place}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{key} must be a new or empty folder, found a file" in line
    assert (tmp_path / "file").read_text() == "kept"


@pytest.mark.parametrize("overrides", [["-m", "pool.blok_size=1,2"], ["model=gemma3_tiny,nope", "-m"]])
def test_a_sweep_that_cannot_start_leaves_nothing(
    overrides: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["run", *overrides]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "no such" in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("yaml", "expected"),
    [
        (
            "pool:\n  blok_size: 8\n",
            "experiment/mine.yaml: pool.blok_size: no such key; did you mean pool.block_size?",
        ),
        ("pool:\n  block_size: big\n", "experiment/mine.yaml: pool.block_size must be a whole number, found big"),
        ("pool: [\n", "experiment/mine.yaml"),
        ("workload:\n  colour: red\n", "experiment/mine.yaml: workload.colour: no such key; accepted: kind, seed"),
        (
            "workload:\n  requests_per_prefix: few\n",
            "requests_per_prefix must be a whole number, found few",
        ),
    ],
)
def test_a_mistake_in_a_file_names_the_file(
    yaml: str,
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    conf = tmp_path / "conf"
    (conf / "experiment").mkdir(parents=True)
    (conf / "experiment" / "mine.yaml").write_text(f"# @package _global_\n{yaml}")
    monkeypatch.chdir(tmp_path)
    assert main(["run", "--config-dir", str(conf), "experiment=mine"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert expected in line
    assert [place.name for place in tmp_path.iterdir()] == ["conf"]


def test_the_command_itself_prints_no_traceback(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kvhybrid", "run", "pool.blok_size=1"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "pool.blok_size" in line
    assert list(tmp_path.iterdir()) == []
