"""A default stands once: conf/, the settings and the signatures of engine, cache manager and scheduler agree."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_module
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from kvhybrid.cache.manager import KVCacheManager
from kvhybrid.engine.engine import Engine
from kvhybrid.engine.sampling import SamplingParams
from kvhybrid.hydra_app.parts import PARTS
from kvhybrid.hydra_app.plugin_schema import schema_of
from kvhybrid.hydra_app.schema import register_schema
from kvhybrid.models.base import BackendChoice
from kvhybrid.scheduling.base import BaseScheduler
from kvhybrid.scheduling.scheduler import Scheduler
from kvhybrid.sessions.replay_settings import ReplaySettings
from kvhybrid.sessions.run_settings import RunSettings

CONF = Path(str(files("kvhybrid.conf")))
SETTINGS = {"run": RunSettings, "replay": ReplaySettings}
FOLLOWS_THE_CHOICES = {"name"}
"""Keys whose value in conf/ is made of the names of the chosen groups."""
STATED = [
    (group, entry.name)
    for group, part in PARTS.items()
    for entry in part.registry.entries()
    if (CONF / group / f"{entry.name}.yaml").is_file()
]
SIGNATURES: dict[str, dict[Callable[..., Any], str]] = {
    "pool.block_size": {Engine: "block_size"},
    "pool.num_blocks": {Engine: "num_blocks"},
    "pool.memory": {Engine: "memory_bytes"},
    "pool.hash_block_size": {Engine: "hash_block_size"},
    "pool.enable_prefix_caching": {Engine: "enable_prefix_caching", KVCacheManager: "enable_caching"},
    "scheduler.kind": {Engine: "scheduler"},
    "scheduler.max_batched_tokens": dict.fromkeys((Engine, BaseScheduler, Scheduler), "max_batched_tokens"),
    "scheduler.max_num_seqs": dict.fromkeys((Engine, BaseScheduler, Scheduler), "max_num_seqs"),
    "scheduler.watermark": dict.fromkeys((Engine, KVCacheManager), "watermark"),
    "scheduler.max_model_len": {Engine: "max_model_len"},
    "eviction.kind": dict.fromkeys((Engine, KVCacheManager), "eviction"),
    "retention.kind": dict.fromkeys((Engine, KVCacheManager), "retention"),
    "retention.interval": dict.fromkeys((Engine, KVCacheManager), "retention_interval"),
    "layout.kind": {Engine: "layout"},
    "device": {Engine: "device"},
    "sampling.temperature": {SamplingParams: "temperature"},
    "sampling.top_k": {SamplingParams: "top_k"},
    "seed": {SamplingParams: "seed"},
    "backends.attention": {BackendChoice: "attention"},
    "backends.mamba": {BackendChoice: "mamba"},
}
"""Keys of ``kvhybrid run``, and the arguments that say the same in Python."""
OTHER_ARGUMENTS = {
    Engine: {"model", "max_encoder_tokens", "track_misses", "eos_token_id", "cache_manager"},
    KVCacheManager: {"config", "max_model_len", "max_in_flight_tokens", "record_events", "residency_clock"}
    | {"track_misses"},  # the cache manager by itself measures nothing unless it is told to
    BaseScheduler: {"cache", "end_token_ids"},
    Scheduler: {"cache", "end_token_ids"},
}
"""Arguments without a key, or without a default."""


@pytest.fixture(scope="module", autouse=True)
def hydra_over_conf() -> Iterator[None]:
    register_schema()
    with initialize_config_module(version_base="1.3", config_module="kvhybrid.conf"):
        yield
    HydraConfig.instance().cfg = None


def composed(verb: str) -> dict[str, Any]:
    config = compose(verb, ["trace.path=FILE"] if verb == "replay" else [], return_hydra_config=True)
    HydraConfig.instance().set_config(config)
    OmegaConf.set_struct(config, False)
    del config["hydra"]
    content: dict[str, Any] = OmegaConf.to_container(config, resolve=True, throw_on_missing=False)
    return content


def flat(content: dict[str, Any], place: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in content.items():
        found |= flat(value, f"{place}{key}.") if isinstance(value, dict) else {f"{place}{key}": value}
    return found


@pytest.mark.parametrize("verb", SETTINGS)
def test_a_config_as_it_ships_is_what_its_settings_are_in_python(verb: str) -> None:
    config = composed(verb)
    for known in fields(SETTINGS[verb]):
        stated = known.default if known.default_factory is MISSING else known.default_factory()
        if stated is MISSING or known.name in FOLLOWS_THE_CHOICES or known.name == "tracking":
            continue  # the group's choice alone decides
        shipped = config[known.name]
        if is_dataclass(stated):
            own = OmegaConf.to_container(OmegaConf.structured(stated))
            stated = {"kind": shipped.get("kind")} | own.pop("parameters", {}) | own
            shipped = {"kind": None, **shipped}
        assert shipped == stated, known.name


@pytest.mark.parametrize(("group", "name"), STATED)
def test_a_plug_in_has_the_same_defaults_in_its_file_and_its_class(group: str, name: str) -> None:
    written = OmegaConf.load(CONF / group / f"{name}.yaml")
    written.pop("defaults", None)
    node = OmegaConf.create(
        {"seed": 0, "name": None, group: written.get(name, {}) if group == "tracking" else written}
    )
    stated: dict[str, Any] = OmegaConf.to_container(OmegaConf.structured(schema_of(group, name)))
    assert OmegaConf.to_container(node[group], resolve=True) == {k: v for k, v in stated.items() if k != "kind"}


def test_most_plug_ins_have_a_file() -> None:
    assert len(STATED) > 20
    assert {group for group, _ in STATED} >= set(PARTS) - {"retention"}


@pytest.mark.parametrize("key", SIGNATURES)
def test_a_key_and_the_arguments_that_say_the_same_have_one_default(key: str) -> None:
    shipped = flat(composed("run"))[key]
    for call, argument in SIGNATURES[key].items():
        default = inspect.signature(call).parameters[argument].default
        # None: worked out from the model or the memory, as the docstring says.
        assert default in (shipped, None), f"{call.__name__}({argument}={default}), {key}={shipped}"


def test_no_argument_is_forgotten() -> None:
    for call, others in OTHER_ARGUMENTS.items():
        named = {argument for arguments in SIGNATURES.values() for c, argument in arguments.items() if c is call}
        assert set(inspect.signature(call).parameters) == named | others


def test_misses_are_tracked_unless_a_replay_or_an_engine_is_told_otherwise() -> None:
    assert composed("replay")["track_misses"] is inspect.signature(Engine).parameters["track_misses"].default
