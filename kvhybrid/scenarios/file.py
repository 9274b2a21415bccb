"""Scenario files: one scenario a line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvhybrid.scenarios.form import ScenarioError, UnsupportedScenarioError, check_form


@dataclass(frozen=True)
class Scenario:
    """One scenario and where it stands."""

    file: Path
    line: int
    content: Mapping[str, Any]
    unsupported: str | None = None
    """Why it cannot be played here, where its kind is not known."""

    @property
    def id(self) -> str:
        return str(self.content["id"])

    @property
    def optional(self) -> bool:
        return bool(self.content.get("optional", False))

    @property
    def place(self) -> str:
        return f"{self.file}, line {self.line}"


def read_scenarios(path: Path) -> Iterator[Scenario]:
    """The scenarios of a ``.jsonl`` file.

    Raises:
        ScenarioError: The file cannot be read, or a line is no scenario; it names the file and the line.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ScenarioError(f"{path}: {reason}; accepted: a file with one scenario a line") from None
    seen: dict[str, int] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            scenario = _read(path, number, line)
            if scenario.id in seen:
                raise ScenarioError(f"{scenario.place}: id = {scenario.id!r} is that of line {seen[scenario.id]}")
            seen[scenario.id] = number
            yield scenario


def _read(path: Path, number: int, line: str) -> Scenario:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ScenarioError(f"{path}, line {number}: not JSON: {error}; accepted: one scenario a line") from None
    try:
        check_form(content)
    except UnsupportedScenarioError as error:
        return Scenario(path, number, {"id": f"line {number}", **content}, str(error))
    except ScenarioError as error:
        raise ScenarioError(f"{path}, line {number}: {error}") from None
    return Scenario(path, number, content)


def write_scenarios(path: Path, scenarios: Iterable[Mapping[str, Any]]) -> None:
    """Write ``scenarios`` to ``path``, one a line; the file is complete or not there.

    Raises:
        OSError: The file cannot be written.
    """
    beside = path.with_name(f".{path.name}.part")
    try:
        with beside.open("w", encoding="utf-8", errors="backslashreplace") as out:
            for scenario in scenarios:
                out.write(json.dumps(scenario, separators=(",", ":"), ensure_ascii=False) + "\n")
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
