"""A distribution from outside brings a spec, a manager, a backend, a model and a config, and all of it runs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SOURCE = Path(__file__).parent / "kvhybrid-landmark"
RUN = [
    "model=landmark_tiny",
    "workload=shared_prefix",
    "workload.num_prefixes=2",
    "workload.requests_per_prefix=2",
    "tracking=none",
]
SEARCH_PATH = "hydra.searchpath=[pkg://kvhybrid_landmark.conf]"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the plug-in as pip installs it, built from a copy: nothing is left in the repository."""
    place = tmp_path_factory.mktemp("landmark")
    copy = shutil.copytree(
        SOURCE, place / "source", ignore=shutil.ignore_patterns("__pycache__", "build", "*.egg-info")
    )
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--no-compile", "--quiet"]
    command = [sys.executable, "-m", "pip", "install", *options, "--target", str(place / "site"), str(copy)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return place / "site"


def python(installed: Path, folder: Path, *arguments: str) -> str:
    """The stdout of a Python that has the plug-in installed; it must succeed."""
    result = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(installed), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def kvhybrid(installed: Path, folder: Path, *arguments: str) -> str:
    return python(installed, folder, "-m", "kvhybrid", *arguments)


def test_its_spec_is_listed(installed: Path, tmp_path: Path) -> None:
    (line,) = [
        line for line in kvhybrid(installed, tmp_path, "specs").splitlines() if line.startswith("landmark ")
    ]
    assert line.split()[1] == "LandmarkManager"
    assert "kvhybrid-landmark 0.1.0" in line


def test_its_spec_and_manager_keep_the_contract(installed: Path, tmp_path: Path) -> None:
    out = kvhybrid(installed, tmp_path, "check-spec", "kvhybrid_landmark.spec:LandmarkSpec", "--count", "40")
    lines = out.splitlines()
    assert len(lines) == 10
    assert all(line.startswith("✓") for line in lines)
    assert "answers and state equal the generic manager's: 40 scenarios" in out


def test_a_hit_needs_the_landmarks_and_the_window_only(installed: Path, tmp_path: Path) -> None:
    group = {"spec": "landmark", "block_size": 4, "window": 4, "landmark": 2, "stride": 16}
    expected = {"hit_tokens": 32, "hit_blocks": [[1, 0, 0, 0, 5, 0, 0, 8]]}
    steps: list[dict[str, Any]] = [
        {"do": "submit", "request": "a", "tokens": [[0, 33]]},
        {"do": "lookup", "request": "a", "expect": {"hit_tokens": 0}},
        {
            "do": "allocate",
            "request": "a",
            "new_tokens": 33,
            "expect": {"new_blocks": [[1, 2, 3, 4, 5, 6, 7, 8, 9]]},
        },
        {"do": "evict", "blocks": [2, 3, 4, 6, 7]},
        {"do": "submit", "request": "b", "tokens": [[0, 33]]},
        {"do": "lookup", "request": "b", "expect": expected},
        {"do": "evict", "blocks": [5]},
        {"do": "lookup", "request": "b", "expect": {"hit_tokens": 4, "hit_blocks": [[1]]}},
    ]
    scenario = {"id": "landmark", "config": {"num_blocks": 12, "groups": [group]}, "steps": steps}
    (tmp_path / "landmark.jsonl").write_text(json.dumps(scenario))
    kvhybrid(installed, tmp_path, "scenario", "landmark.jsonl")


def test_its_model_runs_with_nothing_changed_here(installed: Path, tmp_path: Path) -> None:
    kvhybrid(installed, tmp_path, "run", SEARCH_PATH, f"hydra.run.dir={tmp_path / 'out'}", *RUN)
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["hit_rate"] > 0.2
    assert summary["group/landmark.0/hit_rate"] > 0.2
    assert {group["kind"] for group in summary["groups"]} == {"landmark", "full"}


def test_its_config_is_found_in_a_folder_too(installed: Path, tmp_path: Path) -> None:
    folder = installed / "kvhybrid_landmark" / "conf"
    composed = kvhybrid(installed, tmp_path, "run", "--config-dir", str(folder), *RUN, "--cfg", "job")
    assert "stride: 32" in composed


GENERATE = """
import json, torch
from kvhybrid.engine.engine import Engine
from kvhybrid_landmark.settings import LandmarkSettings
torch.set_num_threads(1)
settings = LandmarkSettings(
    num_hidden_layers=3, sliding_window_pattern=3, sliding_window=8, landmark=2, stride=16, seed=1
)
shared = [7 * i % 300 for i in range(70)]
prompts = [shared + [301 + i, 310 + i] for i in range(3)]

def generated(caching, prompts, count):
    engine = Engine(settings.build(), block_size=4, num_blocks=200, max_batched_tokens=48, max_model_len=128,
                    enable_prefix_caching=caching)
    tokens = [engine.generate([prompt], max_new_tokens=count)[0] for prompt in prompts]
    return tokens, engine.stats().groups[0].tokens_hit

on, hit = generated(True, prompts, 8)
off, none = generated(False, prompts, 8)
again, _ = generated(False, [prompt + tokens[:-1] for prompt, tokens in zip(prompts, off)], 1)
print(json.dumps({"on": on, "off": off, "again": again, "hit": hit, "none": none}))
"""


def test_the_tokens_are_the_same_with_the_cache_on_and_off(installed: Path, tmp_path: Path) -> None:
    found = json.loads(python(installed, tmp_path, "-c", GENERATE))
    assert found["hit"] >= 2 * 64
    assert found["none"] == 0
    assert found["on"] == found["off"]
    assert len({tuple(tokens) for tokens in found["on"]}) > 1, "equal answers to all prompts would prove little"
    assert found["again"] == [tokens[-1:] for tokens in found["off"]], "a prefill reads what decoding read"
