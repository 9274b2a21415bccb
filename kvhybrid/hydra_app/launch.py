"""Launching a verb as a Hydra application over ``pkg://kvhybrid.conf``."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any

import hydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from kvhybrid.errors import InputError, OutputError
from kvhybrid.hydra_app.arguments import flags_first
from kvhybrid.hydra_app.completion import completion_script
from kvhybrid.hydra_app.errors import explain
from kvhybrid.hydra_app.job import Job, Task
from kvhybrid.hydra_app.plugin_source import keep_names_last
from kvhybrid.hydra_app.schema import register_schema
from kvhybrid.hydra_app.sweep import PrintJobs, StartedSweep, close_sweep, sweeps_started, wait_for_jobs
from kvhybrid.hydra_app.yaml_files import check_config_files
from kvhybrid.report.table import print_sweep


def launch(
    verb: str,
    settings: type[Any],
    task: Task,
    arguments: Sequence[str],
    print_jobs: PrintJobs = print_sweep,
) -> int:
    """Compose ``conf/<verb>.yaml`` with the overrides in ``arguments``, read it as ``settings`` and run ``task``,
    once or as a sweep whose jobs ``print_jobs`` shows at its end.

    If a job of a sweep fails, the others still run. Returns the exit code: 2 if a job was refused, 1 if one
    failed, else 0. Raises `InputError` if the config cannot be composed, and `OutputError` if a sweep's folder
    cannot be written to; neither leaves a folder.
    """
    arguments = flags_first(verb, arguments)
    if script := completion_script(arguments):
        print(script)
        return 0
    register_schema()
    check_config_files()
    job = Job(verb, settings, task)
    application = hydra.main(version_base="1.3", config_path="pkg://kvhybrid.conf", config_name=verb)(job.run)
    with sweeps_started() as started:
        try:
            _start(application, verb, keep_names_last(arguments), started)
        except (KeyboardInterrupt, SystemExit):
            _close(started, print_jobs)
            raise
        except Exception as error:
            if job.crashed:
                raise
            ended = _close(started, print_jobs)
            if ended is None and isinstance(error, (FileExistsError, NotADirectoryError)):
                key = "hydra.sweep.dir" if started else "hydra.run.dir"
                raise InputError(f"{key} must be a new or empty folder, found a file: {error.filename}") from error
            if ended is None and started and isinstance(error, OSError) and error.errno:  # Hydra's have no number
                raise OutputError(f"{error.filename or started[0].folder}: {error.strerror}") from error
            if ended is None or isinstance(error, InputError):
                raise InputError(explain(error)) from error
            # A launcher whose worker has died, or a sweeper that cannot continue.
            mistaken = isinstance(error, (HydraException, OmegaConfBaseException))
            reason = explain(error) if mistaken else str(error).partition("\n")[0]
            print(f"kvhybrid {verb}: the sweep has ended early: {reason}", file=sys.stderr)
            return max(ended, 2 if mistaken else 1)
        return _close(started, print_jobs) or job.exit_code


def _start(
    application: Callable[[], None], verb: str, arguments: Sequence[str], started: Sequence[StartedSweep]
) -> None:
    """Run the Hydra application. If a worker of its launcher is killed, which ends the other workers too, start it
    once more; only the jobs that are not done run then."""
    try:
        with _as_command_line(verb, arguments):
            application()
    except BrokenProcessPool:
        if not (started and started[0].is_grid):
            raise
        folder = started[0].folder
        print(
            f"kvhybrid {verb}: a worker was killed; the jobs that are not done are started again", file=sys.stderr
        )
        wait_for_jobs(folder)
        escaped = str(folder).replace("\\", "\\\\").replace("'", "\\'")
        with _as_command_line(verb, [*arguments, f"hydra.sweep.dir='{escaped}'"]):
            application()


def _close(started: Sequence[StartedSweep], print_jobs: PrintJobs) -> int | None:
    return close_sweep(started[0].folder, print_jobs) if started else None


@contextmanager
def _as_command_line(verb: str, arguments: Sequence[str]) -> Iterator[None]:
    """Set ``sys.argv``, which Hydra reads, and the environment variable that makes it raise instead of print.

    Its parser accepts ``-m`` only before the overrides; here it may be anywhere.
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
    """The arguments of a sweep, rewritten so that the keys of a swept group are checked per job.

    In ``workload=random,few_shot workload.requests=8``, Hydra would look up ``requests`` in the default workload,
    but it leaves a choice with a single value to the jobs.
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
