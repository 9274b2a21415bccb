"""A checkpoint that cannot be used: one line that names the file and the key, exit code 2, nothing left behind."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from kvhybrid.cli import main
from tests.kvhybrid.text.tiny_checkpoint import save_model, save_tokenizer

CONFIG = "config.json"


COMMAND = ["run", "model=hf", "model.path=.", "tracking=none"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "checkpoint"
    path.mkdir()
    save_model(path)
    return path


@pytest.mark.parametrize("kind", ["FIFO", "device", "folder"])
@pytest.mark.parametrize("name", ["model.safetensors", "model.safetensors.index.json", "tokenizer_config.json"])
def test_what_is_no_regular_file_is_refused_rather_than_waited_for(
    name: str, kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    save_tokenizer(folder)
    (folder / "prompts.txt").write_text("the cat\n")
    if name.startswith("model"):
        (folder / "model.safetensors").unlink()
    (folder / name).unlink(missing_ok=True)
    if kind == "FIFO":
        os.mkfifo(folder / name)
    elif kind == "device":
        (folder / name).symlink_to("/dev/zero")
    else:
        (folder / name).mkdir()
    monkeypatch.chdir(folder)
    assert main([*COMMAND, "workload=prompts", "workload.path=prompts.txt"]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert name in line or (kind == "folder" and "the tokenizer cannot read a text" in line)


COUNT = r"must be an integer from 1 to \d+"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"hidden_size": -32}, rf"hidden_size {COUNT}, found -32"),
        ({"hidden_size": "32"}, rf"hidden_size {COUNT}, found '32'"),
        ({"hidden_size": None}, rf"hidden_size {COUNT}, found null"),
        ({"hidden_size": 10**30}, rf"hidden_size {COUNT}, found 10{{30}}"),
        ({"hidden_size": 2**31 - 2, "intermediate_size": 2**31 - 1}, "no model can be built with the sizes in"),
        ({"num_hidden_layers": 0}, rf"num_hidden_layers {COUNT}, found 0"),
        ({"num_hidden_layers": 2**31 - 1}, "num_hidden_layers must be at most 10000, found 2147483647"),
        ({"num_key_value_heads": 3}, "num_attention_heads must be a multiple of num_key_value_heads = 3"),
        ({"sliding_window": 0}, rf"sliding_window {COUNT}, or null, found 0"),
        (
            {"sliding_window": None},
            "layer_types lists 'sliding_attention', which needs sliding_window, found null",
        ),
        ({"layer_types": "full_attention"}, "layer_types must be a list, .*, found 'full_attention'"),
        ({"layer_types": [1, 2]}, r"layer_types must be a list, each entry a string, or null, found \[1, 2\]"),
        ({"rms_norm_eps": "1e-6"}, "rms_norm_eps must be a finite number above 0, found '1e-6'"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings must be true or false, found 'yes'"),
        ({"rope_parameters": {"full_attention": 5}}, "full_attention must be an object, found 5"),
        ({"rope_scaling": {"rope_type": "linear", "factor": -8}}, r"rope_scaling\.factor must be a finite number"),
        ({"text_config": ["a"]}, r"text_config must be an object, found \['a'\]"),
        ({"text_config": {"hidden_size": True}}, rf"text_config\.hidden_size {COUNT}, found true"),
        ({"eos_token_id": "</s>"}, "eos_token_id must be a token id or a list of token ids, found '</s>'"),
        ({"model_type": 7}, "model_type must be a string, found 7"),
        ({"model_type": "lfm9", "layer_types": 7}, "unknown model_type 'lfm9'; accepted: bamba, "),
    ],
)
def test_a_config_that_cannot_be_followed_is_one_line(
    changes: dict[str, Any],
    said: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    save_tokenizer(folder)
    config = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps({**config, **changes}))
    (folder / "prompts.txt").write_text("the cat\n")
    monkeypatch.chdir(folder)
    before = sorted(folder.iterdir())
    assert main([*COMMAND, "workload=prompts", "workload.path=prompts.txt"]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert re.search(rf"{CONFIG}: {said}", line), line
    assert sorted(folder.iterdir()) == before
