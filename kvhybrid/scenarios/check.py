"""Compares what the cache manager answers with what a scenario expects."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvhybrid.coordinator import CacheConfigError
from kvhybrid.scenarios.config import ScenarioError, build_manager
from kvhybrid.scenarios.player import Player, hit_search


@dataclass(frozen=True)
class Mismatch:
    """The first key on which a scenario and the cache manager differ."""

    step: int | None
    key: str
    expected: Any
    got: Any


def read_scenarios(path: Path) -> Iterator[dict[str, Any]]:
    """The scenarios of a ``.jsonl`` file, one a line."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ScenarioError(f"{path}: {reason}") from None
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                scenario = json.loads(line)
            except json.JSONDecodeError as error:
                raise ScenarioError(f"{path}, line {number}: not JSON: {error}") from None
            if not isinstance(scenario, dict) or not isinstance(scenario.get("config"), dict):
                raise ScenarioError(f"{path}, line {number}: a scenario is an object with a `config` object")
            yield scenario


def check(scenario: Mapping[str, Any]) -> Mismatch | None:
    """Play ``scenario``; None when every expected key comes out."""
    kind = scenario.get("kind", "steps")
    if kind == "steps":
        return _check_steps(scenario)
    if kind == "hit_search":
        return _compare(None, scenario["expect"], hit_search(scenario))
    if kind == "config":
        return _compare(None, scenario["expect"], {"valid": _is_valid(scenario["config"])})
    raise ScenarioError(f"kind = {kind!r} is unknown; accepted: steps, hit_search, config")


def _check_steps(scenario: Mapping[str, Any]) -> Mismatch | None:
    player = Player(build_manager(scenario["config"]))
    for number, step in enumerate(scenario["steps"]):
        found = _compare(number, step.get("expect", {}), player.play(step))
        if found:
            return found
    return None


def _compare(step: int | None, expected: Mapping[str, Any], got: Mapping[str, Any]) -> Mismatch | None:
    for key, value in expected.items():
        if key not in got or got[key] != value:
            return Mismatch(step, key, value, got.get(key, dict(got)))
    return None


def _is_valid(config: Mapping[str, Any]) -> bool:
    try:
        build_manager(config)
    except (CacheConfigError, ScenarioError):
        return False
    return True
