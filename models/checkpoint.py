"""Hugging Face checkpoint folders: config.json and safetensors. Pickle files are never loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from kvhybrid.models.config import section, shown

CONFIG = "config.json"
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


class CheckpointError(ValueError):
    """A checkpoint that cannot be read or does not match the model. The message names the file or the weights."""


def read_config(folder: Path) -> dict[str, Any]:
    """The dict of ``config.json``."""
    return _read_json(folder / CONFIG)


def read_vocab_size(folder: Path) -> Any:
    """``vocab_size`` in ``config.json``, from ``text_config`` if there is one; None if it is missing."""
    config = read_config(folder)
    try:
        return (section(config, "text_config") or config).get("vocab_size")
    except ValueError as error:
        raise CheckpointError(f"{folder / CONFIG}: {error}") from None


def read_end_tokens(folder: Path) -> frozenset[int]:
    """End-of-text tokens, from ``generation_config.json`` or ``config.json``; empty if neither has any."""
    generation = folder / "generation_config.json"
    for path in (generation, folder / CONFIG):
        if path.is_file():
            config = _read_json(path)
            inner = config.get("text_config")
            for part in (config, inner if isinstance(inner, dict) else {}):
                if tokens := end_tokens(part.get("eos_token_id"), f"{path}: "):
                    return tokens
    return frozenset()


def end_tokens(found: Any, where: str = "") -> frozenset[int]:
    """The tokens in an ``eos_token_id``, which is a token id, a list of them, or None.

    Raises ValueError for anything else; the message starts with ``where``.
    """
    ids = [] if found is None else list(found) if isinstance(found, (list, tuple, set, frozenset)) else [found]
    if any(isinstance(token, bool) or not isinstance(token, int) or token < 0 for token in ids):
        raise ValueError(f"{where}eos_token_id must be a token id or a list of token ids, found {shown(found)}")
    return frozenset(ids)


def read_weights(folder: Path) -> dict[str, Tensor]:
    """All tensors in the folder by name, from a single file or else from the shards that the index lists."""
    weights: dict[str, Tensor] = {}
    for path in weight_files(folder):
        weights.update(_read_shard(path))
    return weights


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a checkpoint. Raises CheckpointError if there are none, or one is missing."""
    if (folder / SINGLE).exists():
        files = [SINGLE]
    elif (folder / INDEX).exists():
        weight_map = _read_json(folder / INDEX).get("weight_map")
        if not isinstance(weight_map, dict):
            raise CheckpointError(f"{folder / INDEX}: no 'weight_map'")
        files = sorted({str(name) for name in weight_map.values()})
    else:
        raise CheckpointError(f"{folder}: found neither {SINGLE} nor {INDEX}; only safetensors are accepted")
    for file in files:
        if Path(file).name != file:
            raise CheckpointError(f"{folder / INDEX}: {file!r} is not a file name in this folder")
        if not (folder / file).exists():
            raise CheckpointError(f"{folder / file}: missing; {INDEX} lists it")
        _require_regular(folder / file)
    return [folder / file for file in files]


def _read_shard(path: Path) -> dict[str, Tensor]:
    try:
        with safe_open(path, framework="pt") as shard:
            return {name: shard.get_tensor(name) for name in shard.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise CheckpointError(f"{path}: not a safetensors file: {error}") from error


def _require_regular(path: Path) -> None:
    """Opening a FIFO waits for its other end, and a device may never end."""
    if path.exists() and not path.is_file():
        raise CheckpointError(f"{path}: cannot be read: it is not a regular file")


def _read_json(path: Path) -> dict[str, Any]:
    _require_regular(path)
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path}: missing") from None
    except json.JSONDecodeError as error:
        raise CheckpointError(f"{path}: line {error.lineno}: not JSON: {error.msg}") from None
    except RecursionError:
        raise CheckpointError(f"{path}: not a config: it is nested too deeply") from None
    except (OSError, ValueError) as error:  # e.g. a folder, invalid UTF-8, an integer of thousands of digits
        raise CheckpointError(f"{path}: cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise CheckpointError(f"{path}: expected an object, found {type(found).__name__}")
    return found
