"""Small configs and models of transformers' decoders, as `runs/models/small.py` has them, and of wrappers."""

from __future__ import annotations

from typing import Any

from runs.models.small import DELTA, FULL, HYBRIDS, ONE_GROUP, REFUSED, WINDOW, tiny_config, tiny_model

__all__ = ["DELTA", "FULL", "HYBRIDS", "ONE_GROUP", "REFUSED", "WINDOW", "tiny_config", "tiny_model", "wrapper_of"]


def wrapper_of(config: Any) -> dict[str, Any]:
    """The config of a model that also sees, around the decoder's."""
    return {"model_type": config.model_type.removesuffix("_text"), "text_config": config.to_dict()}
