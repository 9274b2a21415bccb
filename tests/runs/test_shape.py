"""Every recipe has the same shape: a README with the same sections, one way to start it, a table and a picture."""

from __future__ import annotations

import re
import subprocess
from importlib import import_module
from pathlib import Path

import pytest

from runs.pictures import read_table

RUNS = Path(__file__).resolve().parents[2] / "runs"
RECIPES = sorted(place.parent.name for place in RUNS.glob("*/README.md"))
SECTIONS = ["Question", "Command", "Results", "Why"]
WITHOUT_FIGURES = {"gpu_check", "models"}
"""The first until it is run on a GPU, as `test_gpu_check.py` checks. The second writes a page of the docs."""


def readme_of(name: str) -> str:
    return (RUNS / name / "README.md").read_text(encoding="utf-8")


def test_every_folder_is_a_recipe() -> None:
    folders = {place.name for place in RUNS.iterdir() if any(place.glob("*.py"))}
    assert folders == set(RECIPES)


@pytest.mark.parametrize("name", RECIPES)
def test_its_readme_says_question_command_result_and_reasons(name: str) -> None:
    found = re.findall(r"^## (.*)$", readme_of(name), re.MULTILINE)
    assert [next(s for s in SECTIONS if heading.startswith(s)) for heading in found] == SECTIONS
    assert f"python -m runs.{name}.run" in readme_of(name)


@pytest.mark.parametrize("name", sorted(set(RECIPES) - WITHOUT_FIGURES))
def test_its_table_and_picture_are_there_and_shown(name: str) -> None:
    assert "(table.md)" in readme_of(name)
    assert "](plot.png)" in readme_of(name)
    assert (RUNS / name / "plot.png").read_bytes().startswith(b"\x89PNG")
    assert "|---" in (RUNS / name / "table.md").read_text(encoding="utf-8").replace("| --:", "|---")


@pytest.mark.parametrize("name", RECIPES)
def test_its_help_names_the_command(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        import_module(f"runs.{name}.run").main(["--help"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: python -m runs.{name}.run ")


@pytest.mark.parametrize("name", ["engine_rule", "engine_speed", "lifetime", "mooncake_limits", "quality"])
def test_the_picture_is_drawn_from_the_table(name: str, tmp_path: Path) -> None:
    (tmp_path / "table.md").write_text((RUNS / name / "table.md").read_text(encoding="utf-8"), encoding="utf-8")
    import_module(f"runs.{name}.run").plot(tmp_path)
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_a_table_is_read_by_its_headings(tmp_path: Path) -> None:
    (tmp_path / "table.md").write_text("| a | b |\n|---|---|\n| 1 | x y |\n| 2 | |\n\n| not | this |\n")
    assert read_table(tmp_path / "table.md") == [{"a": "1", "b": "x y"}, {"a": "2", "b": ""}]


def test_outputs_are_not_tracked() -> None:
    ignored = subprocess.run(["git", "check-ignore", "-q", "runs/outputs/x"], cwd=RUNS.parent, check=False)
    assert ignored.returncode in (0, 128), "128: no git repository here"
