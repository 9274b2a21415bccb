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
        "gemma2": "kvhybrid.models.gemma:Gemma2",
        "gemma3": "kvhybrid.models.gemma:Gemma3",
        "gemma3_text": "kvhybrid.models.gemma:Gemma3",
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


LAYER_KINDS = frozenset(
    {"attention", "full_attention", "sliding_attention", "chunked_attention", "linear_attention", "mamba"}
)
"""What Hugging Face configs call the kinds of layers that some family here has."""


def family_of(config: Mapping[str, Any]) -> type[HybridModel]:
    """The family that reads ``config``.

    ValueError names an unknown ``model_type``, the known ones, and which of its kinds of layers no family has.
    """
    try:
        return families.get(str(config.get("model_type")))
    except ValueError as error:
        raise ValueError(f"{error}{_about_layers(config)}") from error


def _about_layers(config: Mapping[str, Any]) -> str:
    inner = config.get("text_config")
    kinds = set(config.get("layer_types") or (inner or {}).get("layer_types") or ())
    if not kinds:
        return ""
    if missing := sorted(kinds - LAYER_KINDS):
        return f"; kinds of its layers that no family here has: {', '.join(missing)}"
    return f"; there are families with all its kinds of layers: {', '.join(sorted(kinds))}"
