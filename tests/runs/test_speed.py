"""The speed benchmark on small sizes, our side only: its works are what they say, and its arithmetic is right."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvhybrid.specs import ChunkedLocalAttentionSpec, FullAttentionSpec, MambaSpec, SlidingWindowSpec
from runs.speed import trees
from runs.speed.agreement import differences, excuse
from runs.speed.alone import by_layer, profile_of
from runs.speed.catalogue import WORKS
from runs.speed.comparisons import COMPARISONS, Comparison, lines, ratios
from runs.speed.ours import Ours, OursWatching
from runs.speed.plan import full_plan, quick_plan, take_turns
from runs.speed.run import main
from runs.speed.side import Run
from runs.speed.table import Results, markdown
from runs.speed.trace import read_trace
from runs.speed.worker import ENVIRONMENTS, SIDES, MissingEnvironmentError, WorkerProcess, working
from runs.speed.works import BLOCK, MODELS, Size

SMALL = Size(requests=6, blocks=3000, decode_steps=16, live=2, prompt_blocks=64, batch=3, repeats=2, parts=2)


@pytest.fixture
def trace(tmp_path: Path) -> str:
    """Six requests; the second, fourth and sixth begin with the first two ids of the first."""
    path = tmp_path / "trace.jsonl"
    ids = [[0, 1, 2], [0, 1, 3], [4, 5], [0, 1, 2, 6], [7], [0, 1, 8]]
    lengths = [1500, 1100, 1024, 1600, 17, 1536]
    entries = [
        {"timestamp": 0, "input_length": length, "output_length": 20, "hash_ids": parts}
        for parts, length in zip(ids, lengths, strict=True)
    ]
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return str(path)


def first_run(work: str, size: Size) -> Run:
    return next(Ours().open(work, size))


def test_a_trace_gives_one_key_for_each_full_block_and_equal_keys_for_equal_prefixes(trace: str) -> None:
    first, second, third, *_ = read_trace(trace, 3)
    assert [len(prompt.keys) for prompt in (first, second, third)] == [93, 68, 64]
    assert first.keys[:64] == second.keys[:64]
    assert set(first.keys[64:]).isdisjoint(second.keys)
    assert len(first.tokens()) == 1500
    assert first.tokens()[:1024] == second.tokens()[:1024]


def test_the_models_have_the_groups_of_their_layers() -> None:
    specs = {
        model: [group.spec for group in Ours().cache(groups, 20).config.groups] for model, groups in MODELS.items()
    }
    full = FullAttentionSpec(block_size=16)
    assert specs == {
        "llama": [full],
        "gemma3": [full] + [SlidingWindowSpec(block_size=16, window=1024)] * 6,
        "jamba": [full] + [MambaSpec(block_size=16)] * 7,
        "llama4": [full] + [ChunkedLocalAttentionSpec(block_size=16, chunk=8192)] * 3,
    }


@pytest.mark.parametrize("model", MODELS)
def test_the_trace_is_replayed_with_its_hits_whatever_the_model(model: str, trace: str) -> None:
    run = first_run(f"a:{model}", replace(SMALL, trace=trace))
    assert run.units == {"all": 93 + 68 + 64 + 100 + 1 + 96}
    hits = [hit for hit, _, _ in run.decisions]
    # The first two ids are 1,024 tokens. A state is kept there only once the full group has proved them shared, by
    # the second request; one is kept at every prompt's last block boundary, here 1,488.
    assert hits == ([0, 0, 0, 1488, 0, 1024] if model == "jamba" else [0, 1024, 0, 1488, 0, 1024])


def test_causes_and_events_change_no_decision(trace: str) -> None:
    size = replace(SMALL, trace=trace, blocks=1300)
    plain, watched = first_run("a:gemma3", size), next(OursWatching().open("a:gemma3", size))
    assert plain.decisions == watched.decisions
    assert plain.evictions == watched.evictions


def test_a_short_pool_frees_the_oldest_request_and_counts_the_refusals(trace: str) -> None:
    run = first_run("a:llama", replace(SMALL, trace=trace, blocks=110))
    assert sum(refusals for _, _, refusals in run.decisions) > 0
    assert run.evictions is not None
    assert sum(run.evictions) > 0


def test_a_long_prompt_is_found_whole_and_missed_whole() -> None:
    size, tokens = SMALL, SMALL.prompt_blocks * BLOCK
    assert first_run("b:prompt", size).decisions == [[0, 0], [0, 0], [tokens, 0], [tokens, 0]]
    for kind in ("window", "state"):
        assert first_run(f"b:miss-{kind}", size).decisions == [[0, tokens]] * 2
    assert first_run("b:hashing", size).decisions == [SMALL.prompt_blocks] * 2


def test_the_worst_order_cuts_a_prompt_down_to_nothing() -> None:
    assert first_run("d:2048", SMALL).decisions == [[0, 2048 * BLOCK]] * 2


@pytest.mark.parametrize("work", ["c:1", "c:7"])
def test_decode_steps_are_counted_for_every_request_and_never_refused(work: str) -> None:
    run = first_run(work, SMALL)
    assert run.units == {"step": 64 * SMALL.batch}
    assert run.decisions == [0]


def test_the_scheduler_serves_every_part_of_the_trace_with_its_hits(trace: str) -> None:
    runs = list(Ours().open("scheduler:gemma3", replace(SMALL, trace=trace, requests=6)))
    assert [run.units for run in runs] == [{"request": 3}, {"request": 3}]
    # The second is admitted in the step that admits the first, whose blocks are keyed as they are scheduled.
    assert [run.decisions for run in runs] == [[0, 1024, 0], [1488, 0, 1024]]


def test_a_full_pool_evicts_for_each_new_prompt_and_an_empty_one_has_a_weight() -> None:
    assert first_run("e:pool:10000", SMALL).decisions == [0, 0]
    # In a process of its own, as the benchmark does: heap that other tests have freed is cleared for large arrays,
    # and then all of it is resident.
    with working(["ours"], None) as (workers, _):
        workers["ours"].open("memory", replace(SMALL, pool_blocks=1_000_000))
        weight = workers["ours"].run().seconds
    assert weight["promised"] > 20_000_000
    assert 4096 <= weight["resident"] < weight["promised"] / 10, "pages are taken when they are written to"


class Scripted:
    """A side whose runs take the times that it was given."""

    def __init__(self, name: str, seconds: list[float], told: list[str]) -> None:
        self.name, self.seconds, self.told = name, iter(seconds), told

    def open(self, work: str, size: Size) -> None:
        self.told.append(f"{self.name} opens {work}")

    def run(self) -> Run:
        self.told.append(self.name)
        return Run({"all": next(self.seconds)}, {"all": 1000}, ["same"])

    def close(self) -> None:
        self.told.append(f"{self.name} closes")


def test_the_sides_alternate_and_the_one_that_began_a_round_ends_the_next() -> None:
    told: list[str] = []
    sides = {name: Scripted(name, [9.0, 1.0, 1.0], told) for name in ("ours", "vllm")}
    runs = take_turns("a:llama", dict(sides), SMALL, 2, lambda text: None)
    assert told[2:-2] == ["ours", "vllm", "ours", "vllm", "vllm", "ours"]  # the first of each is not counted
    assert [run.seconds["all"] for run in runs["ours", "a:llama"]] == [1.0, 1.0]


def runs_of(ours: list[float], peer: list[float]) -> dict[tuple[str, str], list[Run]]:
    def made(seconds: list[float]) -> list[Run]:
        return [Run({"all": s, "hash": s}, {"all": 1000, "hash": 1000}) for s in seconds]

    return {
        (side, work): made(seconds)
        for side, seconds in (("ours", ours), ("vllm", peer))
        for work in ("a:llama", "a:hashing")
    }


def test_a_ratio_is_taken_pair_by_pair_and_judged_by_its_median() -> None:
    runs = runs_of([1.0, 2.0, 4.0], [10.0, 30.0, 32.0])
    (ratio,) = ratios([Comparison("x", ("a:llama/all",), threshold=10)], runs)
    assert ratio.values == (10.0, 15.0, 8.0)
    assert (ratio.median, ratio.reached) == (10.0, True)
    assert (ratio.ours, ratio.peer) == (2000.0, 30000.0)  # µs for one of the 1,000 units


def test_parts_of_a_comparison_are_added_before_they_are_divided() -> None:
    runs = runs_of([1.0], [10.0])
    (both,) = ratios([Comparison("x", ("a:llama/all", "a:hashing/hash"))], runs)
    (one_sided,) = ratios([Comparison("x", ("a:llama/all", "a:hashing/hash"), peer_parts=("a:llama/all",))], runs)
    assert (both.values, one_sided.values) == ((10.0,), (5.0,))


def test_every_comparison_can_be_made_of_what_the_plan_runs() -> None:
    """Also where a row adds the parts of a short work and a long one, which have different numbers of rounds."""
    parts: dict[str, dict[str, float]] = {}
    for comparison in COMPARISONS:
        for part in (*comparison.parts, *comparison.theirs):
            work, name = part.split("/")
            parts.setdefault(work, {})[name] = 1.0
    runs = {
        (side, step.work): [Run(parts[step.work], dict.fromkeys(parts[step.work], 1))] * step.rounds
        for step in full_plan("trace").steps
        if step.work in parts and step.counts
        for side in step.sides
    }
    made = ratios(COMPARISONS, runs)
    assert len(made) == len(COMPARISONS)
    assert all(len(ratio.values) in (7, 21) for ratio in made)


def test_a_comparison_whose_peer_did_not_run_is_left_out() -> None:
    runs = {key: value for key, value in runs_of([1.0], [2.0]).items() if key[0] == "ours"}
    assert ratios(COMPARISONS, runs) == []


def test_another_decision_is_named_with_the_request() -> None:
    def made(*decisions: Any) -> list[Run]:
        return [Run({"all": 1.0}, {"all": 1}, list(decisions))]

    runs = {("ours", "a:llama"): made([16, 0, 0], [32, 0, 0]), ("vllm", "a:llama"): made([16, 0, 0], [48, 0, 0])}
    assert differences(runs) == [
        "a:llama, vllm, run 1: 1 of 2 decisions differ, first request 1: [32, 0, 0], theirs [48, 0, 0]"
    ]
    assert excuse(differences(runs)[0]) is None
    scheduled = differences(runs)[0].replace("a:llama", "scheduler:gemma3")
    assert excuse(scheduled) is None, "a known fault explains a few differences, not half of all"
    assert excuse(scheduled.replace("1 of 2", "2 of 100"))
    assert differences(dict.fromkeys(runs, runs["ours", "a:llama"])) == []


def test_a_line_is_straight_where_the_cost_of_one_unit_stays() -> None:
    runs = {
        ("ours", f"d:{blocks}"): [Run({"hit": blocks * 1e-6}, {"hit": 1}, [])] for blocks in (2048, 4096, 8192)
    }
    (line,) = lines(runs)
    assert line.costs == pytest.approx((1.0, 1.0, 1.0))
    assert line.growth == pytest.approx(1.0)


def test_every_comparison_names_existing_works_and_sides() -> None:
    used = {pair for comparison in COMPARISONS for pair in comparison.works}
    assert {work for _, work in used} <= set(WORKS)
    assert {side for side, _ in used} <= set(SIDES)
    assert set(SIDES) == set(ENVIRONMENTS)


def test_the_committed_plan_has_seven_pairs_at_least_and_no_peer_in_the_largest_pool() -> None:
    plan = full_plan("trace")
    assert {step.rounds for step in plan.steps if "vllm, events" not in step.sides} == {7, 21}
    assert [step.sides for step in plan.steps if step.work == "e:pool:10000000"] == [("ours",)]
    assert plan.sides[0] == "ours"
    assert {step.work for step in quick_plan("trace").steps} < {step.work for step in plan.steps}


def test_a_peer_that_is_not_there_is_skipped_and_the_table_says_so(
    trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--trace", trace, "--quick", "--only", "e:prompt", "--out", str(tmp_path / "out")]
    assert main([*given, "--peers", str(tmp_path / "nothing")]) == 0
    said = capsys.readouterr()
    assert "skipped: vllm is not there: the folder of peers has no vllm/venv and vllm/src" in said.err
    assert (tmp_path / "out" / "lines.png").read_bytes().startswith(b"\x89PNG")
    table = (tmp_path / "out" / "table.md").read_text()
    assert "- Skipped: vllm is not there" in table
    assert "were equal" not in table
    assert "cold admission by blocks of the prompt | ours |" in table


def test_a_trace_that_is_not_there_is_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--trace", "no/such/file"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("trace.path: ")
    assert "no/such/file: cannot be read: No such file" in said
    assert said.count("\n") == 1


def test_a_table_says_which_thresholds_were_reached() -> None:
    wanted = (Comparison("slow", ("a:llama/all",), threshold=11), Comparison("fast", ("a:llama/all",), 9, 20))
    results = Results(ratios(wanted, runs_of([1.0], [10.0])), [], {"ours": "kvhybrid"}, [], [], 6, 6)
    rows = [line for line in markdown(results).splitlines() if line.startswith(("| slow", "| fast"))]
    assert [row.split(" | ")[-2:] for row in rows] == [["11", "**no** |"], ["9 (20)", "yes |"]]


def test_a_profile_shares_the_time_out_among_the_layers(trace: str) -> None:
    shares = by_layer(profile_of(Ours().open("a:gemma3", replace(SMALL, trace=trace))))
    assert sum(shares.values()) == pytest.approx(1.0)
    assert shares["block pool and its keys"] > 0


# ---- two trees


def test_two_trees_are_compared_part_by_part_and_a_slower_one_is_marked() -> None:
    def runs(*seconds: float) -> list[Run]:
        return [Run({"admit": s, "free": 1.0}, {"admit": 10, "free": 10}) for s in seconds]

    admit, free = trees.rows("ours, all on", runs(2.0, 3.0, 4.0), runs(4.0, 4.0, 4.0), "b:prompt")
    assert admit == (
        "| b:prompt/admit, all on | 3e+05 | 4e+05 | 0.50 | 0.62 | **0.75** | 0.88 | 1.00 | 3 | slower |"
    )
    assert free.endswith("| **1.00** | 1.00 | 1.00 | 3 |  |")
    noisy, _ = trees.rows("ours", runs(2.0, 3.0, 9.0), runs(4.0, 4.0, 4.0), "b:prompt")
    assert noisy.endswith("| **0.75** | 1.50 | 2.25 | 3 |  |"), "a quarter of the pairs says otherwise"


def test_a_tree_against_itself_decides_the_same(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--old", sys.executable, "--new", sys.executable, "--trace", trace, "--quick", "--rounds", "2"]
    assert trees.main([*given, "--only", "a:jamba"]) == 0
    version, _, _, _, *rows = capsys.readouterr().out.splitlines()
    assert version.startswith("old: kvhybrid ")
    assert [row.split(" | ")[0] for row in rows] == ["| a:jamba/all", "| a:jamba/all, all on"]


def test_an_interpreter_that_is_not_there_is_refused_in_one_line(
    trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert trees.main(["--old", "no/such/python", "--new", sys.executable, "--trace", trace]) == 2
    assert capsys.readouterr().err == "old: no/such/python: No such file or directory\n"


def test_an_interpreter_without_kvhybrid_is_refused_in_one_line(
    trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    assert trees.main(["--old", str(bare), "--new", sys.executable, "--trace", trace]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("old ended: ModuleNotFoundError: ")


def test_an_installed_kvhybrid_comes_before_the_sources_of_the_checkout(tmp_path: Path) -> None:
    """Else a compiled installation would be measured by the sources that the benchmark lies beside."""
    (tmp_path / "kvhybrid").mkdir()
    (tmp_path / "kvhybrid" / "__init__.py").write_text("raise ImportError('the installed one')")
    worker = WorkerProcess("ours", "ours", sys.executable, str(tmp_path))
    with pytest.raises(MissingEnvironmentError, match="the installed one"):
        worker.wait()
    worker.end()
