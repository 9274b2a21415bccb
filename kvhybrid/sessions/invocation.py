"""The invocation of a run: its resolved configuration and the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from inspect import isabstract
from typing import Any, get_type_hints

from kvhybrid.plugins import path_of


@dataclass(frozen=True)
class Invocation:
    """The resolved configuration of a run, and the command that it comes from."""

    verb: str
    config: Mapping[str, Any]
    """The configuration as plain data. Trackers get it too."""
    choices: Mapping[str, str] = field(default_factory=dict)
    """The choice in each Hydra group."""
    overrides: tuple[str, ...] = ()
    """Configuration overrides from the command line."""

    @classmethod
    def from_settings(cls, verb: str, settings: Any) -> Invocation:
        """The invocation for settings that were created in Python."""
        return cls(verb, plain_settings(settings))

    def yaml(self) -> str:
        """``config.yaml``, as a primary config for Hydra, so that the run can be started again from its folder.

        Plug-ins are given by their ``kind``, which needs no other file.
        """
        from omegaconf import OmegaConf

        quiet = [{f"override hydra/{logger}": "none"} for logger in ("hydra_logging", "job_logging")]
        content = {
            "defaults": [f"{self.verb}_schema", "outputs", *quiet, "_self_"],
            "hydra": {"job": {"name": self.verb}},
            **self.config,
        }
        head = f"# To run it again: kvhybrid {self.verb} --config-dir THIS_FOLDER --config-name config\n"
        body: str = OmegaConf.to_yaml(OmegaConf.create(content))
        return head + body


def plain_settings(settings: Any) -> dict[str, Any]:
    """Settings as plain data, in the format of a config: plug-ins are ``kind`` and their parameters."""
    kinds = get_type_hints(type(settings))
    content: dict[str, Any] = {}
    for part in fields(settings):
        value = getattr(settings, part.name)
        if part.name == "tracking":
            content[part.name] = {name: _plugin(tracker) for name, tracker in value.items()}
        elif isabstract(kinds[part.name]):
            content[part.name] = _plugin(value)
        elif hasattr(value, "parameters"):
            plain = _plain(value)
            parameters = plain.pop("parameters")
            content[part.name] = {**plain, **parameters}
        else:
            content[part.name] = _plain(value)
    return content


def _plugin(part: Any) -> dict[str, Any]:
    return {"kind": path_of(type(part)), **(_plain(part) if is_dataclass(part) else {})}


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {part.name: _plain(getattr(value, part.name)) for part in fields(value) if part.init}
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    known = value is None or isinstance(value, (str, int, float))
    return value if known else getattr(value, "__qualname__", type(value).__qualname__)
