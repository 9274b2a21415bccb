"""Odd numbers at every numeric key of every config: one line with exit code 2, before anything runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_module
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, FloatNode, IntegerNode, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from kvhybrid.errors import InputError
from kvhybrid.hydra_app.errors import explain
from kvhybrid.hydra_app.schema import read_config, register_schema
from kvhybrid.models import weights
from kvhybrid.sessions.replay import build_loop
from kvhybrid.sessions.replay_settings import ReplaySettings
from kvhybrid.sessions.run_settings import RunSettings

ROOT = Path(__file__).resolve().parents[3]
CONF = ROOT / "conf"
SMALL = ROOT / "tests" / "kvhybrid" / "replay" / "small_trace.jsonl"
ODD = ["-1", str(10**30), "nan", "-inf"]
GIVEN = {
    "trace.path": str(SMALL),
    "workload.path": str(SMALL),
    "model.path": str(weights.folder_of("gemma3_bytes")),
}
"""Values of keys that have none."""
KEYS_DIFFER = {"model", "workload", "cache", "executor"}
"""Groups whose choices have different keys."""
UNGROUPED = {"sampling", "backends"}
"""Sections that are no group."""


def choices(verb: str) -> Iterator[str]:
    """``group=choice`` of the groups that ``conf/<verb>.yaml`` names: one of each set of keys."""
    for entry in OmegaConf.load(CONF / f"{verb}.yaml").defaults:
        group = next(iter(entry)) if isinstance(entry, DictConfig) else ""
        if (CONF / group).is_dir() and group not in ("", "experiment"):
            files = sorted((CONF / group).glob("*.yaml"))
            yield from (f"{group}={path.stem}" for path in (files if group in KEYS_DIFFER else files[:1]))


def numeric_keys(node: Any, place: str = "") -> Iterator[str]:
    """Every key below ``node`` that holds a number, or may hold one and is null."""
    for key in node if isinstance(node, DictConfig) else range(len(node)):
        name = f"{place}[{key}]" if isinstance(node, ListConfig) else f"{place}.{key}".lstrip(".")
        if OmegaConf.is_missing(node, key):
            continue
        value = node[key]
        if isinstance(value, (DictConfig, ListConfig)):
            yield from numeric_keys(value, name)
        elif type(value) in (int, float) or (
            value is None and isinstance(node._get_node(key), (IntegerNode, FloatNode))
        ):
            yield name


def composed(verb: str, choice: str) -> DictConfig:
    """The config of a verb, with all that has to be given."""
    register_schema()
    with initialize_config_module("kvhybrid.conf", version_base="1.3"):
        config = compose(verb, overrides=[choice, "name=odd"])
    for key in sorted(OmegaConf.missing_keys(config)):
        OmegaConf.update(config, key, GIVEN[key])
    return config


def said_against(verb: str, config: DictConfig, key: str, value: str) -> str:
    """What ``key=value`` on the command line is refused with; nothing where it is taken."""
    changed = config.copy()
    try:
        override = OverridesParser.create().parse_override(f"x={value}")
        for other in {"pool.num_blocks", "pool.memory"} - {key} if key.startswith("pool.num") else ():
            OmegaConf.update(changed, other, None)
        OmegaConf.update(changed, key, override.value())
        if verb == "run":
            read_config(changed, RunSettings)
        else:
            settings = read_config(changed, ReplaySettings)
            build_loop(settings, settings.trace.read())
    except InputError as error:
        return str(error)
    except OmegaConfBaseException as error:  # `launch` says it like this
        return explain(error)
    return ""


CHOICES = [(verb, choice) for verb in ("run", "replay") for choice in choices(verb)]


@pytest.mark.parametrize(("verb", "choice"), CHOICES)
def test_an_odd_number_is_refused_with_its_key(verb: str, choice: str) -> None:
    config = composed(verb, choice)
    group = choice.split("=")[0]
    first = (verb, choice) == next(pair for pair in CHOICES if pair[0] == verb)
    for key in numeric_keys(config):
        if key.split(".")[0] != group and not (first and ("." not in key or key.split(".")[0] in UNGROUPED)):
            continue
        for odd in ODD:
            said = said_against(verb, config, key, odd)
            assert key.split("[")[0].split(".")[-1] in said, f"{key}={odd[:40]}: {said or 'taken'}"
            assert len(said.splitlines()) == 1


def test_every_numeric_key_is_tried() -> None:
    for verb in ("run", "replay"):
        config = composed(verb, next(choices(verb)))
        sections = {key.split(".")[0] for key in numeric_keys(config) if "." in key}
        assert sections <= {choice.split("=")[0] for choice in choices(verb)} | UNGROUPED
