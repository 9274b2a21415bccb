"""The registry of model families, by the ``model_type`` of a Hugging Face config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kvhybrid.plugins import BUILT_IN, PluginError, Registry, UnknownPluginError

if TYPE_CHECKING:
    from kvhybrid.models.base import HybridModel

families: Registry[HybridModel] = Registry(
    "model_type",
    "kvhybrid.models",
    "kvhybrid.models.base:HybridModel",
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
"""Layer types in Hugging Face configs that at least one family supports."""


def family_of(config: Mapping[str, Any]) -> type[HybridModel]:
    """The family that reads ``config``.

    Raises:
        ValueError: The ``model_type`` is not a string.
        PluginError: The ``model_type`` is unknown; the message has the known ones, the unsupported layer types,
            and what can be done.
    """
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        from kvhybrid.models.config import shown  # imports torch, which listing the families does not need

        raise ValueError(f"model_type must be a string, found {shown(model_type)}")
    try:
        return families.get(model_type)
    except UnknownPluginError as error:
        raise PluginError(f"{error}; {_about_layers(config)}{_ways_out()}") from None


def _about_layers(config: Mapping[str, Any]) -> str:
    inner = config.get("text_config")
    listed = config.get("layer_types") or (isinstance(inner, Mapping) and inner.get("layer_types")) or ()
    kinds = {kind for kind in listed if isinstance(kind, str)} if isinstance(listed, (list, tuple)) else set()
    if not kinds:
        return ""
    if missing := sorted(kinds - LAYER_KINDS):
        return f"its layer types that no family supports: {', '.join(missing)}; "
    return f"all its layer types are supported by families: {', '.join(sorted(kinds))}; "


def _ways_out() -> str:
    plugged_in = [f"{entry.name} ({entry.target})" for entry in families.entries() if entry.origin != BUILT_IN]
    return (
        f"a family of your own is one file, see docs/add-a-model.md; installed as plug-ins "
        f"({families.group}): {', '.join(plugged_in) or 'none'}"
    )
