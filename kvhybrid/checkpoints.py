"""Models of Hugging Face: with a family of ours, or else with the code of transformers."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from kvhybrid.models.base import BackendChoice, HybridModel
from kvhybrid.models.checkpoint import read_config
from kvhybrid.models.families import families
from kvhybrid.models.loading import load_model, model_from_hf
from kvhybrid.planning.rules import CacheOptions, layer_specs
from kvhybrid.plugins import UnknownPluginError
from kvhybrid.specs import KVCacheSpec

if TYPE_CHECKING:
    from kvhybrid.models.transformers.model import TransformersModel

TORCH_ONLY = BackendChoice()

log = logging.getLogger(__name__)


def load_checkpoint(path: str | Path, dtype: torch.dtype, backends: BackendChoice | None = None) -> HybridModel:
    """The model in a checkpoint folder, on the CPU. Logs a warning if no family of ours reads it.

    Raises CheckpointError, PlanningError or PluginError, which are ValueErrors.
    """
    folder = Path(path)
    if needs_transformers(read_config(folder)):
        return load_with_transformers(folder, dtype, backends)
    return load_model(folder, dtype, backends=backends)


def adopt(model: Any, dtype: torch.dtype | None = None, backends: BackendChoice | None = None) -> HybridModel:
    """A transformers model object as a model of the engine, by default in its own dtype."""
    if needs_transformers(model.config.to_dict()):
        return with_transformers(model if dtype is None else model.to(dtype), backends)
    return model_from_hf(model, dtype, backends=backends)


def needs_transformers(config: Mapping[str, Any]) -> bool:
    """Whether transformers knows the ``model_type``, and no family of ours does. Says so in the log."""
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        return False
    try:
        families.get(model_type)
    except UnknownPluginError:
        from kvhybrid.models.transformers.loading import knows

        if knows(model_type):
            log.warning(
                "model_type %r: no family of ours reads it, so transformers' own code runs it, one request at a "
                "time (model=transformers)",
                model_type,
            )
            return True
    return False


def load_with_transformers(
    folder: Path, dtype: torch.dtype, backends: BackendChoice | None = None
) -> TransformersModel:
    """The model in a checkpoint folder, with the code of transformers. What it keeps is observed before its
    weights are read."""
    from kvhybrid.models.transformers.loading import load_decoder
    from kvhybrid.planning.observed import observe

    observe(read_config(folder))
    return with_transformers(load_decoder(folder, dtype), backends)


def with_transformers(model: Any, backends: BackendChoice | None = None) -> TransformersModel:
    """A transformers model object that runs with its own code; only its cache is ours."""
    if backends not in (None, TORCH_ONLY):
        raise ValueError(f"backends: transformers' code brings its own kernels; accepted: torch, found {backends}")
    from kvhybrid.models.transformers.model import TransformersModel
    from kvhybrid.planning.observed import observe

    config = model.config.to_dict()

    def specs(block_size: int, dtype: str) -> Mapping[str, KVCacheSpec]:
        return layer_specs(observe(config, dtype), CacheOptions(block_size=block_size))

    return TransformersModel(model, specs)
