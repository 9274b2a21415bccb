"""What a replay adds to its hits: bounds, miss-ratio curves and the count of skipped rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvhybrid.cli import main

SMALL = Path(__file__).resolve().parents[1] / "replay" / "small_trace.jsonl"


def replayed(folder: Path, *words: str) -> dict[str, Any]:
    """The summary of ``kvhybrid replay``."""
    given = [f"trace.path={SMALL}", "trace.limit=40", "tracking=none", f"hydra.run.dir={folder}", *words]
    assert main(["replay", *given]) == 0
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return summary


def test_every_replay_says_how_far_it_is_from_the_bounds(tmp_path: Path) -> None:
    summary = replayed(tmp_path / "run", "pool.num_blocks=20")
    most, least = summary["bound/unlimited/hit_rate"], summary["bound/min/hit_rate"]
    assert summary["hit_rate"] < least < most
    assert summary["bound/min/gap"] == pytest.approx(least - summary["hit_rate"])
    assert "bound/optimum/hit_rate" not in summary


def test_the_optimum_lies_between_a_replay_and_its_relaxation(tmp_path: Path) -> None:
    words = ["cache=custom", "cache.layers=[{spec: full}, {spec: sliding_window, fields: {window: 1024}}]"]
    summary = replayed(tmp_path / "run", *words, "pool.num_blocks=60", "bounds=optimum", "trace.limit=15")
    rates = [summary["hit_rate"], *(summary[f"bound/{name}/hit_rate"] for name in ("optimum", "min", "unlimited"))]
    assert rates == sorted(rates)


@pytest.mark.parametrize("words", [["bounds=none"], ["executor=open_loop"], ["pool.enable_prefix_caching=false"]])
def test_bounds_are_left_out_where_they_do_not_apply(words: list[str], tmp_path: Path) -> None:
    assert not [name for name in replayed(tmp_path / "run", *words) if name.startswith("bound/")]


def test_a_curve_has_the_hit_rate_of_every_size(tmp_path: Path) -> None:
    summary = replayed(tmp_path / "run", "pool.num_blocks=40", "curve=[20,40,300]")
    curve = json.loads((tmp_path / "run" / "curve.json").read_text())
    assert curve["method"] == "one pass"
    assert [point["num_blocks"] for point in curve["points"]] == [20, 40, 300]
    assert curve["points"][1]["hit_rate"] == pytest.approx(summary["hit_rate"])
    assert (tmp_path / "run" / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_a_curve_finds_its_own_sizes(tmp_path: Path) -> None:
    summary = replayed(tmp_path / "run", "curve=true")
    points = json.loads((tmp_path / "run" / "curve.json").read_text())["points"]
    assert len(points) > 10
    assert points[0]["hit_rate"] is not None
    assert points[-1]["hit_rate"] == pytest.approx(summary["bound/unlimited/hit_rate"])


def test_other_policies_are_replayed_in_processes(tmp_path: Path) -> None:
    words = ["cache=custom", "cache.layers=[{spec: full}, {spec: sliding_window, fields: {window: 1024}}]"]
    summary = replayed(tmp_path / "run", *words, "pool.num_blocks=60", "curve=[3,60]")
    curve = json.loads((tmp_path / "run" / "curve.json").read_text())
    assert curve["method"] == "one replay per size"
    assert [point["hit_rate"] for point in curve["points"]] == [None, pytest.approx(summary["hit_rate"])]


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("bounds=all", "bounds must be one of none, unlimited, min, optimum, found 'all'"),
        ("curve=[1]", "curve must be at least 2, found 1"),
        ("curve=[a]", "curve must have whole numbers of blocks, found 'a'"),
        ("curve=7", "curve must be true, false or a list of pool.num_blocks, found 7"),
    ],
)
def test_a_mistake_is_one_line(
    word: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", f"trace.path={SMALL}", f"hydra.run.dir={tmp_path / 'run'}", word]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_skipped_rows_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "trace.jsonl").write_text(SMALL.read_text() + "nothing\n")
    words = [f"trace.path={tmp_path / 'trace.jsonl'}", "trace.limit=null", "trace.on_error=skip"]
    assert replayed(tmp_path / "run", *words)["skipped_rows"] == 1
    assert "1 malformed rows of the trace were skipped" in capsys.readouterr().out
