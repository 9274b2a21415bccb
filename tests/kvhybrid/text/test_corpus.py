"""The corpus: what is trained on and what is held out never meet."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from kvhybrid.text.corpus import held_out_text, is_held_out, source_files, training_text


def test_a_file_is_trained_on_or_held_out_by_its_name_alone(tmp_path: Path) -> None:
    held_out = [path.name for path in source_files() if is_held_out(path)]
    assert {"enum.py", "pydoc.py", "uuid.py"} <= set(held_out)
    assert is_held_out(tmp_path / "enum.py")
    assert not is_held_out(tmp_path / "ast.py")
    assert len(held_out) < len(source_files()) / 8


def test_the_two_parts_share_no_file_and_are_source() -> None:
    held_out, trained = held_out_text(), training_text()
    enum = next(path for path in source_files() if path.name == "enum.py").read_bytes()
    assert enum in held_out
    assert enum not in trained
    assert len(trained) > 8 * len(held_out) > 800_000
    assert ast.parse(enum)


def test_nothing_that_differs_between_two_builds_of_one_python_is_read() -> None:
    assert not [path.name for path in source_files() if path.name.startswith("_sysconfigdata")]
    assert source_files() == sorted(source_files())


def test_a_python_without_its_source_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    with pytest.raises(ValueError, match=r"no source of the Python standard library in "):
        held_out_text()
