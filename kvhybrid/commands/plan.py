"""``kvhybrid plan``: a model's cache, planned from its config, as a Hydra application over ``conf/plan.yaml``."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvhybrid.hydra_app.choices import list_choices

if TYPE_CHECKING:
    from kvhybrid.report.plan_summary import PlanSummary
    from kvhybrid.sessions.invocation import Invocation
    from kvhybrid.sessions.plan_settings import PlanSettings

PRESETS = "presets/model"

HELP = """usage: kvhybrid plan model=PRESET|model.path=CONFIG_JSON [-m] [--json] [KEY=VALUE ...]

Plans the cache of a model from its config, without weights, GPU or network. Shows layers by kind, groups and
blocks, how many tokens and requests fit into the memory, and what each kind and padding cost. Writes config.yaml,
summary.json and plan.png into a new folder below runs/outputs/plan/; the last line printed is that folder.

examples:
  kvhybrid plan model=gemma3_27b                                    40 GiB for the cache
  kvhybrid plan model.path=FOLDER gpu=h100-80gb tp=2                the memory that the weights leave
  kvhybrid plan model=jamba_mini max_model_len=65536 kv_dtype=float8_e4m3fn
  kvhybrid plan -m model=gemma3_27b,llama3_8b,jamba_mini            side by side
  kvhybrid plan model=gemma3_27b model.config.sliding_window=512    another window

presets (the first line of each file):
{choices}

other options:
  --json              print only the figures, as JSON; for a sweep, as a list
  -m, --multirun      sweep over comma-separated values
  --cfg job           print the composed config and stop
  --config-dir DIR    add a folder with choices of your own
  --hydra-help        all options of Hydra
  -sc install=bash    completion of choices and keys: eval "$(kvhybrid plan -sc install=bash)"

HYDRA_FULL_ERROR=1 shows tracebacks."""


def main(arguments: Sequence[str]) -> int:
    """Plan, or sweep. Returns the exit code."""
    if any(argument in ("-h", "--help") for argument in arguments):
        print(HELP.format(choices=list_choices([PRESETS])))
        return 0
    from kvhybrid.hydra_app.launch import launch
    from kvhybrid.report.plan_table import print_plans
    from kvhybrid.sessions.plan_settings import PlanSettings

    made: list[dict[str, Any]] = []

    def task(settings: PlanSettings, folder: Path, invocation: Invocation) -> PlanSummary:
        from kvhybrid.sessions.plan import plan

        summary = plan(settings, folder, invocation)
        made.append(summary.to_json())
        return summary

    words = [argument for argument in arguments if argument != "--json"]
    if len(words) == len(arguments):
        return launch("plan", PlanSettings, task, words, print_plans)
    with redirect_stdout(sys.stderr):
        code = launch("plan", PlanSettings, task, words, print_plans)
    sweeping = any(word in ("-m", "--multirun") for word in words)
    if made:
        print(json.dumps(made if sweeping else made[0], indent=2))
    return code
