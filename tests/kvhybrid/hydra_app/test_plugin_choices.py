"""Plug-ins in a config: chosen by name, by path or in a YAML file, with typed parameters."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from kvhybrid.cli import main
from kvhybrid.hydra_app.parts import PARTS
from kvhybrid.hydra_app.plugin_schema import schema_of
from kvhybrid.plugins import PluginError
from tests.kvhybrid.distributions import isolate, write_distribution

SOURCE = '''
"""Plug-ins with parameters: dataclasses and plain classes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kvhybrid.managers.eviction.lru import LRU
from kvhybrid.managers.retention.base import Retention
from kvhybrid.scheduling.scheduler import Scheduler
from kvhybrid.tracking.base import Tracker
from kvhybrid.workloads.random import Random


@dataclass(kw_only=True)
class Echo(Random):
    """Says it again.

    And again."""

    echoes: int = 2
    words: list[str] = field(default_factory=lambda: ["a"])


@dataclass(kw_only=True)
class Demanding(Random):
    needed: int


class Plain(Random):
    def __init__(self, gain: float = 0.5, *, label: str | None = None, hook: Callable[[], int] = int, **more: Any):
        super().__init__(**more)
        if gain < 0:
            raise ValueError(f"gain must be 0 or more, found {gain}")
        self.gain, self.label = gain, label


class Crashing(Random):
    def __init__(self, requests: int = 1) -> None:
        raise TypeError("a mistake of its author")


class Half(LRU):
    def __init__(self, blocks, share: float = 0.5) -> None:
        super().__init__(blocks)
        self.share = share


@dataclass(frozen=True)
class Sparse(Retention):
    every: int = 64


class Aging(Scheduler):
    def __init__(self, *args: Any, aging: int = 3, **more: Any) -> None:
        super().__init__(*args, **more)
        self.aging = aging


class Greedy(Scheduler):
    def __init__(self, *args: Any, watermark: float = 0.1, **more: Any) -> None:
        super().__init__(*args, **more)


@dataclass(kw_only=True)
class Silent(Tracker):
    depth: int = 1

    def start(self, config, folder): pass
    def log(self, step, metrics): pass
    def finish(self, summary): pass
'''
MODULE = "plugins_in_a_config"
POINTS = {
    "kvhybrid.workloads": f"echo = {MODULE}:Echo\nbroken = {MODULE}:NoSuchClass\nmissing = no_such_module:A",
    "kvhybrid.trackers": f"silent = {MODULE}:Silent",
    "kvhybrid.orders": f"half = {MODULE}:Half",
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty current folder; the plug-ins are installed elsewhere."""
    isolate(monkeypatch, *(part.registry for part in PARTS.values()))
    site, here = tmp_path / "site", tmp_path / "here"
    here.mkdir()
    write_distribution(site, "choices", {MODULE: SOURCE}, POINTS)
    monkeypatch.syspath_prepend(site)
    monkeypatch.chdir(here)
    yield here
    sys.modules.pop(MODULE, None)


def composed(capsys: pytest.CaptureFixture[str], verb: str, *overrides: str) -> Any:
    assert main([verb, *overrides, "--cfg", "job"]) == 0, capsys.readouterr().err
    return OmegaConf.create(capsys.readouterr().out)


def refusal(capsys: pytest.CaptureFixture[str], *overrides: str) -> str:
    assert main(["run", *overrides]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line.removeprefix("kvhybrid run: ")


@pytest.mark.parametrize("choice", ["echo", f"{MODULE}:Echo"])
def test_a_name_or_a_path_is_a_choice_with_all_keys(choice: str, capsys: pytest.CaptureFixture[str]) -> None:
    config = composed(capsys, "run", f"workload={choice}", "workload.echoes=5", "workload.requests=3")
    assert config.workload == {
        "kind": choice,
        "seed": 0,
        "requests": 3,
        "prompt_tokens": 192,
        "max_new_tokens": 16,
        "echoes": 5,
        "words": ["a"],
    }


@pytest.mark.parametrize(
    ("verb", "override", "group", "expected"),
    [
        ("run", "eviction=half", "eviction", {"kind": "half", "share": 0.5}),
        ("replay", f"eviction={MODULE}:Half", "eviction", {"kind": f"{MODULE}:Half", "share": 0.5}),
        (
            "run",
            f"retention={MODULE}:Sparse",
            "retention",
            {"kind": f"{MODULE}:Sparse", "interval": None, "every": 64},
        ),
        (
            "replay",
            f"scheduler={MODULE}:Aging",
            "scheduler",
            {
                "kind": f"{MODULE}:Aging",
                "max_batched_tokens": 512,
                "max_num_seqs": 16,
                "watermark": 0.0,
                "max_model_len": None,
                "aging": 3,
            },
        ),
        ("run", "tracking=silent", "tracking", {"silent": {"kind": "silent", "depth": 1}}),
        ("run", f"tracking={MODULE}:Silent", "tracking", {"Silent": {"kind": f"{MODULE}:Silent", "depth": 1}}),
        ("run", "tracking=[jsonl,silent]", "tracking.silent", {"kind": "silent", "depth": 1}),
    ],
)
def test_every_kind_has_the_keys_of_its_kind_and_its_own(
    verb: str, override: str, group: str, expected: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert OmegaConf.select(composed(capsys, verb, override), group) == expected


def test_a_plain_class_has_the_typed_parameters_of_its_init(capsys: pytest.CaptureFixture[str]) -> None:
    config = composed(capsys, "run", f"workload={MODULE}:Plain", "workload.gain=2", "workload.label=x")
    assert (config.workload.gain, config.workload.label) == (2.0, "x")


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["workload.echos=1"], "workload.echos: no such key; did you mean workload.echoes? accepted: kind, seed"),
        (["workload.echoes=many"], "workload.echoes must be a whole number, found many"),
        (["workload.words=3"], "workload.words must be a list [a,b], found a value of type"),
        (["+workload.turns=1"], "workload.turns: no such key"),
        (["workload.requests=0"], "workload.requests must be at least 1, found 0"),
        (["workload.kind=nothing"], "unknown workload 'nothing'; accepted: broken, echo, few_shot"),
    ],
)
def test_a_mistake_in_a_plug_ins_value_is_one_line(
    overrides: list[str], expected: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert expected in refusal(capsys, "workload=echo", *overrides)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["workload=broken"], f"workload 'broken' ({MODULE}:NoSuchClass, choices 1.0) cannot be loaded: module"),
        (
            ["workload=missing"],
            "(no_such_module:A, choices 1.0) cannot be loaded: No module named",
        ),
        (["workload=no_such_module:A"], "workload 'no_such_module:A' cannot be loaded: No module named"),
        (["workload=os:path"], "workload 'os:path' must be a subclass of kvhybrid.workloads.base:Workload"),
        (["eviction=os:path"], "order of reuse 'os:path' must be a subclass of"),
        (
            [f"workload={MODULE}:Half"],
            f"a subclass of kvhybrid.workloads.base:Workload, found {MODULE}:Half",
        ),
        ([f"workload={MODULE}:Plain", "workload.gain=-1.0"], "workload: gain must be 0 or more, found -1.0"),
        ([f"workload={MODULE}:Plain", "workload.gain=big"], "workload.gain must be a number, found big"),
        (
            [f"workload={MODULE}:Crashing"],
            f"workload: {MODULE}:Crashing raises TypeError: a mistake",
        ),
        ([f"workload={MODULE}:Demanding"], "workload.needed is missing: give workload.needed=VALUE"),
        (["workload=eco"], "workload=eco: no such choice; did you mean workload=echo? accepted: broken, echo"),
        ([f"scheduler={MODULE}:Greedy"], f"scheduler {MODULE}:Greedy has a parameter 'watermark', which is a key"),
        (["eviction=half", "eviction.share=all"], "eviction.share must be a number, found all"),
        (["eviction=half", "eviction.shares=1"], "eviction.shares: no such key; did you mean eviction.share?"),
        (["tracking=silent", "tracking.silent.depth=deep"], "tracking.silent.depth must be a whole number"),
    ],
)
def test_a_plug_in_that_cannot_be_had_is_one_line(
    overrides: list[str], expected: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert expected in refusal(capsys, *overrides)
    assert list(folder.iterdir()) == []


def test_a_broken_one_costs_nothing_where_it_is_not_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert composed(capsys, "run", "workload=random").workload.kind == "random"
    assert MODULE not in sys.modules


def test_plug_ins_are_in_the_help_and_are_not_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--help"]) == 0
    printed = capsys.readouterr().out
    for name, text in (
        ("echo", f"Says it again. ({MODULE}:Echo, choices 1.0)"),
        ("silent", f"({MODULE}:Silent, choices 1.0)"),
        ("half", f"({MODULE}:Half, choices 1.0)"),
        ("broken", f"({MODULE}:NoSuchClass, choices 1.0)"),
        ("missing", "(no_such_module:A, choices 1.0)"),
    ):
        assert f"    {name:<20}{text}\n" in printed
    assert MODULE not in sys.modules


class TestInAFile:
    """A YAML file of a user's own, found by --config-dir."""

    @pytest.fixture(autouse=True)
    def files(self, folder: Path) -> None:
        for name, text in {
            "bare": f"kind: {MODULE}:Echo\nrequests: 3\nseed: ${{seed}}\n",
            "typed": "defaults:\n  - /schema/workload/echo@_here_\n  - _self_\nrequests: 3\nseed: ${seed}\n",
            "echo": "defaults:\n  - /schema/workload/echo@_here_\n  - _self_\nrequests: 4\n",
            "wrong": f"kind: {MODULE}:Echo\nrequests: three\n",
            "other": "kind: multi_turn\nrequests: 3\n",
            "no_kind": "requests: 3\n",
            "number": "kind: 3\n",
        }.items():
            place = folder / "mine" / "workload" / f"{name}.yaml"
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)

    @pytest.mark.parametrize("where", [["--config-dir", "mine"], ["hydra.searchpath=[file://mine]"]])
    @pytest.mark.parametrize("choice", ["bare", "typed"])
    def test_it_names_a_plug_in_by_its_kind_or_by_its_schema(
        self, where: list[str], choice: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        config = composed(capsys, "run", *where, f"workload={choice}", "seed=7", "workload.requests=5")
        assert (config.workload.requests, config.workload.kind.removeprefix(f"{MODULE}:").lower()) == (5, "echo")

    def test_a_file_is_taken_before_a_plug_in_of_its_name(self, capsys: pytest.CaptureFixture[str]) -> None:
        where = "hydra.searchpath=[file://mine]"
        assert composed(capsys, "run", where, "workload=echo").workload.requests == 4
        assert composed(capsys, "run", where, "workload=random", "eviction=half").eviction.kind == "half"

    @pytest.mark.parametrize(
        ("choice", "expected"),
        [
            ("wrong", "workload.requests must be a whole number, found three"),
            ("other", "workload.requests: no such key; accepted: kind, seed, num_conversations"),
            ("number", "workload.kind must be the name of a workload, found 3; accepted: broken"),
            ("no_kind", "workload.kind must be the name of a workload, found nothing; accepted: broken, echo, "),
        ],
    )
    def test_its_values_are_checked_like_all_others(
        self, choice: str, expected: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert expected in refusal(capsys, "--config-dir", "mine", f"workload={choice}")


def test_a_schema_has_the_types_and_defaults_of_a_class() -> None:
    assert {name: field.type for name, field in schema_of("eviction", "half").__dataclass_fields__.items()} == {
        "kind": str,
        "share": float,
    }
    with pytest.raises(PluginError, match="has a parameter 'watermark'"):
        schema_of("scheduler", f"{MODULE}:Greedy")
