"""``kvhybrid replay``: a trace through scheduler and cache, as a Hydra application over ``conf/replay.yaml``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvhybrid.hydra_app.choices import list_choices

if TYPE_CHECKING:
    from kvhybrid.sessions.invocation import Invocation
    from kvhybrid.sessions.replay_summary import ReplaySummary

GROUPS = ("trace", "cache", "executor", "cost", "pool", "scheduler", "eviction", "retention", "tracking")

HELP = """usage: kvhybrid replay trace.path=FILE [-m] [GROUP=CHOICE ...] [KEY=VALUE ...]

Replays a request trace through the scheduler and the cache manager. No model runs: steps take modelled time.
Shows the hit rates of every cache group. Writes config.yaml, metrics.jsonl, summary.json and hits.png into a new
folder below runs/outputs/replay/; the last line printed is that folder.

examples:
  kvhybrid replay trace.path=FILE                                  one full-attention group, one request at a time
  kvhybrid replay trace.path=FILE cache=gemma3_27b executor=open_loop
  kvhybrid replay trace.path=FILE pool=memory pool.memory=80GB pool.block_size=64
  kvhybrid replay trace.path=FILE -m pool.num_blocks=1000,4000     a sweep: every combination

groups and their choices (the first line of each file):
{choices}

other options:
  -m, --multirun      sweep over the values that commas separate
  --cfg job           print the composed config and stop
  --config-dir DIR    add a folder with groups and choices of your own
  hydra.searchpath=[pkg://PACKAGE.conf]   the same, from an installed package
  --hydra-help        all that Hydra offers
  -sc install=bash    completion of groups, choices and keys: eval "$(kvhybrid replay -sc install=bash)"

Modules that a value names are searched in the current folder too. HYDRA_FULL_ERROR=1 shows tracebacks."""


def main(arguments: Sequence[str]) -> int:
    """Replay, or sweep. Returns the exit code."""
    if any(argument in ("-h", "--help") for argument in arguments):
        print(HELP.format(choices=list_choices(GROUPS)))
        return 0
    from kvhybrid.hydra_app.launch import launch
    from kvhybrid.hydra_app.schema import register_schema
    from kvhybrid.sessions.replay_settings import schema_nodes

    register_schema(schema_nodes())
    return launch("replay", _replay, arguments)


def _replay(config: Any, folder: Path, invocation: Invocation) -> ReplaySummary:
    from kvhybrid.hydra_app.schema import read_config
    from kvhybrid.replay.executor import Executor
    from kvhybrid.replay.trace import Trace
    from kvhybrid.sessions.replay import replay
    from kvhybrid.sessions.replay_settings import ReplaySettings

    settings = read_config(config, ReplaySettings, {"trace": Trace, "executor": Executor})
    return replay(settings, folder, invocation)
