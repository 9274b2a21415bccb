"""Checks a user's YAML files before OmegaConf expands them."""

from __future__ import annotations

from pathlib import Path

import yaml
from hydra._internal.core_plugins import file_config_source
from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult

from kvhybrid.errors import InputError
from kvhybrid.files import UnreadableError, read_text

MOST_NODES = 10_000
"""Maximum number of keys and values of a file, with aliases expanded."""
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class FileConfigSource(file_config_source.FileConfigSource):  # type: ignore[misc]
    """Replaces Hydra's source for files."""

    def load_config(self, config_path: str) -> ConfigResult:
        check_yaml(Path(self.path, self._normalize_file_name(config_path)))
        return super().load_config(config_path)


def check_config_files() -> None:
    """Let Hydra read the YAML files of a user through `check_yaml`."""
    Plugins.instance()  # registers Hydra's own sources, once
    SourcesRegistry.instance().types[FileConfigSource.scheme()] = FileConfigSource


def check_yaml(path: Path) -> None:
    """Raise `InputError` for a file that cannot be read, or whose aliases or nesting make it too large: 20 lines
    of ten aliases each would keep OmegaConf busy forever."""
    try:
        root = yaml.compose(read_text(path), Loader=LOADER)
        if root is not None and _num_nodes(root, {}) > MOST_NODES:
            raise UnreadableError(f"more than {MOST_NODES:,} keys and values, with aliases expanded")
    except UnreadableError as error:
        raise InputError(f"{path}: cannot be read: {error}; accepted: a config in YAML") from error
    except RecursionError:
        raise InputError(f"{path}: cannot be read: nested too deeply; accepted: a config in YAML") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        reason = f"line {mark.line + 1}: {error.problem}" if mark else " ".join(str(error).split())
        raise InputError(f"{path}: no YAML: {reason}; accepted: a config in YAML") from error


def _num_nodes(node: yaml.Node, known: dict[int, int]) -> int:
    """The size of ``node`` with its aliases expanded; ``known`` caches the sizes of nodes."""
    if id(node) not in known:
        known[id(node)] = MOST_NODES + 1  # for an alias inside of its own anchor
        parts = node.value if isinstance(node.value, list) else ()
        children = [child for part in parts for child in (part if isinstance(part, tuple) else (part,))]
        known[id(node)] = 1 + sum(_num_nodes(child, known) for child in children)
    return known[id(node)]
