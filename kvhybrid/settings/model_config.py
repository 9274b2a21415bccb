"""The content of a model's ``config.json``: from a file, a folder, or a preset that ships with the package."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from kvhybrid.errors import nearest
from kvhybrid.files import UnreadableError, parse_json, read_text

CONFIG = "config.json"


def preset_names() -> tuple[str, ...]:
    """The presets: well-known models, by the name of their file."""
    places = files("kvhybrid.conf.presets").joinpath("model").iterdir()
    return tuple(sorted(place.name.removesuffix(".yaml") for place in places if place.name.endswith(".yaml")))


def read_model_config(key: str, path: str) -> dict[str, Any]:
    """The config at ``path``: a JSON file, a folder with ``config.json``, or the name of a preset.

    Raises ValueError, with ``key`` in the message, for anything else.
    """
    place = Path(path)
    if not place.exists() and path in preset_names():
        return _preset(path)
    if place.is_dir():
        place /= CONFIG
    try:
        content = parse_json(read_text(place))
    except UnreadableError as error:
        hint = nearest(path, preset_names()).partition(" accepted:")[0] if not place.exists() else ";"
        raise ValueError(
            f"{key}: {place}: cannot be read: {error}{hint} accepted: a config.json, its folder, or a preset"
        ) from error
    if not isinstance(content, Mapping):
        raise ValueError(f"{key}: {place}: expected an object, found {type(content).__name__}")
    return dict(content)


def _preset(name: str) -> dict[str, Any]:
    import yaml

    place = files("kvhybrid.conf.presets").joinpath("model").joinpath(f"{name}.yaml")
    content: dict[str, Any] = yaml.safe_load(place.read_text(encoding="utf-8"))["config"]
    return content
