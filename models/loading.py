"""Load a model from a checkpoint folder or a transformers model object, or with random weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kvhybrid.models.base import BackendChoice, HybridModel
from kvhybrid.models.checkpoint import CONFIG, CheckpointError, read_config, read_weights
from kvhybrid.models.families import family_of
from kvhybrid.models.initialization import fill_randomly

NAMES_SHOWN = 10


def load_model(
    path: str | Path, dtype: torch.dtype = torch.float32, *, backends: BackendChoice | None = None
) -> HybridModel:
    """Load a Hugging Face checkpoint folder, with weights of type ``dtype``, on the CPU.

    Raises CheckpointError (a ValueError) for an unsupported config, and for files or weights that are missing,
    unexpected or of the wrong shape.
    """
    folder = Path(path)
    model = check_config(folder, backends)
    return _filled(model, read_weights(folder), dtype)


def check_config(folder: Path, backends: BackendChoice | None = None) -> HybridModel:
    """Build the model of a checkpoint folder on the meta device, without weights.

    Raises CheckpointError, with the file, for an unsupported config.
    """
    config = read_config(folder)
    try:
        return unfilled_model(config, backends)
    except ValueError as error:
        raise CheckpointError(f"{folder / CONFIG}: {error}") from error


def model_from_hf(
    model: Any, dtype: torch.dtype | None = None, *, backends: BackendChoice | None = None
) -> HybridModel:
    """Convert a transformers model object, on its device. Weights that need no conversion are shared.

    ``dtype`` is the model's own by default.
    """
    config = model.config.to_dict()
    return _filled(unfilled_model(config, backends), model.state_dict(), dtype or model.dtype)


def model_from_config(
    config: Mapping[str, Any],
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    *,
    backends: BackendChoice | None = None,
) -> HybridModel:
    """Build an untrained model of a Hugging Face config, with random weights from ``seed``."""
    model = _from_config(config, backends)
    fill_randomly(model, seed)
    return _ready(model.to(dtype))


def unfilled_model(config: Mapping[str, Any], backends: BackendChoice | None = None) -> HybridModel:
    """Build the model of a config on the meta device, without weights. Raises ValueError for an invalid config."""
    with torch.device("meta"):  # no memory for weights that are replaced at once
        return _from_config(config, backends)


def _from_config(config: Mapping[str, Any], backends: BackendChoice | None) -> HybridModel:
    family = family_of(config)
    try:
        return family.from_config(config, backends)
    except (RuntimeError, MemoryError, OverflowError) as error:  # torch refuses a shape
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ValueError(f"no model can be built with the sizes in the config: {reason}") from error


def _filled(model: HybridModel, weights: Mapping[str, Tensor], dtype: torch.dtype) -> HybridModel:
    mapped = model.map_weights(weights)
    _check(model.state_dict(), mapped)
    model.load_state_dict({name: weight.detach().to(dtype) for name, weight in mapped.items()}, assign=True)
    return _ready(model)


def _ready(model: HybridModel) -> HybridModel:
    return model.requires_grad_(False).eval()


def _check(expected: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> None:
    """Refuse missing, unexpected and misshapen weights."""
    misshapen = [
        f"{name} {tuple(found[name].shape)} instead of {tuple(weight.shape)}"
        for name, weight in expected.items()
        if name in found and found[name].shape != weight.shape
    ]
    faults = {
        "missing": [name for name in expected if name not in found],
        "unexpected": [name for name in found if name not in expected],
        "misshapen": misshapen,
    }
    lines = [f"{len(names)} {fault}: {_shown(names)}" for fault, names in faults.items() if names]
    if lines:
        raise CheckpointError("weights do not fit the config; " + "; ".join(lines))


def _shown(names: list[str]) -> str:
    more = len(names) - NAMES_SHOWN
    return ", ".join(names[:NAMES_SHOWN]) + (f", and {more} more" if more > 0 else "")
