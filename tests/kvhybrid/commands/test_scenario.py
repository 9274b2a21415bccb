"""``kvhybrid scenario``: counts, failures, deviations, JSON, recording and exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvhybrid.cache.manager import KVCacheManager
from kvhybrid.cli import main
from kvhybrid.managers.pool.block_pool import BlockPoolError

CONFIG = {"num_blocks": 8, "groups": [{"spec": "full", "block_size": 4}]}


def scenario(id: str, blocks: list[int], **more: Any) -> dict[str, Any]:
    """A request of 9 tokens, which gets the blocks 1, 2 and 3."""
    steps = [
        {"do": "submit", "request": "r", "tokens": [[0, 9]]},
        {"do": "allocate", "request": "r", "new_tokens": 9, "expect": {"new_blocks": [blocks]}},
    ]
    return {"id": id, "title": id, "config": CONFIG, "steps": steps, **more}


GOOD, BAD = scenario("good", [1, 2, 3]), scenario("bad", [1, 2, 4])
LISTED = '[bad]\nletter = "x"\nstep = 1\nkey = "new_blocks"\nreason = "An example."\n'


def write(path: Path, *contents: dict[str, Any]) -> str:
    path.write_text("".join(json.dumps(content) + "\n" for content in contents))
    return str(path)


def report(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    code = main(["scenario", "--json", *arguments])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return code, found


def test_what_passes_is_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = report([write(tmp_path / "a.jsonl", GOOD), write(tmp_path / "b.jsonl", GOOD)], capsys)
    assert code == 0
    assert found["all"] == {
        "scenarios": 2,
        "passed": 2,
        "failed": 0,
        "deviations": 0,
        "unsupported": 0,
        "optional_misses": 0,
    }
    assert [Path(file["file"]).name for file in found["files"]] == ["a.jsonl", "b.jsonl"]


def test_a_failure_names_step_key_expected_and_got(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "a.jsonl", GOOD, BAD)
    assert main(["scenario", path]) == 1
    out = capsys.readouterr().out
    assert f"failed: bad ({path}, line 2), step 1 (allocate r), new_blocks" in out
    assert "expected [[1, 2, 4]]" in out
    assert "got      [[1, 2, 3]]" in out
    _, found = report([path], capsys)
    [failure] = found["failures"]
    assert (failure["id"], failure["step"], failure["key"], failure["got"]) == (
        "bad",
        1,
        "new_blocks",
        [[1, 2, 3]],
    )


def test_long_answers_are_cut_to_where_they_differ(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {**CONFIG, "num_blocks": 500}
    queue = [*range(1, 400), 999, *range(401, 500)]
    cached = {"1": 4}
    bad = [
        {"id": "q", "config": config, "steps": [{"do": "state", "expect": {"free_queue": queue}}]},
        {"id": "c", "config": config, "steps": [{"do": "state", "expect": {"cached": cached}}]},
    ]
    assert main(["scenario", write(tmp_path / "a.jsonl", *bad)]) == 1
    out = capsys.readouterr().out
    assert "[… from entry 396: 397, 398, 399, 999, 401" in out
    assert 'expected {"1": 4}\n  got      {}' in out
    assert all(len(line) < 200 for line in out.splitlines())


def test_a_failing_optional_scenario_is_no_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = report([write(tmp_path / "a.jsonl", {**BAD, "optional": True})], capsys)
    assert (code, found["all"]["optional_misses"]) == (0, 1)


def test_a_listed_deviation_is_no_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "a.jsonl", GOOD, BAD)
    (tmp_path / "deviations.toml").write_text(LISTED)
    code, found = report([path], capsys)
    assert (code, found["all"]["deviations"], found["stale"]) == (0, 1, [])
    assert found["deviations"][0]["reason"] == "An example."


def test_the_list_may_lie_elsewhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    listed = tmp_path / "list.toml"
    listed.write_text(LISTED)
    path = write(tmp_path / "a.jsonl", BAD)
    assert report([path], capsys)[0] == 1
    assert report([path, "--deviations", str(listed)], capsys)[0] == 0


def test_a_listed_scenario_that_differs_elsewhere_has_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "deviations.toml").write_text(LISTED.replace("step = 1", "step = 0"))
    path = write(tmp_path / "a.jsonl", BAD)
    assert main(["scenario", path]) == 1
    assert "listed as a deviation at step 0" in capsys.readouterr().out


def test_a_listed_scenario_that_passes_is_stale(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "deviations.toml").write_text(LISTED.replace("[bad]", "[good]"))
    path = write(tmp_path / "a.jsonl", GOOD)
    assert main(["scenario", path]) == 0
    assert "stale: good" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[bad", "not TOML"),
        ("[bad]\nletter = 'xx'\n", "letter = 'xx'"),
        ("[bad]\nletter = 'x'\nkey = 'k'\n", "'reason' is missing"),
        ("bad = 3\n", "[bad] = 3"),
    ],
)
def test_a_list_that_cannot_be_read(
    text: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "deviations.toml").write_text(text)
    assert main(["scenario", write(tmp_path / "a.jsonl", GOOD)]) == 2
    err = capsys.readouterr().err
    assert words in err
    assert "deviations.toml" in err


def test_what_is_not_installed_here_is_unsupported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    groups = [{"spec": "from_elsewhere", "block_size": 4}]
    content = [
        {"id": "spec", "config": {"num_blocks": 8, "groups": groups}, "steps": []},
        {"id": "kind", "kind": "dream", "config": {}, "dreams": 3},
        {"id": "order", "config": {**CONFIG, "eviction": "os:system"}, "steps": []},
    ]
    path = write(tmp_path / "a.jsonl", *content)
    code, found = report([path], capsys)
    assert (code, found["all"]["unsupported"]) == (0, 3)
    reasons = {entry["id"]: entry["reason"] for entry in found["unsupported"]}
    assert "from_elsewhere" in reasons["spec"]
    assert "'dream'; accepted: steps, hit_search, config" in reasons["kind"]


def test_an_error_inside_the_manager_is_a_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: KVCacheManager, request: object) -> None:
        raise BlockPoolError("blocks [3] are free already")

    monkeypatch.setattr(KVCacheManager, "free", broken)
    content = {**GOOD, "steps": [*GOOD["steps"], {"do": "free", "request": "r"}]}
    code, found = report([write(tmp_path / "a.jsonl", content)], capsys)
    assert code == 1
    [failure] = found["failures"]
    assert (failure["step"], failure["key"]) == (2, "exception")
    assert failure["got"] == "BlockPoolError: blocks [3] are free already"


@pytest.mark.parametrize(
    ("config", "valid"),
    [(CONFIG, True), ({**CONFIG, "watermark": -0.1}, False), ({**CONFIG, "num_blocks": 0}, False)],
)
def test_a_config_is_played_by_building_it(
    config: dict[str, Any], valid: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = {"id": "x", "kind": "config", "config": config, "expect": {"valid": valid}}
    assert report([write(tmp_path / "a.jsonl", content)], capsys)[0] == 0


def test_record_writes_the_answers_given_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = {**BAD, "oracle": "hand", "steps": [*BAD["steps"], {"do": "state"}, {"do": "new_step"}]}
    out = tmp_path / "out.jsonl"
    assert report([write(tmp_path / "a.jsonl", GOOD, asked), "--record", str(out)], capsys)[0] == 1
    first, second = (json.loads(line) for line in out.read_text().splitlines())
    assert first == GOOD
    assert "oracle" not in second
    assert second["steps"][1]["expect"] == {"new_blocks": [[1, 2, 3]]}
    assert second["steps"][2]["expect"]["tables"] == {"r": [[1, 2, 3]]}
    assert second["steps"][3] == {"do": "new_step"}
    assert report([str(out)], capsys)[0] == 0


def test_record_ends_where_the_answers_lead_elsewhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused = {**GOOD["steps"][1], "expect": {"refused": True}}
    content = {**GOOD, "steps": [GOOD["steps"][0], refused, {"do": "lookup", "request": "r"}]}
    out = tmp_path / "out.jsonl"
    assert report([write(tmp_path / "a.jsonl", content), "--record", str(out)], capsys)[0] == 1
    assert len(json.loads(out.read_text())["steps"]) == 2
    assert report([str(out)], capsys)[0] == 0


def test_record_over_the_file_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "a.jsonl", BAD)
    report([path, "--record", path], capsys)
    assert report([path], capsys)[0] == 0
    assert [file.name for file in tmp_path.iterdir()] == ["a.jsonl"]


@pytest.mark.parametrize("arguments", [[], ["--fast", "x"], ["--js", "x"]])
def test_wrong_arguments(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scenario", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "kvhybrid scenario" in err


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scenario", "--help"]) == 0
    assert "--record OUT" in capsys.readouterr().out
