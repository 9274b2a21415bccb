"""End tokens: which a folder names, and that each of them ends a request, as transformers' ``generate`` does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from kvhybrid.cli import main
from kvhybrid.engine.engine import Engine
from kvhybrid.models.checkpoint import read_end_tokens
from kvhybrid.text.codec import ByteCodec, codec_of
from tests.kvhybrid.text.tiny_checkpoint import MAX_LEN, save_model, save_tokenizer

PROMPTS = [[5, 9, 3], [100, 7, 7, 42], [250, 1]]
NEW_TOKENS = 12


def write(folder: Path, name: str, **keys: Any) -> None:
    """Set keys of a JSON file in ``folder``."""
    path = folder / name
    found = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**found, **keys}))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_model(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [
        (None, {}, set()),
        (None, {"eos_token_id": 3}, {3}),
        (None, {"eos_token_id": [3, 9]}, {3, 9}),
        (None, {"eos_token_id": None, "text_config": {"eos_token_id": [4]}}, {4}),
        ({"eos_token_id": 5}, {"eos_token_id": 3}, {5}),
        ({"eos_token_id": [5, 0]}, {"eos_token_id": 3}, {5, 0}),
        ({"eos_token_id": None}, {"eos_token_id": 3}, {3}),
        ({}, {"eos_token_id": []}, set()),
    ],
)
def test_the_generation_config_says_which_or_else_the_config(
    generation: dict[str, Any] | None, config: dict[str, Any], expected: set[int], tmp_path: Path
) -> None:
    write(tmp_path, "config.json", **config)
    if generation is not None:
        write(tmp_path, "generation_config.json", **generation)
    assert read_end_tokens(tmp_path) == expected


@pytest.mark.parametrize("name", ["generation_config.json", "config.json"])
@pytest.mark.parametrize("value", ["</s>", -1, 1.5, True, [1, "2"], [None], {"a": 1}, [[1]]])
def test_what_is_no_token_is_refused_with_the_file(name: str, value: Any, tmp_path: Path) -> None:
    write(tmp_path, name, eos_token_id=value)
    with pytest.raises(
        ValueError, match=rf"{name}: eos_token_id must be a token id or a list of token ids, found "
    ):
        read_end_tokens(tmp_path)


def test_every_end_token_ends_a_request_of_a_folder_as_in_transformers(folder: Path) -> None:
    unended = Engine.from_hf(folder, max_model_len=MAX_LEN).generate(PROMPTS, NEW_TOKENS)
    ends = [unended[0][2], unended[1][4]]
    write(folder, "generation_config.json", eos_token_id=ends)
    oracle = AutoModelForCausalLM.from_pretrained(folder)
    expected = []
    for prompt in PROMPTS:
        ids = torch.tensor([prompt])
        out = oracle.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW_TOKENS, do_sample=False, pad_token_id=0
        )
        expected.append(out[0, len(prompt) :].tolist())
    assert min(map(len, expected)) < NEW_TOKENS
    assert Engine.from_hf(folder, max_model_len=MAX_LEN).generate(PROMPTS, NEW_TOKENS) == expected
    assert Engine.from_hf(oracle, max_model_len=MAX_LEN).generate(PROMPTS, NEW_TOKENS) == expected
    given = Engine.from_hf(folder, max_model_len=MAX_LEN, eos_token_id=ends[1:])
    assert given.generate(PROMPTS[:1], 3) == [unended[0][:3]], "an option goes before the folder"
    none = Engine.from_hf(folder, max_model_len=MAX_LEN, eos_token_id=None)
    assert none.generate(PROMPTS, NEW_TOKENS) == unended


def test_a_text_ends_with_what_the_folder_names_or_else_with_the_tokenizers_token(folder: Path) -> None:
    save_tokenizer(folder)
    assert codec_of(folder, 300).end_token_ids == {0}
    write(folder, "config.json", eos_token_id=[1, 106])
    assert codec_of(folder, 300).end_token_ids == {1, 106}
    write(folder, "generation_config.json", eos_token_id=7)
    assert codec_of(folder, 300).end_token_ids == {7}


def test_a_model_of_bytes_ends_with_what_the_folder_names(tmp_path: Path) -> None:
    write(tmp_path, "config.json", eos_token_id=10)
    codec = codec_of(tmp_path, 256)
    assert isinstance(codec, ByteCodec)
    assert codec.end_token_ids == {10}


def test_a_run_stops_at_each_of_them(folder: Path, tmp_path: Path) -> None:
    save_tokenizer(folder)
    (tmp_path / "prompts.txt").write_text("the cat sat\nthe dog\n")
    command = [
        "run",
        "model=hf",
        f"model.path={folder}",
        "workload=prompts",
        f"workload.path={tmp_path}/prompts.txt",
    ]
    command += ["workload.max_new_tokens=8", "tracking=none", "quality=none"]

    def lengths(out: str) -> list[int]:
        assert main([*command, f"hydra.run.dir={tmp_path / out}"]) == 0
        lines = (tmp_path / out / "outputs.jsonl").read_text().splitlines()
        return [json.loads(line)["output_tokens"] for line in lines]

    assert lengths("long") == [8, 8]
    codec = codec_of(folder, 300)
    prompts = [codec.encode(text) for text in ("the cat sat", "the dog")]
    first, second = Engine.from_hf(folder, max_model_len=MAX_LEN).generate(prompts, 8)
    write(folder, "generation_config.json", eos_token_id=[first[0], second[0]])
    assert lengths("short") == [1, 1]
