"""Scenario files: one scenario per line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvhybrid.errors import InputError
from kvhybrid.files import UnreadableError, atomic_path, output_file, parse_json, read_lines
from kvhybrid.scenarios.form import ScenarioError, UnsupportedScenarioError, check_form


@dataclass(frozen=True)
class Scenario:
    """One scenario and its location."""

    file: Path
    line: int
    content: Mapping[str, Any]
    unsupported: str | None = None
    """Why it cannot be played, if its kind is unknown."""

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
        ScenarioError: The file cannot be read, or a line is not a scenario. The message has the file and the line.
    """
    seen: dict[str, int] = {}
    try:
        for number, line in read_lines(path):
            scenario = _read(path, number, line)
            if scenario.id in seen:
                raise ScenarioError(f"{scenario.place}: id = {scenario.id!r} is that of line {seen[scenario.id]}")
            seen[scenario.id] = number
            yield scenario
    except UnreadableError as error:
        raise ScenarioError(f"{path}: {error}; accepted: a file with one scenario per line") from None


def _read(path: Path, number: int, line: str) -> Scenario:
    try:
        content = parse_json(line)
    except UnreadableError as error:
        raise ScenarioError(f"{path}, line {number}: not JSON: {error}; accepted: one scenario per line") from None
    try:
        check_form(content)
    except UnsupportedScenarioError as error:
        return Scenario(path, number, {"id": f"line {number}", **content}, str(error))
    except ScenarioError as error:
        raise ScenarioError(f"{path}, line {number}: {error}") from None
    return Scenario(path, number, content)


def scenario_output(key: str, path: Path | str) -> Path:
    """Resolve ``path`` to a file to write scenarios to: a new one, or one of scenarios, which is replaced.

    Raises `InputError`, with ``key`` in the message, for other files, so that no data are lost by a typing error.
    """
    place = output_file(key, path)
    if place.exists():
        try:
            next(read_scenarios(place), None)
        except ScenarioError:
            raise InputError(
                f"{key}: {path} exists and is not a scenario file; accepted: a new file, or one of scenarios, "
                f"which is replaced"
            ) from None
    return place


def write_scenarios(path: Path, scenarios: Iterable[Mapping[str, Any]]) -> None:
    """Write ``scenarios`` to ``path``, one per line, atomically.

    Raises:
        OSError: The file cannot be written.
    """
    # Lone surrogates, which UTF-8 cannot encode, become JSON escapes.
    with atomic_path(path) as partial, partial.open("w", encoding="utf-8", errors="backslashreplace") as out:
        for scenario in scenarios:
            out.write(json.dumps(scenario, separators=(",", ":"), ensure_ascii=False) + "\n")
