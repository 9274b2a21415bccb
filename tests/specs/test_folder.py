"""The folder: one name to import it by, and nothing heavy behind it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import kvhybrid.specs

ROOT = Path(kvhybrid.specs.__file__).resolve().parents[1]


def python(code: str) -> subprocess.CompletedProcess[str]:
    program = f"import sys; sys.path.insert(0, {str(ROOT)!r}); {code}"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)


def test_it_cannot_be_imported_under_its_own_name() -> None:
    result = python("import specs")
    assert result.returncode == 1
    assert "ImportError: import this folder as kvhybrid.specs, not as specs" in result.stderr


def test_nor_can_a_file_of_it() -> None:
    result = python("import specs.full")
    assert "ImportError: import this folder as kvhybrid.specs, not as specs" in result.stderr


def test_it_imports_the_lowest_floor_alone_and_no_torch() -> None:
    result = python(
        "import kvhybrid.specs; "
        "print(sorted(m for m in sys.modules if m == 'torch' or m.startswith('kvhybrid.')"
        " and not m.startswith('kvhybrid.specs')))"
    )
    assert result.stdout == "['kvhybrid.errors', 'kvhybrid.plugins']\n"


def test_every_public_name_is_there() -> None:
    assert all(hasattr(kvhybrid.specs, name) for name in kvhybrid.specs.__all__)
