"""Every file in ``conf/`` composes, and spells every key that its schema has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from importlib.resources import files
from pathlib import Path

import pytest
from hydra import compose, initialize_config_module
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from kvhybrid.commands import replay, run
from kvhybrid.hydra_app.schema import plain, read_config, register_schema
from kvhybrid.replay import traces
from kvhybrid.sessions.replay_settings import ReplaySettings
from kvhybrid.sessions.run_settings import RunSettings

CONF = Path(str(files("kvhybrid.conf")))
CHOICES = sorted((place.parent.name, place.stem) for place in CONF.glob("*/*.yaml"))


@pytest.fixture(scope="module", autouse=True)
def hydra_over_conf() -> Iterator[None]:
    register_schema()
    with initialize_config_module(version_base="1.3", config_module="kvhybrid.conf"):
        yield
    HydraConfig.instance().cfg = None


def composed(*overrides: str, verb: str = "run") -> DictConfig:
    config = compose(verb, list(overrides), return_hydra_config=True)
    HydraConfig.instance().set_config(config)
    OmegaConf.set_struct(config, False)
    del config["hydra"]
    return config


def overrides_for(group: str, choice: str, tmp_path: Path) -> list[str]:
    needed = []
    if (group, choice) == ("cache", "hf"):
        needed = ["cache.path=FOLDER"]
    if (group, choice) == ("model", "hf"):
        (tmp_path / "config.json").write_text("{}")
        needed = [f"model.path={tmp_path}"]
    if choice == "prompts":
        needed = ["workload.path=FILE"]
    return [f"{group}={choice}", *needed]


def test_every_group_has_choices_and_no_folder_is_forgotten() -> None:
    assert {group for group, _ in CHOICES} == {*run.GROUPS, *replay.GROUPS}


@pytest.mark.parametrize(("group", "choice"), CHOICES)
def test_every_choice_opens_with_a_line_of_help(group: str, choice: str) -> None:
    first, second = (CONF / group / f"{choice}.yaml").read_text().splitlines()[:2]
    assert (second if first == "# @package _global_" else first).startswith("# ")


def read(verb: str, config: DictConfig) -> RunSettings | ReplaySettings:
    return read_config(config, RunSettings if verb == "run" else ReplaySettings)


@pytest.mark.parametrize(
    ("verb", "group", "choice"),
    [
        (verb, *c)
        for verb, groups in (("run", run.GROUPS), ("replay", replay.GROUPS))
        for c in CHOICES
        if c[0] in groups
    ],
)
def test_every_choice_composes_and_spells_every_key_of_its_schema(
    verb: str, group: str, choice: str, tmp_path: Path
) -> None:
    generated = group == "trace" and not hasattr(traces.find(choice), "path")
    needed = ["trace.path=FILE"] if verb == "replay" and not generated else []
    config = composed(*needed, *overrides_for(group, choice, tmp_path), verb=verb)
    assert isinstance(read(verb, config), RunSettings if verb == "run" else ReplaySettings)
    schema = OmegaConf.get_type(config, group) if group in config else None
    if is_dataclass(schema):
        written = OmegaConf.load(CONF / group / f"{choice}.yaml")
        assert set(written) - {"defaults"} == {field.name for field in fields(schema)} - {"kind"}


def test_the_defaults_are_a_trained_gemma_on_source_code_with_wandb_and_json_lines() -> None:
    config = composed()
    assert config.model.path == "gemma3_bytes"
    assert config.workload.num_prefixes > 1
    assert config.quality.bytes > 0
    assert set(config.tracking) == {"jsonl", "wandb"}
    assert config.name == config.tracking.wandb.name == "gemma3_bytes on source_code"


def test_one_seed_moves_weights_and_prompts_and_each_can_have_its_own() -> None:
    config = composed("model=gemma3_tiny", "seed=3", "model.seed=5")
    assert (config.model.seed, config.workload.seed) == (5, 3)


@pytest.mark.parametrize(("choice", "trackers"), [("none", set()), ("jsonl", {"jsonl"})])
def test_trackers_can_be_left_out(choice: str, trackers: set[str]) -> None:
    assert set(composed(f"tracking={choice}").tracking) == trackers


def test_the_plain_config_is_resolved() -> None:
    config = composed("model=gemma3_tiny", "seed=3")
    read_config(config, RunSettings)
    assert "${" not in str(plain(config))
    assert plain(config)["model"]["seed"] == 3
