"""Text to tokens and back: bytes, a folder's tokenizer, and which of the two a folder has."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from kvhybrid.models.families import families
from kvhybrid.models.loading import load_model
from kvhybrid.text.codec import ByteCodec, TokenizerCodec, codec_of
from tests.kvhybrid.text.tiny_checkpoint import save_tokenizer

TEXTS = ["the cat sat", " two  spaces ", "日本 héllo\t!", ""]


@pytest.mark.parametrize("text", TEXTS)
def test_bytes_come_back_as_the_text(text: str) -> None:
    token_ids = ByteCodec().encode(text)
    assert token_ids == list(text.encode())
    assert ByteCodec().decode(token_ids) == text


def test_bytes_that_are_no_text_and_ids_that_are_no_bytes_are_replaced() -> None:
    assert ByteCodec().decode([0xFF, *b"a", 0xE6, 0x97]) == "\ufffda\ufffd"
    assert ByteCodec().decode([*b"a", 256, 300]) == "a\ufffd\ufffd"


@pytest.mark.parametrize("text", TEXTS)
def test_a_folders_tokenizer_is_that_of_transformers(text: str, tmp_path: Path) -> None:
    save_tokenizer(tmp_path)
    codec, oracle = codec_of(tmp_path, 300), AutoTokenizer.from_pretrained(tmp_path)
    assert isinstance(codec, TokenizerCodec)
    assert codec.encode(text) == oracle(text)["input_ids"]
    assert codec.decode(codec.encode(text)) == text
    assert codec.end_token_ids == {oracle.eos_token_id} == {0}


def test_special_tokens_are_left_out_of_the_text(tmp_path: Path) -> None:
    save_tokenizer(tmp_path)
    codec = codec_of(tmp_path, 300)
    assert codec.decode([*codec.encode("the cat"), 0]) == "the cat"


def test_a_folder_without_a_tokenizer_has_bytes_if_there_are_256_token_ids(tmp_path: Path) -> None:
    assert isinstance(codec_of(tmp_path, 256), ByteCodec)
    for vocab_size in (255, 300, None):
        with pytest.raises(ValueError, match=r"no tokenizer; accepted for prompts: a folder with tokenizer\.json"):
            codec_of(tmp_path, vocab_size)


def test_a_tokenizer_goes_before_bytes(tmp_path: Path) -> None:
    save_tokenizer(tmp_path)
    assert isinstance(codec_of(tmp_path, 256), TokenizerCodec)


def test_a_tokenizer_that_cannot_be_read_is_refused_on_one_line(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ValueError, match="the tokenizer cannot be read: ") as refusal:
        codec_of(tmp_path, 300)
    assert "\n" not in str(refusal.value)


EVIL = "from pathlib import Path\nPath({flag!r}).touch()\nclass Evil:\n    pass\n"


@pytest.mark.parametrize("model_type", families.names())
@pytest.mark.parametrize("lure", ["tokenizer_config.json", "config.json"])
def test_no_code_of_a_folder_ever_runs_and_nothing_is_asked(
    model_type: str, lure: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flag, folder = tmp_path / "ran", tmp_path / "folder"
    folder.mkdir()
    configs: dict[str, dict[str, Any]] = {"config.json": {"model_type": model_type}, "tokenizer_config.json": {}}
    auto_map = {
        "AutoTokenizer": ["evil.Evil", None],
        "AutoConfig": "evil.Evil",
        "AutoModelForCausalLM": "evil.Evil",
    }
    configs[lure] |= {"auto_map": auto_map, "tokenizer_class": "Evil"}
    for name, config in configs.items():
        (folder / name).write_text(json.dumps(config))
    (folder / "evil.py").write_text(EVIL.format(flag=str(flag)))

    questions: list[object] = []

    def ask(*question: object) -> str:
        questions.append(question)
        return "y"

    monkeypatch.setattr("builtins.input", ask)
    with pytest.raises(ValueError, match="the tokenizer"):
        TokenizerCodec(folder)
    with contextlib.suppress(ValueError):
        load_model(folder)
    assert questions == []
    assert not flag.exists()


EMPTY = {
    "GPT-2's": {"tokenizer_config.json": {"tokenizer_class": "GPT2Tokenizer"}},
    "Llama's": {"tokenizer_config.json": {"tokenizer_class": "LlamaTokenizer"}},
    "Gemma's": {"tokenizer_config.json": {}, "config.json": {"model_type": "gemma3_text"}},
    "one of no tokens": {
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast"},
        "tokenizer.json": {
            "version": "1.0",
            "added_tokens": [],
            "model": {"type": "BPE", "vocab": {}, "merges": []},
        },
    },
}


@pytest.mark.parametrize("tokenizer", EMPTY)
def test_a_tokenizer_without_a_vocabulary_is_refused(tokenizer: str, tmp_path: Path) -> None:
    for name, content in EMPTY[tokenizer].items():
        (tmp_path / name).write_text(json.dumps(content))
    with pytest.raises(ValueError, match="the tokenizer has no vocabulary"):
        codec_of(tmp_path, 300)
