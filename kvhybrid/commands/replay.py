"""``kvhybrid replay``: a trace through scheduler and cache, as a Hydra application over ``conf/replay.yaml``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kvhybrid.hydra_app.choices import list_choices, list_names
from kvhybrid.specs import registry as specs

if TYPE_CHECKING:
    from kvhybrid.sessions.invocation import Invocation
    from kvhybrid.sessions.replay_settings import ReplaySettings
    from kvhybrid.sessions.replay_summary import ReplaySummary

GROUPS = ("trace", "cache", "executor", "cost", "pool", "scheduler", "eviction", "retention", "layout", "tracking")

NAMED = {"cache.layers[].spec": specs}
"""Kinds of plug-ins that have no config group."""

HELP = """usage: kvhybrid replay trace.path=FILE [-m] [GROUP=CHOICE ...] [KEY=VALUE ...]

Replays a request trace through the scheduler and the cache manager. No model runs: steps take modelled time.
Shows the hit rates of every cache group. Writes config.yaml, metrics.jsonl, summary.json and hits.png into a new
folder below runs/outputs/replay/; the last line printed is that folder.

examples:
  kvhybrid replay trace.path=FILE                                  one full-attention group, one request at a time
  kvhybrid replay trace.path=FILE cache=gemma3_27b executor=open_loop
  kvhybrid replay trace.path=FILE pool=memory pool.memory=80GB pool.block_size=64
  kvhybrid replay trace.path=FILE -m pool.num_blocks=1000,4000     a sweep: every combination

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
  -sc install=bash    completion of groups, choices and keys: eval "$(kvhybrid replay -sc install=bash)"

Modules in values are also searched in the current folder. HYDRA_FULL_ERROR=1 shows tracebacks."""


def main(arguments: Sequence[str]) -> int:
    """Replay, or sweep. Returns the exit code."""
    if any(argument in ("-h", "--help") for argument in arguments):
        print(HELP.format(choices=list_choices(GROUPS), names=list_names(NAMED)))
        return 0
    from kvhybrid.hydra_app.launch import launch
    from kvhybrid.sessions.replay_settings import ReplaySettings

    return launch("replay", ReplaySettings, _replay, arguments)


def _replay(settings: ReplaySettings, folder: Path, invocation: Invocation) -> ReplaySummary:
    from kvhybrid.sessions.replay import replay

    return replay(settings, folder, invocation)
