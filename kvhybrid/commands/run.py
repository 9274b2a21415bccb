"""``kvhybrid run``: a model on a workload, as a Hydra application over ``conf/run.yaml``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvhybrid.hydra_app.choices import list_choices, list_names
from kvhybrid.models.backends import attention_backends, mamba2_backends, mamba_backends
from kvhybrid.models.families import families
from kvhybrid.plugins import Registry

if TYPE_CHECKING:
    from kvhybrid.report.summary import RunSummary
    from kvhybrid.sessions.invocation import Invocation
    from kvhybrid.sessions.run_settings import RunSettings

GROUPS = (
    "model",
    "workload",
    "pool",
    "scheduler",
    "eviction",
    "retention",
    "layout",
    "quality",
    "tracking",
    "experiment",
)

NAMED: Mapping[str, Registry[Any]] = {
    "backends.attention": attention_backends,
    "backends.mamba": mamba_backends,
    "backends.mamba, Mamba-2": mamba2_backends,
    "model families, by model_type": families,
}
"""Kinds of plug-ins that have no config group."""

HELP = """usage: kvhybrid run [-m] [GROUP=CHOICE ...] [KEY=VALUE ...]

Runs a model on a workload and shows the hit rates of every cache group. Writes config.yaml, metrics.jsonl,
summary.json and hits.png into a new folder below runs/outputs/run/; the last line printed is that folder.

examples:
  kvhybrid run                                              a small trained Gemma 3 completes Python source
  kvhybrid run model=jamba_tiny workload=multi_turn
  kvhybrid run model=hf model.path=FOLDER device=cuda pool=memory pool.memory=8GiB
  kvhybrid run model=hf model.path=FOLDER workload=prompts workload.path=FILE       text to text
  kvhybrid run -m model=gemma3_tiny,jamba_tiny workload=random,few_shot   a sweep: every combination

groups and their choices; a class of your own is GROUP=module:Class:
{choices}

plug-ins without a group:
{names}

other options:
  -m, --multirun      sweep over comma-separated values
  --cfg job           print the composed config and stop
  --config-dir DIR    add a folder with groups and choices of your own
  hydra.searchpath=[pkg://PACKAGE.conf]   the same, from an installed package
  --hydra-help        all options of Hydra
  -sc install=bash    completion of groups, choices and keys: eval "$(kvhybrid run -sc install=bash)"

Modules in values are also searched in the current folder. HYDRA_FULL_ERROR=1 shows tracebacks."""


def main(arguments: Sequence[str]) -> int:
    """Run, or sweep. Returns the exit code."""
    if any(argument in ("-h", "--help") for argument in arguments):
        print(HELP.format(choices=list_choices(GROUPS), names=list_names(NAMED)))
        return 0
    from kvhybrid.hydra_app.launch import launch
    from kvhybrid.sessions.run_settings import RunSettings

    return launch("run", RunSettings, _run, arguments)


def _run(settings: RunSettings, folder: Path, invocation: Invocation) -> RunSummary:
    from kvhybrid.sessions.run import run

    return run(settings, folder, invocation)
