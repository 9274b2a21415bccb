"""The format of a scenario: its keys and their accepted values."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple, TypeAlias

ScenarioStep: TypeAlias = dict[str, Any]
"""One of a scenario's ``steps``: an action, its arguments, and the expected answers."""
MOST_TOKENS = 1 << 24
"""Upper bound on the tokens, blocks or slots in a scenario; larger numbers are assumed to be typos."""


class ScenarioError(ValueError):
    """An invalid scenario. The message has the key, what was found and what is accepted."""


class UnsupportedScenarioError(ScenarioError):
    """A scenario of an unknown kind or with an unknown spec."""


class Value(NamedTuple):
    """The accepted values of a key."""

    accepted: str
    fits: Callable[[Any], bool]


def whole(lowest: int, highest: int = MOST_TOKENS) -> Value:
    """A whole number from ``lowest`` up."""
    accepted = f"a whole number from {lowest:,} to {highest:,}"
    return Value(accepted, lambda found: type(found) is int and lowest <= found <= highest)


def or_null(value: Value) -> Value:
    return Value(f"{value.accepted}, or null", lambda found: found is None or value.fits(found))


def is_whole_list(found: Any) -> bool:
    return type(found) is list and all(type(number) is int for number in found)


def is_runs(found: Any) -> bool:
    """Whether ``found`` is ``[[first, count], …]`` with numbers in the accepted range."""
    if type(found) is not list:
        return False
    total = 0
    for run in found:
        if not is_whole_list(run) or len(run) != 2 or not 0 <= run[0] < 1 << 60 or run[1] < 0:
            return False
        total += run[1]
    return total <= MOST_TOKENS


ANYTHING = Value("anything", lambda found: True)
OBJECT = Value("an object", lambda found: type(found) is dict)
LIST = Value("a list", lambda found: type(found) is list)
TEXT = Value("text", lambda found: type(found) is str)
NAME = Value("text that is not empty", lambda found: type(found) is str and found != "")
FLAG = Value("true or false", lambda found: type(found) is bool)
COUNT = whole(0)
SIZE = whole(1)
NUMBER = Value("a number", lambda found: type(found) in (int, float) and abs(found) <= MOST_TOKENS)
RUNS = Value("runs of token ids, [[first, count], …], numbers from 0 up", is_runs)
PROMPT = Value(
    "runs of token ids, [[first, count], …], at least one token",
    lambda found: is_runs(found) and any(count for _, count in found),
)
BLOCKS = Value("a list of block ids", is_whole_list)
LORA = Value("[name, path]", lambda found: type(found) is list and [type(part) for part in found] == [str, str])
DRAFTS = Value("false or a list of group indices", lambda found: found is False or is_whole_list(found))
PATTERN = Value(
    "1 to 50 characters 0 and 1",
    lambda found: type(found) is str and 0 < len(found) <= 50 and not set(found) - {"0", "1"},
)
YES = Value("true", lambda found: found is True)


class StepForm(NamedTuple):
    """The keys of one kind of step."""

    required: Mapping[str, Value]
    optional: Mapping[str, Value]
    answers: Mapping[str, Value]
    """The keys that its ``expect`` may have."""


def _step(
    required: Mapping[str, Value],
    answers: Mapping[str, Value] | None = None,
    optional: Mapping[str, Value] | None = None,
) -> StepForm:
    return StepForm(required, {"do": TEXT, "expect": OBJECT, **(optional or {})}, answers or {})


HIT = {"hit_tokens": ANYTHING, "hit_blocks": ANYTHING, "junction": ANYTHING}
REQUEST = {"request": NAME}
STEPS: Mapping[str, StepForm] = {
    "submit": _step(
        {**REQUEST, "tokens": PROMPT},
        optional={"salt": or_null(TEXT), "lora": or_null(LORA), "encoder_tokens": COUNT, "skip_read": FLAG},
    ),
    "lookup": _step(REQUEST, HIT),
    "allocate": _step(
        {**REQUEST, "new_tokens": whole(-MOST_TOKENS)},
        {"new_blocks": LIST, "refused": YES, "error": Value('"value"', lambda found: found == "value")},
        optional={
            "lookahead": COUNT,
            "external_tokens": COUNT,
            "full_sequence_must_fit": FLAG,
            "reserved_blocks": COUNT,
            "has_running": FLAG,
            "delay_cache": FLAG,
        },
    ),
    "append": _step({**REQUEST, "tokens": RUNS}),
    "reject": _step({**REQUEST, "tokens": COUNT}),
    "in_flight": _step({**REQUEST, "tokens": COUNT}),
    "load_done": _step(REQUEST),
    "free": _step(REQUEST),
    "preempt": _step(REQUEST),
    "evict": _step({"blocks": BLOCKS}),
    "reset": _step({}, {"ok": FLAG}),
    "new_step": _step({}),
    "take_copies": _step({}, {"copies": LIST}),
    "state": _step(
        {},
        {
            "free_queue": LIST,
            "num_free": ANYTHING,
            "cached": OBJECT,
            "refs": OBJECT,
            "usage": ANYTHING,
            "tables": OBJECT,
        },
    ),
}

COMMON = {"title": TEXT, "kind": TEXT, "note": TEXT, "oracle": TEXT, "optional": FLAG}
KINDS: Mapping[str, Mapping[str, Value]] = {
    "steps": {"steps": LIST},
    "hit_search": {"cached": LIST, "max_length": COUNT, "expect": OBJECT},
    "config": {"expect": OBJECT},
}
CACHED = {"group": COUNT, "pattern": PATTERN}


def check_keys(
    where: str, given: Any, required: Mapping[str, Value], optional: Mapping[str, Value] | None = None
) -> None:
    """Raise ScenarioError if an object has an unknown key, lacks a key, or has an invalid value."""
    prefix = f"{where}: " if where else ""
    if type(given) is not dict:
        raise ScenarioError(f"{where} = {shortened(given)}; accepted: an object")
    optional = optional or {}
    for key, found in given.items():
        value = required.get(key) or optional.get(key)
        if value is None:
            raise ScenarioError(f"{prefix}unknown key {key!r}; accepted: {listed([*required, *optional])}")
        if not value.fits(found):
            raise ScenarioError(f"{prefix}{key} = {shortened(found)}; accepted: {value.accepted}")
    for key in required:
        if key not in given:
            raise ScenarioError(f"{prefix}the key {key!r} is missing; accepted: {required[key].accepted}")


def check_form(scenario: Any) -> None:
    """Raise ScenarioError if keys or types of a scenario are wrong. ``config`` is checked when it is built."""
    check_keys("a scenario", {} if type(scenario) is dict else scenario, {})
    kind = scenario.get("kind", "steps")
    if type(kind) is not str:
        raise ScenarioError(f"kind = {shortened(kind)}; accepted: {listed(KINDS)}")
    if kind not in KINDS:
        raise UnsupportedScenarioError(f"kind = {shortened(kind)}; accepted: {listed(KINDS)}")
    check_keys("", scenario, {"id": NAME, "config": OBJECT, **KINDS[kind]}, COMMON)
    if kind == "steps":
        for number, step in enumerate(scenario["steps"]):
            _check_step(number, step)
    elif kind == "hit_search":
        for number, entry in enumerate(scenario["cached"]):
            check_keys(f"cached[{number}]", entry, CACHED, {"unit": SIZE})
        check_keys("expect", scenario["expect"], {}, HIT)
    else:
        check_keys("expect", scenario["expect"], {"valid": FLAG})


def _check_step(number: int, step: Any) -> None:
    name = step.get("do") if type(step) is dict else None
    form = STEPS.get(name) if type(name) is str else None
    if form is None:
        found = f"do = {shortened(name)}" if type(step) is dict else shortened(step)
        raise ScenarioError(f"step {number}: {found}; accepted: an object with do = {listed(STEPS)}")
    check_keys(f"step {number} ({name})", step, form.required, form.optional)
    if expected := step.get("expect"):
        check_keys(f"step {number} ({name}), expect", expected, {}, form.answers)


def listed(names: Collection[str]) -> str:
    return ", ".join(names) or "no key"


def shortened(found: Any, length: int = 60) -> str:
    """A value as JSON, truncated to ``length``."""
    text = repr(found) if type(found) in (str, int, float) else _json(found)
    return text if len(text) <= length else f"{text[: length - 1]}…"


def _json(found: Any) -> str:
    import json

    return json.dumps(found, separators=(", ", ": "), ensure_ascii=False, default=str)
