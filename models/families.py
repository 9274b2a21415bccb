"""The model families, by the ``model_type`` of a Hugging Face config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvhybrid.models.base import HybridModel
from kvhybrid.models.registry import LazyRegistry

families = LazyRegistry(
    "model_type",
    "kvhybrid.models",
    {
        "bamba": "kvhybrid.models.bamba:Bamba",
        "gemma2": "kvhybrid.models.gemma:Gemma",
        "gemma3": "kvhybrid.models.gemma:Gemma",
        "gemma3_text": "kvhybrid.models.gemma:Gemma",
        "gemma3n": "kvhybrid.models.gemma3n:Gemma3n",
        "gemma3n_text": "kvhybrid.models.gemma3n:Gemma3n",
        "gpt_oss": "kvhybrid.models.gpt_oss:GptOss",
        "granitemoehybrid": "kvhybrid.models.granite_moe_hybrid:GraniteMoeHybrid",
        "jamba": "kvhybrid.models.jamba:Jamba",
        "llama4": "kvhybrid.models.llama4:Llama4",
        "llama4_text": "kvhybrid.models.llama4:Llama4",
        "qwen3_next": "kvhybrid.models.qwen3_next:Qwen3Next",
        "t5gemma": "kvhybrid.models.t5gemma:T5Gemma",
        "whisper": "kvhybrid.models.whisper:Whisper",
    },
)


def family_of(config: Mapping[str, Any]) -> type[HybridModel]:
    """The family that reads ``config``; ValueError names an unknown ``model_type`` and the known ones."""
    return families.get(str(config.get("model_type")))
