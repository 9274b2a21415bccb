"""Deviations: scenarios whose recorded answer is wrong and intentionally not reproduced, with the reason."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from kvhybrid.files import UnreadableError, read_text
from kvhybrid.scenarios.check import Mismatch
from kvhybrid.scenarios.form import COUNT, NAME, ScenarioError, Value, check_keys

FILE_NAME = "deviations.toml"
PROJECT_LIST = Path(__file__).resolve().parents[2] / "tests" / "scenarios" / "recorded" / FILE_NAME
"""The project's own list, in a checkout of the repository."""

LETTER = Value("one letter", lambda found: type(found) is str and len(found) == 1 and found.isalpha())
TOML = "tomllib" if sys.version_info >= (3, 11) else "tomli"


@dataclass(frozen=True)
class Deviation:
    """An expected mismatch of a scenario, and its reason."""

    letter: str
    """Letter of the recorded system's known quirk that the recorded answer depends on."""
    key: str
    step: int | None
    reason: str

    def covers(self, mismatch: Mismatch) -> bool:
        """Whether ``mismatch`` is the listed one. Any other mismatch is a failure."""
        return (mismatch.key, mismatch.step) == (self.key, self.step)


def default_list(scenario_file: Path) -> Path | None:
    """The list for a scenario file: the one in the same folder, else the project's own, else None."""
    for path in (scenario_file.with_name(FILE_NAME), PROJECT_LIST):
        if path.is_file():
            return path
    return None


def read_deviations(path: Path) -> Mapping[str, Deviation]:
    """Read the list in ``path``: a table per scenario id with ``letter``, ``key``, ``step`` and ``reason``.

    Raises:
        ScenarioError: The file cannot be read, or a table is invalid.
    """
    toml: Any = import_module(TOML)
    try:
        tables = toml.loads(read_text(path))
    except UnreadableError as error:
        raise ScenarioError(f"{path}: {error}; accepted: a list of deviations") from None
    except (ValueError, RecursionError) as error:
        raise ScenarioError(f"{path}: not TOML: {error}; accepted: a list of deviations") from None
    for id, table in tables.items():
        check_keys(f"{path}: [{id}]", table, {"letter": LETTER, "key": NAME, "reason": NAME}, {"step": COUNT})
    return {id: Deviation(t["letter"], t["key"], t.get("step"), t["reason"]) for id, t in tables.items()}
