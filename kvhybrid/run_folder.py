"""The folder of one run: exclusive access to it, and the outcome of the run in it.

Every file is written atomically.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from math import isfinite
from pathlib import Path
from typing import Any

from kvhybrid.errors import InputError, OutputError
from kvhybrid.files import atomic_path

SUMMARY = "summary.json"
CLAIM = ".running"
"""Lock file, locked by the process that writes to the folder while it lives. Contains the overrides of the run."""
OWN_FILES = (
    "config.yaml",
    "provenance.json",
    SUMMARY,
    "outputs.jsonl",
    "hits.png",
    "plan.png",
    "curve.json",
    "curve.png",
    "wandb",
)
"""Files that a run writes to its folder, in addition to those of trackers."""


HYDRA_FILES = {"config.yaml", "hydra.yaml", "overrides.yaml"}
"""Files that Hydra writes to ``hydra.output_subdir``."""


class FolderTakenError(InputError):
    """The folder belongs to another run."""


def finite(content: Any) -> Any:
    """The same content with NaN and infinities, which JSON lacks, replaced by None."""
    if isinstance(content, Mapping):
        return {key: finite(value) for key, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [finite(value) for value in content]
    return None if isinstance(content, float) and not isfinite(content) else content


class RunFolder:
    """The output folder of one run."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.unfinished = False
        """Whether the summary could not be written. The lock file then stays."""

    @contextmanager
    def claimed(self, overrides: Sequence[str] = ()) -> Iterator[None]:
        """Create the folder if necessary, and lock it against other processes.

        If it was created here and is still empty at the end, it is removed. If the process is killed, its lock
        file stays, which `outcome` reports.

        Raises:
            FolderTakenError: Another process is writing to the folder.
            OutputError: The folder cannot be created.
        """
        ancestor = next(place for place in (self.path, *self.path.absolute().parents) if place.exists())
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            claim = self._claim()
        except OSError as error:
            raise OutputError(f"the run folder {self.path} cannot be created: {error.strerror}") from error
        try:
            with suppress(OSError):
                os.write(claim, json.dumps(list(overrides)).encode())
            yield
        finally:
            if not self.unfinished:
                (self.path / CLAIM).unlink(missing_ok=True)
            os.close(claim)
            remove_empty(self.path, below=ancestor)

    def _claim(self) -> int:
        """The descriptor of the lock file, locked."""
        while True:
            claim = os.open(self.path / CLAIM, os.O_RDWR | os.O_CREAT, 0o666)
            if not _lock(claim):
                os.close(claim)
                raise FolderTakenError(f"another process is writing to the run folder {self.path}")
            if os.fstat(claim).st_nlink:  # else the process that held it has removed it in the meantime
                os.ftruncate(claim, 0)
                return claim
            os.close(claim)

    def require_empty(self) -> None:
        """Raise `FolderTakenError` if the folder has other files than those that Hydra writes before a run."""
        if self._content():
            raise FolderTakenError(f"the run folder must be new or empty, found files in {self.path}")

    def _content(self) -> list[Path]:
        found = self.path.iterdir() if self.path.is_dir() else ()
        return [place for place in found if place.name != CLAIM and not _is_hydras(place)]

    def outcome(self) -> dict[str, Any] | None:
        """The content of ``summary.json`` or, if the run has not written it, only ``status`` and ``reason``.

        The status is then ``running``, or ``failed`` if the run was killed. None if there was no run.
        """
        with suppress(FileNotFoundError, NotADirectoryError, ValueError):
            summary: dict[str, Any] = json.loads((self.path / SUMMARY).read_text(encoding="utf-8"))
            return summary
        try:
            with open(self.path / CLAIM, "rb") as claim:
                overrides = _overrides(claim.read())
                taken = _is_locked(claim.fileno())
        except FileNotFoundError:
            return None
        if taken:
            reason = "another process is writing to the folder"
            return {"status": "running", "reason": reason, "overrides": overrides}
        reason = f"left no {SUMMARY}: it was killed, or its disk was full"
        return {"status": "failed", "reason": reason, "overrides": overrides}

    def clear(self) -> None:
        """Remove the files of a run. Call it only while the folder is claimed."""
        for place in self._content():
            if place.is_dir() and not place.is_symlink():
                shutil.rmtree(place)
            else:
                place.unlink()

    def refuse_own(self, key: str, path: str) -> None:
        """Raise `InputError` if ``path`` is one of the files that the run writes to this folder."""
        place = Path(path).resolve()
        if place.parent == self.path.resolve() and place.name in OWN_FILES:
            raise InputError(f"{key}: the run itself writes {place.name} into its folder; accepted: another name")

    def atomic_path(self, name: str) -> AbstractContextManager[Path]:
        """A temporary path that is renamed to ``name`` if the block succeeds, and removed otherwise."""
        return atomic_path(self.path / name)

    def write_text(self, name: str, text: str) -> None:
        with self.atomic_path(name) as partial:
            partial.write_text(text, encoding="utf-8")

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        self.write_text(name, json.dumps(finite(content), indent=2, allow_nan=False) + "\n")


def _is_hydras(place: Path) -> bool:
    """Whether it was written because of ``hydra/job_logging`` or ``hydra.output_subdir``: a log file or a
    folder."""
    if place.is_dir():
        return {file.name for file in place.rglob("*") if not file.is_dir()} == HYDRA_FILES
    return place.is_file() and place.suffix == ".log"


def remove_empty(folder: Path, *, below: Path) -> None:
    """Remove ``folder`` and its parents below ``below`` while they are empty."""
    folder, below = folder.absolute(), below.absolute()
    while folder != below and below in folder.parents and folder.is_dir():
        if any(folder.iterdir()):
            return
        folder.rmdir()
        folder = folder.parent


def _overrides(claim: bytes) -> list[str]:
    try:
        return [str(override) for override in json.loads(claim)]
    except ValueError:  # killed before it was written
        return []


if sys.platform == "win32":

    def _lock(claim: int) -> bool:
        return True  # there, only `require_empty` keeps two runs apart

    def _is_locked(claim: int) -> bool:
        return False

else:
    import fcntl

    def _lock(claim: int) -> bool:
        """Lock the file; returns False if another process holds the lock. Some network file systems have no
        locks."""
        try:
            fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True

    def _is_locked(claim: int) -> bool:
        """Whether another process holds the lock, or this cannot be determined."""
        try:
            fcntl.flock(claim, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        return False
