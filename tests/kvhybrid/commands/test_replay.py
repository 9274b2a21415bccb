"""``kvhybrid replay`` from end to end: what it prints, writes and refuses."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvhybrid.cli import main
from kvhybrid.replay.arrivals import OneByOne
from kvhybrid.replay.layers import CacheSettings, LayerSettings
from kvhybrid.replay.mooncake import MooncakeTrace
from kvhybrid.sessions.replay import replay
from kvhybrid.sessions.replay_settings import ReplaySettings
from kvhybrid.tracking.jsonl import JsonLinesTracker
from tests.kvhybrid.sessions.stopping import Stopping

ROOT = Path(__file__).resolve().parents[3]
SMALL = Path(__file__).parents[1] / "replay" / "small_trace.jsonl"
TRACE = f"trace.path={SMALL}"
PAGE = (ROOT / "docs" / "replay-a-trace.md").read_text(encoding="utf-8")


def content(folder: Path) -> tuple[list[dict[str, float]], dict[str, Any]]:
    """The lines of ``metrics.jsonl``, and the summary."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return lines, json.loads((folder / "summary.json").read_text())


def test_it_fills_a_folder_prints_it_last_and_never_imports_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from kvhybrid.cli import main\n"
        f"code = main(['replay', {TRACE!r}, 'cache=gemma3_27b', 'executor=open_loop', 'trace.limit=12'])\n"
        "print(sorted({'torch', 'transformers', 'wandb'} & set(sys.modules)), file=sys.stderr)\n"
        "sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    *progress, imported = done.stderr.splitlines()
    assert imported == "[]"
    assert progress[0] == "gemma3_27b open_loop: 12 requests"
    assert "12 requests done" in progress[-1]
    folder = Path(done.stdout.splitlines()[-1])
    assert folder.parent == tmp_path / "runs" / "outputs" / "replay"
    assert {place.name for place in folder.iterdir()} == {
        "config.yaml",
        "hits.png",
        "metrics.jsonl",
        "provenance.json",
        "summary.json",
    }
    assert (folder / "hits.png").read_bytes().startswith(b"\x89PNG")
    for part in ("sliding_window.5", "where the prompt tokens went", "modelled: clock", "median", "P99"):
        assert part in done.stdout


def test_a_model_by_its_config_gives_what_its_layers_by_hand_give(tmp_path: Path) -> None:
    words = [TRACE, "executor=open_loop", "pool=memory", "pool.memory=1GiB", "pool.block_size=16"]
    for name, cache in {"by_hand": ["cache=jamba_mini"], "config": ["cache=hf", "cache.path=jamba_mini"]}.items():
        assert main(["replay", *words, *cache, f"hydra.run.dir={tmp_path / name}"]) == 0
    by_hand, by_config = (content(tmp_path / name)[1] for name in ("by_hand", "config"))
    assert by_config["hit_rate"] == by_hand["hit_rate"] > 0
    assert by_config["steps"] == by_hand["steps"]
    shown = ("kind", "num_layers", "block_size")
    groups = [sorted(tuple(g[key] for key in shown) for g in s["groups"]) for s in (by_hand, by_config)]
    assert groups[0] == groups[1]


def test_the_plan_is_printed_in_short_and_in_the_summary(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [TRACE, "pool.num_blocks=300", "scheduler.max_model_len=100000", f"hydra.run.dir={tmp_path}"]
    assert main(["replay", *words]) == 0
    plan = content(tmp_path)[1]["plan"]
    assert (plan["num_blocks"], plan["max_model_len"], plan["padding_share"]) == (300, 100_000, 0)
    assert plan["pool_bytes"] == 300 * plan["bytes_per_block"]
    assert plan["concurrency"] == 300 / 196
    assert plan["capacity_tokens"] == 300 * 100_000 // 196
    expected = (
        f"planned: 300 blocks of {plan['bytes_per_block']:,} bytes, {plan['capacity_tokens']:,} tokens, "
        "1.53 requests of 100,000 tokens, 0.0% padding"
    )
    assert expected in capsys.readouterr().out.splitlines()


def test_lines_are_printed_at_an_interval_of_steps_and_at_the_end(tmp_path: Path) -> None:
    words = [TRACE, "sample_every=50", "executor=open_loop", f"hydra.run.dir={tmp_path}"]
    assert main(["replay", *words]) == 0
    lines, summary = content(tmp_path)
    assert [line["step"] for line in lines] == [*range(50, summary["steps"], 50), summary["steps"]]
    assert sum(line["step/new_tokens"] for line in lines) == summary["output_tokens"]
    assert lines[-1]["replay/requests"] == summary["requests"] == 30
    assert lines[-1]["modelled/seconds"] == summary["modelled/seconds"]
    assert lines[-1]["modelled/ttft_mean"] == pytest.approx(summary["modelled/ttft_mean"])
    last = {name.removeprefix("group/full/miss/"): value for name, value in lines[-1].items() if "/miss/" in name}
    assert sum(last.values()) + lines[-1]["group/full/tokens_hit"] == lines[-1]["group/full/tokens_asked"]


def test_misses_need_not_be_tracked(tmp_path: Path) -> None:
    assert main(["replay", TRACE, "track_misses=false", f"hydra.run.dir={tmp_path}"]) == 0
    assert not [name for name in content(tmp_path)[1] if "/miss/" in name]


def test_a_sweep_ends_with_a_table_of_its_jobs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [TRACE, "-m", "pool.num_blocks=20,300", f"hydra.sweep.dir={tmp_path}"]
    assert main(["replay", *words]) == 0
    *printed, folder = capsys.readouterr().out.splitlines()
    assert folder == str(tmp_path)
    rows = [line for line in printed if re.match(r"\d +pool.num_blocks=", line)]
    assert [row.split()[1] for row in rows] == ["pool.num_blocks=20", "pool.num_blocks=300"]
    small, large = (content(tmp_path / job)[1]["hit_rate"] for job in "01")
    assert small < large


def test_a_model_that_retention_cannot_thin_out_is_a_refused_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [TRACE, "-m", "cache=llama,gemma3_27b", "retention=every_n", "retention.interval=512"]
    assert main(["replay", *words, f"hydra.sweep.dir={tmp_path}"]) == 2
    out = capsys.readouterr().out
    assert re.search(r"^0 +refused +cache=llama *$", out, re.MULTILINE)
    assert re.search(r"^1 +done +cache=gemma3_27b ", out, re.MULTILINE)
    assert re.search(
        r"^job 0 refused: retention.interval = 512: .* the groups 'full' \(full\) keep", out, re.MULTILINE
    )


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([], ["trace.path is missing: give trace.path=VALUE"]),
        (
            ["trace.path=nothing"],
            ["trace.path: nothing: cannot be read: No such file", "accepted: a file with one JSON object per"],
        ),
        ([TRACE, "trace.limt=3"], ["trace.limt: no such key; did you mean trace.limit?"]),
        ([TRACE, "cache=lama"], ["cache=lama: no such choice; did you mean cache=llama?"]),
        ([TRACE, "executor=open_loop", "executor.time_scale=fast"], ["time_scale must be a number, found fast"]),
        ([TRACE, "cost.base=0"], ["cost.base must be more than 0"]),
        ([TRACE, "+cost.colour=1"], ["cost.colour: no such key; accepted: kind, base, "]),
        ([TRACE, "pool.num_blocks=5"], ["needs", "blocks", "the pool has 5"]),
        ([TRACE, "scheduler.max_model_len=64"], ["small_trace.jsonl: the longest request has", "max_model_len"]),
        ([TRACE, "cache=custom"], ["cache.layers must have an entry"]),
        ([TRACE, "cache=hf"], ["or cache.path must name a config.json; found none"]),
        ([TRACE, "cache=hf", "cache.path=jamba_mni"], ["cache.path: jamba_mni: cannot be read", "did you mean"]),
        ([TRACE, "cache=llama", "cache.path=jamba_mini"], ["give one of cache.layers and cache.path"]),
        (
            [TRACE, "cache=custom", "cache.layers=[{spec: full, cuont: 2}]"],
            ["cuont: no such key", "did you mean count"],
        ),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(
    overrides: list[str],
    expected: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["replay", *overrides]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("kvhybrid replay: ")
    for part in expected:
        assert part in line
    assert list(tmp_path.iterdir()) == []


def test_a_mistake_in_the_trace_names_file_line_and_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = SMALL.read_text().splitlines()
    Path("bad.jsonl").write_text(
        "\n".join([*lines[:4], lines[4].replace('"input_length": ', '"input_length": 9'), ""])
    )
    assert main(["replay", "trace.path=bad.jsonl"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "bad.jsonl, line 5: hash_ids: found" in line
    assert [place.name for place in tmp_path.iterdir()] == ["bad.jsonl"]


def test_an_interrupted_replay_keeps_what_it_found(tmp_path: Path) -> None:
    settings = ReplaySettings(
        trace=MooncakeTrace(path=str(SMALL)),
        executor=OneByOne(),
        cache=CacheSettings(layers=[LayerSettings(spec="full")]),
        tracking={"jsonl": JsonLinesTracker(), "stop": Stopping(how="KeyboardInterrupt")},
        sample_every=10,
    )
    settings.pool.num_blocks = 1000
    summary = replay(settings, tmp_path)
    assert summary.status == "interrupted"
    lines, written = content(tmp_path)
    assert (len(lines), written["status"], written["steps"]) == (2, "interrupted", 20)


def test_the_page_has_every_name_that_a_replay_adds_and_no_other(tmp_path: Path) -> None:
    assert main(["replay", TRACE, f"hydra.run.dir={tmp_path}"]) == 0
    lines, summary = content(tmp_path)
    known = {*re.findall(r"^\| `([^`]+)` \|", (ROOT / "docs" / "read-the-metrics.md").read_text(), re.MULTILINE)}
    own = {name for name in {*lines[-1], *summary} if not name.startswith("group/")} - known
    own -= {"name", "overrides", "groups", "plan", "request_failures", "tracking_failures"}
    section = PAGE.split("## The figures")[1]
    assert set(re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE)) == own


@pytest.mark.parametrize("arguments", re.findall(r"^kvhybrid replay (.*)$", PAGE, re.MULTILINE))
def test_every_command_on_the_page_composes(arguments: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        re.sub(r"^(?!cache\.layers|curve=)([^=]+=[^,]+),.*", r"\1", word)
        for word in shlex.split(arguments)
        if word != "-m"
    ]
    assert main(["replay", *words, "--cfg", "job"]) == 0
    assert "trace:" in capsys.readouterr().out
