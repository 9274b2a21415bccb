"""Settings: the limits that the schema sets, and how they are read."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from kvhybrid.engine.quality import QualitySettings
from kvhybrid.sessions.run_settings import PoolSettings, RetentionSettings, SamplingSettings, SchedulerSettings
from kvhybrid.settings.model import (
    CheckpointSettings,
    Gemma3nSettings,
    Gemma3Settings,
    JambaSettings,
    Qwen3NextSettings,
)
from kvhybrid.workloads.random import Random


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [("4096", 4096), ("1KiB", 1024), ("2 MB", 2_000_000), ("0.5GiB", 2**29), ("3gib", 3 * 2**30), ("7B", 7)],
)
def test_memory_is_a_number_with_a_unit(text: str, num_bytes: int) -> None:
    assert PoolSettings(num_blocks=None, memory=text).memory_bytes == num_bytes


@pytest.mark.parametrize("text", ["lots", "1TiBs", "-1GiB", ""])
def test_memory_that_cannot_be_read_says_what_is_accepted(text: str) -> None:
    with pytest.raises(ValueError, match=r"pool.memory must be a number with .* GiB, found"):
        PoolSettings(num_blocks=None, memory=text)


def test_a_pool_has_blocks_or_bytes() -> None:
    with pytest.raises(ValueError, match=r"give one of pool.num_blocks and pool.memory"):
        PoolSettings(num_blocks=8, memory="1MiB")
    with pytest.raises(ValueError, match=r"pool.num_blocks=null pool.memory=null"):
        PoolSettings(num_blocks=None)


@pytest.mark.parametrize(
    ("settings", "values", "message"),
    [
        (PoolSettings, {"block_size": 0}, r"pool.block_size must be at least 1, found 0"),
        (PoolSettings, {"num_blocks": 1}, r"pool.num_blocks must be at least 2, found 1"),
        (SchedulerSettings, {"max_num_seqs": 0}, r"scheduler.max_num_seqs must be at least 1, found 0"),
        (SchedulerSettings, {"watermark": 1.01}, r"scheduler.watermark must lie in \[0, 1\], found 1.01"),
        (SchedulerSettings, {"watermark": float("nan")}, r"scheduler.watermark must lie in \[0, 1\], found nan"),
        (SchedulerSettings, {"max_model_len": 0}, r"scheduler.max_model_len must be at least 1"),
        (RetentionSettings, {"interval": -1}, r"retention.interval must be at least 0, found -1"),
        (SamplingSettings, {"temperature": -1.0}, r"sampling.temperature must be at least 0, found -1.0"),
        (SamplingSettings, {"top_k": -1}, r"sampling.top_k must be at least 0, found -1"),
        (Gemma3Settings, {"dtype": "int8"}, r"model.dtype must be one of float32, .*, found 'int8'"),
        (JambaSettings, {"cpu_threads": 0}, r"model.cpu_threads must be at least 1, found 0"),
        (JambaSettings, {"num_experts_per_tok": 5}, r"model.num_experts_per_tok must be at most the 4 experts"),
        (Qwen3NextSettings, {"full_attention_interval": 0}, r"model.full_attention_interval must be at least 1"),
        (Qwen3NextSettings, {"linear_conv_kernel_dim": 1}, r"model.linear_conv_kernel_dim must be at least 2"),
        (Gemma3nSettings, {"altup_num_inputs": 0}, r"model.altup_num_inputs must be at least 1, found 0"),
        (Gemma3nSettings, {"num_kv_shared_layers": -1}, r"model.num_kv_shared_layers must be at least 0"),
        (Random, {"seed": -1}, r"workload.seed must be at least 0, found -1"),
        (Random, {"requests": 0}, r"workload.requests must be at least 1, found 0"),
        (QualitySettings, {"bytes": 1}, r"quality.bytes must be 0 or at least 2, found 1"),
        (QualitySettings, {"excerpt_bytes": 1}, r"quality.excerpt_bytes must be at least 2, found 1"),
    ],
)
def test_a_value_out_of_range_is_named_with_its_limit(
    settings: type, values: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        settings(**values)


def test_a_checkpoint_is_a_folder_with_a_config(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"model.path must be a folder with config.json, found no such folder"):
        CheckpointSettings(path=str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match=r"found a folder without one"):
        CheckpointSettings(path=str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    assert CheckpointSettings(path=str(tmp_path)).path == str(tmp_path)


def test_a_random_model_hands_the_family_its_config_and_nothing_of_ours() -> None:
    config = Gemma3Settings(seed=3, sliding_window=8).config()
    assert config["model_type"] == "gemma3_text"
    assert config["sliding_window"] == 8
    ours = {"seed", "dtype", "cpu_threads"}
    assert set(config) == {field.name for field in fields(Gemma3Settings)} - ours


@pytest.mark.parametrize("settings", [Gemma3Settings, JambaSettings])
def test_a_random_model_is_decided_by_its_seed(settings: type[Gemma3Settings]) -> None:
    first, again, other = (settings(seed=seed).build().state_dict() for seed in (1, 1, 2))
    assert all(first[name].equal(again[name]) for name in first)
    assert any(not first[name].equal(other[name]) for name in first)
