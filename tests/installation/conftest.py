"""One build for all tests: an sdist, the wheel that is built from it, and an environment with this wheel."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from shutil import rmtree

import pytest
from filelock import FileLock

from tests.installation.place import Environment, copy_source, run


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``source``, ``dist`` and ``environment``. The workers of pytest-xdist share it."""
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    place = base / "build"
    with FileLock(base / "build.lock"):
        if not (place / "complete").exists():
            rmtree(place, ignore_errors=True)
            source = copy_source(place / "source")
            build = (sys.executable, "-m", "build", "--no-isolation", "--outdir", place / "dist", source)
            built = run(*build, cwd=place)
            assert built.returncode == 0, built.stdout
            environment = Environment.create(place / "environment")
            installed = environment.install(*(place / "dist").glob("*.whl"), cwd=place)
            assert installed.returncode == 0, installed.stdout
            (place / "complete").touch()
    return place


@pytest.fixture(scope="session")
def source(place: Path) -> Path:
    """The copy of the repository that was built. No test changes it."""
    return place / "source"


@pytest.fixture(scope="session")
def sdist(place: Path) -> Path:
    (found,) = place.glob("dist/*.tar.gz")
    return found


@pytest.fixture(scope="session")
def wheel(place: Path) -> Path:
    (found,) = place.glob("dist/*.whl")
    return found


@pytest.fixture(scope="session")
def installed(place: Path) -> Environment:
    """An environment with the wheel."""
    return Environment(place / "environment")
