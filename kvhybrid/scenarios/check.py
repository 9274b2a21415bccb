"""Compares the cache manager's answers with those that a scenario expects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kvhybrid.scenarios.config import build_manager
from kvhybrid.scenarios.form import ScenarioError, UnsupportedScenarioError
from kvhybrid.scenarios.hit_search import hit_search
from kvhybrid.scenarios.player import Player


@dataclass(frozen=True)
class Mismatch:
    """The first key on which a scenario and the cache manager differ."""

    step: int | None
    """Number of the step, from 0; None for scenarios without steps."""
    key: str
    """The key of ``expect``, or ``exception``."""
    expected: Any
    got: Any


@dataclass(frozen=True)
class Failure:
    """An exception raised by the cache manager: one of its invariants is broken."""

    text: str


Answers = Mapping[str, Any] | Failure


def check(content: Mapping[str, Any]) -> Mismatch | None:
    """Play a well-formed scenario; returns None if every expected key matches.

    Raises:
        ScenarioError: A value or a step is inconsistent with earlier steps.
    """
    for number, expected, got in play(content):
        if isinstance(got, Failure):
            return Mismatch(number, "exception", "none", got.text)
        for key, value in expected.items():
            if key not in got or got[key] != value:
                return Mismatch(number, key, value, got.get(key, dict(got)))
    return None


def play(content: Mapping[str, Any]) -> Iterator[tuple[int | None, Mapping[str, Any], Answers]]:
    """Yield each step's number, expected answers and actual answers. A `Failure` is always last."""
    kind = content.get("kind", "steps")
    if kind == "steps":
        yield from _play_steps(content)
    else:
        yield None, content["expect"], _answer(content, kind)


def _play_steps(content: Mapping[str, Any]) -> Iterator[tuple[int | None, Mapping[str, Any], Answers]]:
    player = Player(build_manager(content["config"]))
    for number, step in enumerate(content["steps"]):
        got: Answers
        try:
            got = player.play(step)
        except ScenarioError as error:
            raise ScenarioError(f"step {number} ({step['do']}): {error}") from None
        except Exception as error:
            got = Failure(f"{type(error).__name__}: {error}")
        yield number, step.get("expect", {}), got
        if isinstance(got, Failure):
            return


def _answer(content: Mapping[str, Any], kind: str) -> Answers:
    try:
        return hit_search(content) if kind == "hit_search" else {"valid": _is_valid(content["config"])}
    except ScenarioError:
        raise
    except Exception as error:
        return Failure(f"{type(error).__name__}: {error}")


def _is_valid(config: Mapping[str, Any]) -> bool:
    try:
        build_manager(config)
    except UnsupportedScenarioError:
        raise
    except ScenarioError:
        return False
    return True
