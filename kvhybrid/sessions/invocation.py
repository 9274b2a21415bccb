"""What a run was told: the content of its ``config.yaml``, and how the command line came to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any


@dataclass(frozen=True)
class Invocation:
    """The resolved configuration of a run, and the command behind it."""

    verb: str
    config: Mapping[str, Any]
    """The configuration as plain data. Trackers get it too."""
    schemas: Sequence[str] = ()
    """Entries of a Hydra defaults list: the schemas of those parts that ``<verb>_schema`` leaves open."""
    choices: Mapping[str, str] = field(default_factory=dict)
    """What was chosen in each Hydra group."""
    overrides: tuple[str, ...] = ()
    """What the command line changed in the configuration."""

    @classmethod
    def from_settings(cls, verb: str, settings: Any) -> Invocation:
        """For settings that were built in Python."""
        return cls(verb, plain_settings(settings))

    def yaml(self) -> str:
        """``config.yaml``: a primary config of Hydra's, so that the run can be started again from its folder."""
        from omegaconf import OmegaConf

        quiet = [{f"override hydra/{logger}": "none"} for logger in ("hydra_logging", "job_logging")]
        content = {
            "defaults": [f"{self.verb}_schema", *self.schemas, "outputs", *quiet, "_self_"],
            "hydra": {"job": {"name": self.verb}},
            **self.config,
        }
        head = f"# To run it again: kvhybrid {self.verb} --config-dir THIS_FOLDER --config-name config\n"
        body: str = OmegaConf.to_yaml(OmegaConf.create(content))
        return head + body


def plain_settings(settings: Any) -> dict[str, Any]:
    """Settings as plain data. Parts whose class is open name it by ``_target_``, as Hydra has it."""
    content: dict[str, Any] = {}
    for part in fields(settings):
        value = getattr(settings, part.name)
        if part.name == "tracking":
            content[part.name] = {name: _with_target(tracker) for name, tracker in value.items()}
        else:
            content[part.name] = _with_target(value) if part.type == "Any" else _plain(value)
    return content


def _with_target(part: Any) -> dict[str, Any]:
    return {"_target_": f"{type(part).__module__}.{type(part).__qualname__}", **_plain(part)}


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {part.name: _plain(getattr(value, part.name)) for part in fields(value) if part.init}
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    known = value is None or isinstance(value, (str, int, float))
    return value if known else getattr(value, "__qualname__", type(value).__qualname__)
