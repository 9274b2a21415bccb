"""The parts of the config schema that both verbs share: models, backends, pool, scheduler."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvhybrid.plugins import Registry

if TYPE_CHECKING:
    from kvhybrid.settings.model import ModelSettings

models: Registry[ModelSettings] = Registry(
    "model",
    "kvhybrid.model_settings",
    "kvhybrid.settings.model:ModelSettings",
    {
        "config": "kvhybrid.settings.model:ConfigSettings",
        "bamba_tiny": "kvhybrid.settings.model:BambaSettings",
        "gemma3_tiny": "kvhybrid.settings.model:Gemma3Settings",
        "gemma3n_tiny": "kvhybrid.settings.model:Gemma3nSettings",
        "gpt_oss_tiny": "kvhybrid.settings.model:GptOssSettings",
        "hf": "kvhybrid.settings.model:CheckpointSettings",
        "jamba_tiny": "kvhybrid.settings.model:JambaSettings",
        "llama4_tiny": "kvhybrid.settings.model:Llama4Settings",
        "qwen3_next_tiny": "kvhybrid.settings.model:Qwen3NextSettings",
        "transformers": "kvhybrid.settings.model:TransformersSettings",
    },
)
