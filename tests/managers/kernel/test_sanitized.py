"""The native kernel under the address and undefined-behaviour sanitizers: its tests, and a random fuzz.

    python -m pytest -m long tests/managers/kernel/test_sanitized.py

Skipped where the C compiler has no sanitizers.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

TOP = Path(__file__).parents[3]
SANITIZE = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-O1", "-g")
FUZZ_CALLS = 500_000
IN_PLACE_OF_THE_KERNEL = """
import importlib.util, runpy, sys
name = "kvhybrid.managers.kernel._native"
spec = importlib.util.spec_from_file_location(name, sys.argv[1])
sys.modules[name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules[name])
from kvhybrid.managers import kernel
assert kernel.extend_keys is sys.modules[name].extend_keys
sys.argv = sys.argv[2:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
"""Runs a module with the kernel of the first argument."""


def compiler() -> list[str]:
    return shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")


def runtime() -> str | None:
    """The library that has to be loaded before Python, if there is one."""
    try:
        asked = subprocess.run(
            [*compiler(), "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    path = asked.stdout.strip()
    return path if Path(path).is_absolute() and Path(path).exists() else None


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A kernel compiled with sanitizers, otherwise with the flags of Python's own extensions."""
    if runtime() is None:
        pytest.skip("the C compiler has no address sanitizer")
    path = tmp_path_factory.mktemp("kernel") / f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"
    flags = shlex.split(sysconfig.get_config_var("CFLAGS") or "")
    sources = sorted(map(str, (TOP / "managers" / "kernel").glob("*.c")))
    include = f"-I{sysconfig.get_path('include')}"
    command = [*compiler(), *flags, *SANITIZE, "-shared", "-fPIC", include, *sources, "-o", str(path)]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return path


def run(kernel: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a module with ``kernel``."""
    environment = {
        **os.environ,
        "LD_PRELOAD": str(runtime()),
        "ASAN_OPTIONS": "detect_leaks=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONMALLOC": "malloc",
        "KVHYBRID_KERNEL": "native",
    }
    command = [sys.executable, "-c", IN_PLACE_OF_THE_KERNEL, str(kernel), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, cwd=TOP)


def passes(kernel: Path, *arguments: str) -> None:
    done = run(kernel, *arguments)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]
    print(done.stdout)


def test_a_fault_would_be_found(kernel: Path) -> None:
    done = run(kernel, "tests.managers.kernel.fault")
    assert done.returncode != 0
    assert "AddressSanitizer: heap-buffer-overflow" in done.stderr
    assert "put_span" in done.stderr


def test_the_tests_of_the_kernel_pass(kernel: Path) -> None:
    tests = [f"tests/managers/kernel/test_{name}.py" for name in ("kernel", "hashing", "token_ids", "misuse")]
    options = [
        "-p",
        "no:cacheprovider",
        "-k",
        "not scenarios",
    ]  # which run in a process of their own, in plain form
    passes(kernel, "pytest", *options, *tests)


@pytest.mark.parametrize("seed", [1, 2])
def test_random_calls_stay_inside_the_arrays(kernel: Path, seed: int) -> None:
    passes(kernel, "tests.managers.kernel.fuzz", str(seed), str(FUZZ_CALLS))
