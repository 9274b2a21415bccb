"""Hydra config sources for plug-ins: ``GROUP=NAME`` and ``GROUP=module:Class``, with or without a YAML file.

A plug-in is imported only when it is chosen. Its schema is ``schema/GROUP/NAME``, which a YAML file of that group
names in its defaults list.
"""

from __future__ import annotations

from collections.abc import Sequence

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, OmegaConf

from kvhybrid.hydra_app.parts import PARTS
from kvhybrid.hydra_app.plugin_schema import schema_of

SCHEMAS = "kvhybrid://schemas"
"""Schemas, and plug-ins as ``module:Class``. Always in Hydra's search path."""
NAMES = "kvhybrid://names"
"""Plug-ins by registered name. Last in the search path, so that a YAML file of the same name takes precedence."""


def register_plugins() -> None:
    """Register the sources with Hydra."""
    Plugins.instance().register(PluginSource)
    Plugins.instance().register(PluginSearchPath)


def keep_names_last(arguments: Sequence[str]) -> list[str]:
    """``arguments`` with `NAMES` appended to ``hydra.searchpath``, which would otherwise replace it."""
    prefix = "hydra.searchpath=["
    return [
        f"{given.rstrip().removesuffix(']')},{NAMES}]" if given.startswith(prefix) else given
        for given in arguments
    ]


class PluginSource(ConfigSource):  # type: ignore[misc]
    """Serves `SCHEMAS` or `NAMES`."""

    @staticmethod
    def scheme() -> str:
        return "kvhybrid"

    def available(self) -> bool:
        return True

    def is_group(self, config_path: str) -> bool:
        return self.full_path() == NAMES and config_path in PARTS

    def is_config(self, config_path: str) -> bool:
        *above, group, name = ["", *config_path.split("/")]
        if group not in PARTS:
            return False
        if self.full_path() == NAMES:
            return above == [""] and name in PARTS[group].registry
        return above == ["", "schema"] or (above == [""] and ":" in name)

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        return list(PARTS[config_path].registry.names()) if results_filter is not ObjectType.GROUP else []

    def load_config(self, config_path: str) -> ConfigResult:
        *above, group, name = config_path.split("/")
        config = OmegaConf.structured(schema_of(group, name)) if above else _choice(group, name)
        return ConfigResult(self.provider, self.full_path(), config, header={"package": None})


class PluginSearchPath(SearchPathPlugin):  # type: ignore[misc]
    """Adds `SCHEMAS` to Hydra's search path."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        search_path.append("kvhybrid", SCHEMAS)


def _choice(group: str, name: str) -> DictConfig:
    """A config that chooses a plug-in of ``group`` with its defaults. For trackers, it is below a separate key."""
    package = name.rpartition(":")[2].rpartition(".")[2] if group == "tracking" else "_here_"
    return OmegaConf.create({"defaults": [f"/schema/{group}/{name}@{package}", "_self_"]})
