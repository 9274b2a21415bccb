"""One job, called by Hydra in this process or in a launcher's worker."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from kvhybrid.errors import (
    TRACEBACK_HINT,
    InputError,
    OutputError,
    RunError,
    described,
    one_line,
    print_error,
    wants_traceback,
)
from kvhybrid.hydra_app.schema import plain, read_config
from kvhybrid.interruption import NAMES, name_of, sigterm_raises
from kvhybrid.plugins import PluginError, failure_of
from kvhybrid.run_folder import SUMMARY, FolderTakenError, RunFolder, remove_empty
from kvhybrid.sessions.invocation import Invocation
from kvhybrid.streams import lasting_streams


class Ended(Protocol):
    """The outcome that a task reports."""

    @property
    def status(self) -> str:
        """done, interrupted, refused or failed."""

    @property
    def reason(self) -> str | None:
        """Why it was not done."""


Task = Callable[[Any, Path, Invocation], Ended]
"""Takes the settings and the run folder, and fills the folder. Raises `InputError` for a mistake."""


class Job:
    """The jobs of one launch. The outcome of a sweep's job is only in its folder, since workers share nothing
    else; ``exit_code`` and ``crashed`` are only used for a single run."""

    def __init__(self, verb: str, settings: type[Any], task: Task) -> None:
        self._verb = verb
        self._settings = settings
        self._task = task
        self._with_traceback = wants_traceback()
        self.exit_code = 0
        self.crashed = False

    def run(self, config: DictConfig) -> float | None:
        """Run the job that Hydra has set up. Returns its objective for the sweeper; None if it was not done."""
        hydra = HydraConfig.get()
        folder = RunFolder(hydra.runtime.output_dir)
        sweeping = hydra.mode == RunMode.MULTIRUN
        with lasting_streams(), sigterm_raises():
            try:
                return (self._run_in_sweep if sweeping else self._run_alone)(config, folder, hydra)
            finally:
                remove_empty(folder.path, below=Path.cwd())

    def _run_alone(self, config: DictConfig, folder: RunFolder, hydra: DictConfig) -> None:
        try:
            settings = read_config(config, self._settings)
            self.exit_code = int(self._fill(settings, folder, self._invocation(config, hydra)).status != "done")
        except InputError as error:
            # Hydra would wrap exceptions raised here in a report of its own.
            self._say(error)
            self.exit_code = 2
        except RunError as error:
            self._say(error)
            self.exit_code = 1
        except Exception:
            self.crashed = True
            raise

    def _run_in_sweep(self, config: DictConfig, folder: RunFolder, hydra: DictConfig) -> float | None:
        """Returns even if the job fails, so that later jobs run."""
        overrides = _overrides(hydra)
        try:
            if config.get("record"):
                config.record = _of_job(config.record, hydra.job.num)
            _remove_unfinished(folder, overrides)
            settings = read_config(config, self._settings)
            invocation = self._invocation(config, hydra)
            if _is_done(folder):
                _require_same(folder, invocation)
                print(f"job {hydra.job.num} is done: {folder.path}")
            else:
                self._fill(settings, folder, invocation)
        except FolderTakenError:
            raise  # the folder must not be written to
        except InputError as error:
            if _is_done(folder):
                raise  # its results must not be overwritten
            self._say(error)
            _mark(folder, "refused", one_line(error), overrides)
        except RunError as error:
            self._say(error)
            _mark(folder, "failed", one_line(error), overrides)
        except Exception as error:
            traceback.print_exc()
            _mark(folder, "failed", described(error), overrides)
        except KeyboardInterrupt as interrupt:
            _mark(folder, "interrupted", name_of(interrupt), overrides)
            raise
        found = folder.outcome() or {}
        return found.get(config.objective) if found.get("status") == "done" else None

    def _fill(self, settings: Any, folder: RunFolder, invocation: Invocation) -> Ended:
        try:
            summary = self._task(settings, folder.path, invocation)
        except (InputError, OutputError):
            raise
        except (Exception, SystemExit) as error:  # an exit would end the sweep, or pass for a run that was done
            has_results = (folder.path / SUMMARY).exists()
            if has_results:
                print(folder.path)
            line = failure_of(error)
            if line is None and isinstance(error, SystemExit):
                line = f"a plug-in has called sys.exit({error.code!r})"
            if isinstance(error, RunError) or line is None:
                raise
            raise (RunError if has_results else PluginError)(f"{line}{TRACEBACK_HINT}") from error
        print(folder.path)
        if summary.status == "interrupted":
            raise NAMES[str(summary.reason)]  # the results are written; now a sweep ends too
        return summary

    def _invocation(self, config: DictConfig, hydra: DictConfig) -> Invocation:
        choices = OmegaConf.to_container(hydra.runtime.choices)
        return Invocation(
            verb=self._verb,
            config=plain(config),
            choices={group: choice for group, choice in choices.items() if choice and not _is_hydras(group)},
            overrides=_overrides(hydra),
        )

    def _say(self, error: Exception) -> None:
        print_error(self._verb, error, self._with_traceback)


def _is_hydras(group: str) -> bool:
    return group.startswith("hydra/")


def _overrides(hydra: DictConfig) -> tuple[str, ...]:
    found: list[str] = OmegaConf.to_container(hydra.overrides.task, resolve=False)
    return tuple(found)


def _of_job(path: str, number: int) -> str:
    """``calls.jsonl`` of job 3 is ``calls.3.jsonl``."""
    place = Path(path)
    return str(place.with_name(f"{place.stem}.{number}{place.suffix}"))


def _is_done(folder: RunFolder) -> bool:
    outcome = folder.outcome()
    return outcome is not None and outcome["status"] == "done"


def _remove_unfinished(folder: RunFolder, overrides: tuple[str, ...]) -> None:
    """Remove the files of a job that an earlier start of the sweep has not completed.

    Raises:
        FolderTakenError: Another process runs the job.
    """
    if folder.outcome() is None or _is_done(folder):
        return
    with folder.claimed(overrides):
        if not _is_done(folder):  # it might have been done in the meantime
            folder.clear()


def _require_same(folder: RunFolder, invocation: Invocation) -> None:
    """Raises `FolderTakenError` for the result of a job with another configuration."""
    config = folder.path / "config.yaml"
    if not config.exists() or config.read_text(encoding="utf-8") != invocation.yaml():
        raise FolderTakenError(
            f"{folder.path} holds the result of another configuration; remove it, or choose another "
            f"hydra.sweep.dir"
        )


def _mark(folder: RunFolder, status: str, reason: str, overrides: tuple[str, ...]) -> None:
    """Write the summary of a job that ended before it wrote one."""
    try:
        with folder.claimed(overrides):
            if not (folder.path / SUMMARY).exists():
                folder.write_json(SUMMARY, {"status": status, "reason": reason, "overrides": list(overrides)})
    except (OSError, OutputError, FolderTakenError) as error:
        print(f"{folder.path}: {one_line(error)}", file=sys.stderr)
