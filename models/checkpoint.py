"""Hugging Face checkpoint folders: config.json and safetensors. Nothing is ever unpickled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


class CheckpointError(ValueError):
    """A checkpoint folder or its weights do not fit. The message names the file or the weights."""


def read_config(folder: Path) -> dict[str, Any]:
    """The dict of ``config.json``."""
    return _read_json(folder / "config.json")


def read_weights(folder: Path) -> dict[str, Tensor]:
    """All tensors of the folder by name, from one file or, without it, from the shards that the index lists."""
    if (folder / SINGLE).exists():
        files = [SINGLE]
    elif (folder / INDEX).exists():
        weight_map = _read_json(folder / INDEX).get("weight_map")
        if not isinstance(weight_map, dict):
            raise CheckpointError(f"{folder / INDEX}: no 'weight_map'")
        files = sorted({str(name) for name in weight_map.values()})
    else:
        raise CheckpointError(f"{folder}: found neither {SINGLE} nor {INDEX}; only safetensors are accepted")
    weights: dict[str, Tensor] = {}
    for file in files:
        if Path(file).name != file:
            raise CheckpointError(f"{folder / INDEX}: {file!r} is not a file name in this folder")
        weights.update(_read_shard(folder / file))
    return weights


def _read_shard(path: Path) -> dict[str, Tensor]:
    if not path.exists():
        raise CheckpointError(f"{path}: missing; {INDEX} lists it")
    try:
        with safe_open(path, framework="pt") as shard:
            return {name: shard.get_tensor(name) for name in shard.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise CheckpointError(f"{path}: not a safetensors file: {error}") from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path}: missing") from None
    except json.JSONDecodeError as error:
        raise CheckpointError(f"{path}: line {error.lineno}: not JSON: {error.msg}") from None
    except RecursionError:
        raise CheckpointError(f"{path}: not a config: it is nested too deeply") from None
    except (OSError, ValueError) as error:  # a folder, other bytes than UTF-8, an integer of thousands of digits
        raise CheckpointError(f"{path}: cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise CheckpointError(f"{path}: expected an object, found {type(found).__name__}")
    return found
