"""Hit rates of every cache group of a whole run on the device, logged to wandb (offline)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kvhybrid.engine.quality import QualitySettings
from kvhybrid.sessions.run import run
from kvhybrid.sessions.run_settings import PoolSettings, RunSettings
from kvhybrid.settings.backends import BackendSettings
from kvhybrid.settings.model import Gemma3Settings, JambaSettings, ModelSettings
from kvhybrid.tracking.jsonl import JsonLinesTracker
from kvhybrid.tracking.wandb import WandbTracker
from kvhybrid.workloads.shared_prefix import SharedPrefix

SIZES = {"hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 4096}


@dataclass(frozen=True)
class GroupHits:
    model: str
    group: str
    hit_rate: float
    folder: Path


def models(dtype: str) -> dict[str, ModelSettings]:
    gemma = Gemma3Settings(**SIZES, dtype=dtype, head_dim=64, sliding_window=512)
    return {"gemma3": gemma, "jamba": JambaSettings(**SIZES, dtype=dtype)}


def hit_rates(
    name: str, model: ModelSettings, workload: SharedPrefix, device: str, block_size: int, folder: Path
) -> list[GroupHits]:
    """One run of ``workload`` into ``folder``, hits of 16 tokens, on the backends that ``auto`` takes."""
    summary = run(
        RunSettings(
            model=model,
            workload=workload,
            pool=PoolSettings(block_size=block_size, hash_block_size=16, num_blocks=None, memory="512MiB"),
            quality=QualitySettings(bytes=0),
            backends=BackendSettings(attention="auto", mamba="auto"),
            tracking={"wandb": WandbTracker(), "jsonl": JsonLinesTracker()},
            name=f"gpu_check {name}",
            device=device,
        ),
        folder,
    )
    return [
        GroupHits(name, group.name, counted.hit_rate, summary.folder)
        for group, counted in zip(summary.groups, summary.cache.groups, strict=True)
    ]
