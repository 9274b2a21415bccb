"""Launching a verb as a Hydra application over ``pkg://kvhybrid.conf``."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from kvhybrid.errors import InputError, print_error, wants_traceback
from kvhybrid.hydra_app.arguments import flags_first
from kvhybrid.hydra_app.completion import completion_script
from kvhybrid.hydra_app.errors import explain
from kvhybrid.hydra_app.schema import register_schema
from kvhybrid.hydra_app.sweep import discard_sweep
from kvhybrid.hydra_app.yaml_files import check_config_files
from kvhybrid.run_folder import remove_empty

Task = Callable[[DictConfig, Path, list[str]], None]
"""Takes the composed config, the run folder and the job's overrides; raises `InputError` for a mistake."""


def launch(verb: str, task: Task, arguments: Sequence[str]) -> int:
    """Compose ``conf/<verb>.yaml`` with the overrides in ``arguments`` and run ``task``, once or as a sweep.

    A job of a sweep that the user got wrong says so and the others go on. Returns the exit code: 0, or 2
    where a job was refused. Raises `InputError` where nothing can be composed; no folder is left behind then.
    """
    arguments = flags_first(verb, arguments)
    if script := completion_script(arguments):
        print(script)
        return 0
    register_schema()
    check_config_files()
    jobs = _Jobs(verb, task)
    application = hydra.main(version_base="1.3", config_path="pkg://kvhybrid.conf", config_name=verb)
    try:
        with _as_command_line(verb, arguments):
            application(jobs.run)()
    except Exception as error:
        if jobs.crashed:
            raise
        discard_sweep()
        raise InputError(explain(error)) from error
    return 2 if jobs.refused else 0


class _Jobs:
    """Runs the task of one launch, and remembers how its jobs ended."""

    def __init__(self, verb: str, task: Task) -> None:
        self._verb = verb
        self._task = task
        self._with_traceback = wants_traceback()
        self.refused = False
        self.crashed = False

    def run(self, config: DictConfig) -> None:
        job = HydraConfig.get()
        folder = Path(job.runtime.output_dir)
        try:
            self._task(config, folder, OmegaConf.to_container(job.overrides.task, resolve=False))
        except InputError as error:
            # Hydra would wrap what is raised here in a report of its own.
            self.refused = True
            print_error(self._verb, error, self._with_traceback)
            remove_empty(folder, below=Path.cwd())
        except Exception:
            self.crashed = True
            raise


@contextmanager
def _as_command_line(verb: str, arguments: Sequence[str]) -> Iterator[None]:
    """Hydra reads ``sys.argv``, and raises rather than prints only when asked by the environment.

    Its parser takes ``-m`` only before the overrides; here it may stand anywhere.
    """
    sweeping = [argument for argument in arguments if argument in ("-m", "--multirun")]
    others = [argument for argument in arguments if argument not in sweeping]
    argv, full_error = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    sys.argv = [f"kvhybrid {verb}", *(["-m", *_per_job(others)] if sweeping else others)]
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        yield
    finally:
        sys.argv = argv
        if full_error is None:
            del os.environ["HYDRA_FULL_ERROR"]
        else:
            os.environ["HYDRA_FULL_ERROR"] = full_error


def _per_job(arguments: Sequence[str]) -> list[str]:
    """The arguments of a sweep, so written that the keys of a swept group are checked job by job.

    In ``workload=random,few_shot workload.requests=8`` Hydra would look for ``requests`` in the default workload;
    a choice of one value it leaves to the jobs.
    """
    parser = OverridesParser.create()
    given = list(arguments)
    try:
        parsed = {at: parser.parse_override(text) for at, text in enumerate(given) if "=" in text}
    except HydraException:
        return given
    swept = {override.key_or_group for override in parsed.values() if override.is_sweep_override()}
    for at, override in parsed.items():
        key, _, value = given[at].partition("=")
        group, dot, _ = key.partition(".")
        if dot and group in swept and not override.is_sweep_override():
            given[at] = f"{key}=choice({value})"
    return given
