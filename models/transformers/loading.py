"""Load a checkpoint folder with the code of transformers: safetensors only, and no code from the folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from kvhybrid.models.checkpoint import CONFIG, CheckpointError, read_config, weight_files

NAMES_SHOWN = 10
TEXT_ONLY = {
    r"^(?:model\.)?language_model\.model\.": "model.",
    r"^model\.language_model\.": "model.",
    r"^language_model\.lm_head\.": "lm_head.",
}
"""Names of the decoder's weights in checkpoints of models that also see or hear."""


def knows(model_type: Any) -> bool:
    """Whether transformers has a config of this type."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    return isinstance(model_type, str) and model_type in CONFIG_MAPPING


def load_decoder(folder: Path, dtype: torch.dtype) -> Any:
    """The decoder in a checkpoint folder, as transformers' model, on the CPU.

    Raises CheckpointError for a config that transformers refuses, for compressed weights, for files that are
    missing or no safetensors, and for weights that are missing or of the wrong shape.
    """
    config = read_config(folder)
    if config.get("quantization_config") is not None:
        raise CheckpointError(
            f"{folder / CONFIG}: quantization_config: transformers' code runs only weights that are not compressed"
        )
    weight_files(folder)
    from transformers import AutoConfig, AutoModelForCausalLM

    offline = {"local_files_only": True, "trust_remote_code": False}
    try:
        parsed = AutoConfig.from_pretrained(folder, **offline).get_text_config(decoder=True)
        model, info = AutoModelForCausalLM.from_pretrained(
            folder,
            config=parsed,
            dtype=dtype,
            use_safetensors=True,
            output_loading_info=True,
            key_mapping=TEXT_ONLY if "text_config" in config else None,
            **offline,
        )
    except (ValueError, OSError, RuntimeError, KeyError, TypeError, ImportError) as error:
        raise CheckpointError(f"{folder}: transformers cannot load it: {' '.join(str(error).split())}") from error
    if missing := sorted(info["missing_keys"]):
        more = len(missing) - NAMES_SHOWN
        names = ", ".join(missing[:NAMES_SHOWN]) + (f", and {more} more" if more > 0 else "")
        raise CheckpointError(f"{folder}: {len(missing)} weights are missing: {names}")
    return model
