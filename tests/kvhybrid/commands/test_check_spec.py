"""``kvhybrid check-spec``: what is sound passes, and every contract that is broken is found and shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvhybrid.cli import main
from kvhybrid.conformance.kit import PLAYED
from kvhybrid.managers.mamba import MambaManager
from kvhybrid.plugins import path_of
from kvhybrid.specs import KVCacheSpec, register_spec, registry
from tests.kvhybrid.conformance import broken_specs
from tests.kvhybrid.distributions import isolate

CHECKS = ["live set", "page", "value", "name", "bound", *PLAYED]
Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def own_registry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What a test registers is gone afterwards; what it writes goes to a folder of its own."""
    isolate(monkeypatch, registry)
    monkeypatch.chdir(tmp_path)


def register(spec: type[KVCacheSpec], manager: str | type[Any] | None = None) -> str:
    registry._entries.pop(spec.kind, None)
    spec.manager = manager
    return path_of(register_spec(spec))


def marks(out: str) -> dict[str, str]:
    """Every check with its mark."""
    lines = [line for line in out.splitlines() if not line.startswith("  ")]
    return {line[2:14].strip(): line[0] for line in lines}


def line_of(out: str, check: str) -> str:
    (line,) = [line for line in out.splitlines() if line[2:14].strip() == check]
    return line


class TestSound:
    @pytest.mark.parametrize(
        "target",
        [
            "FullAttentionSpec",
            "SlidingWindowSpec",
            "ChunkedLocalAttentionSpec",
            "SinkWindowSpec",
            "CrossAttentionSpec",
            "MambaSpec",
        ],
    )
    def test_the_built_in_specs_pass(self, target: str, capsys: Capture) -> None:
        assert main(["check-spec", f"kvhybrid.specs:{target}", "--count", "15"]) == 0
        assert marks(capsys.readouterr().out) == dict.fromkeys(CHECKS, "✓")
        assert list(Path().iterdir()) == []

    def test_the_lines_tell_how_much_was_tried(self, capsys: Capture) -> None:
        assert main(["check-spec", register(broken_specs.Window), "--count", "20", "--seed", "5"]) == 0
        out = capsys.readouterr().out
        assert "24 specs, 3,072 positions" in line_of(out, "live set")
        assert "registered as 'window'" in line_of(out, "name")
        assert "the generic manager serves: 20 scenarios" in line_of(out, "manager")
        hits = line_of(out, "hits")
        assert int(hits.split(" look-ups, ")[1].split()[0]) > 10, "traffic without hits proves little"

    def test_the_same_seed_gives_the_same_report(self, capsys: Capture) -> None:
        target, reports = register(broken_specs.Window), []
        for seed in ("1", "1", "2"):
            main(["check-spec", target, "--count", "5", "--seed", seed])
            reports.append(capsys.readouterr().out)
        assert reports[0] == reports[1] != reports[2]

    @pytest.mark.parametrize("name", ["ONE", "two_windows"])
    def test_a_spec_and_a_function_that_returns_some_are_taken_too(self, name: str, capsys: Capture) -> None:
        register(broken_specs.Window)
        assert main(["check-spec", f"tests.kvhybrid.conformance.broken_specs:{name}", "--count", "5"]) == 0
        assert ("1 spec," if name == "ONE" else "2 specs,") in capsys.readouterr().out

    def test_a_bound_above_brute_force_is_reported_and_passes(self, capsys: Capture) -> None:
        assert main(["check-spec", register(broken_specs.LargeBound), "--count", "5"]) == 0
        assert "above it by up to" in line_of(capsys.readouterr().out, "bound")

    def test_a_module_in_the_current_folder_is_found(
        self, capsys: Capture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.syspath_prepend(Path.cwd())
        source = Path(broken_specs.__file__).read_text().replace('"window"', '"found_here"')
        Path("window_found_here.py").write_text(
            source + "\nfrom kvhybrid.specs import register_spec\nregister_spec(Window)\n"
        )
        assert main(["check-spec", "window_found_here:Window", "--count", "3"]) == 0
        assert "registered as 'found_here'" in capsys.readouterr().out


BROKEN_SPECS = [
    (broken_specs.ReadsAhead, "live set", "which does not lie in [0, "),
    (broken_specs.DilatedWindow, "live set", "alive again at"),
    (broken_specs.OverlappingRanges, "live set", "overlap or do not ascend"),
    (broken_specs.RaisesLate, "live set", "raises IndexError: no such position (broken_specs.py:"),
    (broken_specs.SamePage, "page", "a page of tokens must grow with block_size"),
    (broken_specs.NoPadding, "page", "gives page_bytes ="),
    (broken_specs.EqualByHalf, "value", "equal to one whose window is"),
    (broken_specs.Undecorated, "value", "Undecorated is not a dataclass itself"),
    (broken_specs.SmallBound, "bound", "but a step touches"),
    (broken_specs.WrongCycle, "bound", "release_cycle = ("),
]


class TestBrokenSpecs:
    @pytest.mark.parametrize(("spec", "check", "text"), BROKEN_SPECS, ids=[row[0].kind for row in BROKEN_SPECS])
    def test_it_is_found(self, spec: type[KVCacheSpec], check: str, text: str, capsys: Capture) -> None:
        assert main(["check-spec", register(spec), "--count", "3"]) == 1
        out = capsys.readouterr().out
        found = marks(out)
        assert found[check] == "✗"
        assert text in line_of(out, check)
        assert {found[played] for played in PLAYED} == {"-"}, "traffic on top of a broken spec proves nothing"

    def test_an_unregistered_one_would_be_served_as_its_base(self, capsys: Capture) -> None:
        register(broken_specs.Window)
        assert main(["check-spec", "tests.kvhybrid.conformance.broken_specs:Unregistered"]) == 1
        line = line_of(capsys.readouterr().out, "name")
        assert line.startswith("✗")
        assert "Unregistered is not registered and would be served as its base 'window'" in line

    def test_a_manager_that_cannot_be_imported_is_named(self, capsys: Capture) -> None:
        target = register(broken_specs.Window, "tests.kvhybrid.conformance.broken_specs:NoSuchManager")
        assert main(["check-spec", target]) == 1
        assert "broken_specs:NoSuchManager' cannot be loaded" in capsys.readouterr().out


BROKEN_MANAGERS = [
    (broken_specs.AcceptsAMissingBlock, "hits", "tokens, but by brute force"),
    (broken_specs.MissesAHit, "hits", "tokens, but by brute force"),
    (broken_specs.FreesALiveBlock, "manager", "the generic manager"),
    (broken_specs.KeepsTheHead, "manager", "the generic manager"),
    (broken_specs.KeysTooEarly, "manager", "the generic manager"),
    (broken_specs.RaisesInExtend, "exceptions", "RaisesInExtend"),
    (broken_specs.FreesTwice, "exceptions", "BlockPoolError"),
]


class TestBrokenManagers:
    @pytest.mark.parametrize(
        ("manager", "check", "text"), BROKEN_MANAGERS, ids=[row[0].__name__ for row in BROKEN_MANAGERS]
    )
    def test_it_is_found_and_shown_by_a_small_scenario(
        self, manager: type[Any], check: str, text: str, capsys: Capture
    ) -> None:
        out_folder = Path("found")
        target = register(broken_specs.Window, manager)
        assert main(["check-spec", target, "--count", "60", "--out", str(out_folder)]) == 1
        out = capsys.readouterr().out
        assert marks(out)[check] == "✗"
        assert text in line_of(out, check)

        path = out_folder / "check-spec-window.jsonl"
        assert f"kvhybrid scenario {path}" in out
        (scenario,) = [json.loads(line) for line in path.read_text().splitlines()]
        assert len(scenario["steps"]) <= 14
        assert len(scenario["config"]["groups"]) <= 2
        assert main(["scenario", str(path)]) == 1, "it fails as long as the fault is there"
        assert "failed: check-spec-window" in capsys.readouterr().out

        register(broken_specs.Window)
        assert main(["scenario", str(path)]) == 0, "it passes once the fault is gone"

    def test_what_raised_is_reported_in_the_words_of_the_cache_manager(self, capsys: Capture) -> None:
        assert (
            main(["check-spec", register(broken_specs.Window, broken_specs.RaisesInExtend), "--count", "20"]) == 1
        )
        line = line_of(capsys.readouterr().out, "exceptions")
        assert "ManagerError: request " in line
        assert "raised RuntimeError: a table of three blocks is too much for me" in line
        assert "was rolled back" in line
        assert "(broken_specs.py:" in line
        assert "afterwards" not in line

    def test_a_state_that_is_read_before_it_is_written_is_found(self, capsys: Capture) -> None:
        target = register(broken_specs.State, broken_specs.AdoptsTooEarly)
        assert main(["check-spec", target, "--count", "30"]) == 1
        line = line_of(capsys.readouterr().out, "invariants")
        assert line.startswith("✗")
        assert "before its state is written" in line
        assert main(["scenario", "check-spec-own_state.jsonl"]) == 1
        register(broken_specs.State, MambaManager)
        assert main(["scenario", "check-spec-own_state.jsonl"]) == 0

    def test_a_manager_that_cannot_be_built_is_found(self, capsys: Capture) -> None:
        assert main(["check-spec", register(broken_specs.Window, broken_specs.CannotBeBuilt), "--count", "3"]) == 1
        assert "raises LookupError: not today" in line_of(capsys.readouterr().out, "exceptions")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no_such_module:Spec"], "cannot be imported: ModuleNotFoundError: No module named 'no_such_module'"),
        (["tests.kvhybrid.conformance.broken_specs:NoSuchSpec"], "cannot be imported: AttributeError"),
        (["broken_specs"], "accepted: module:Spec, module:spec or module:function"),
        (
            ["tests.kvhybrid.conformance.broken_specs:NOTHING"],
            "tests.kvhybrid.conformance.broken_specs:NOTHING is of type int; accepted: a spec class, a spec, or",
        ),
        (
            ["tests.kvhybrid.conformance.broken_specs:MissesAHit"],
            "is the class MissesAHit; accepted: a spec class",
        ),
        (
            ["tests.kvhybrid.conformance.broken_specs:no_specs"],
            "tests.kvhybrid.conformance.broken_specs:no_specs() returns of type list",
        ),
        (
            ["tests.kvhybrid.conformance.broken_specs:fails"],
            "tests.kvhybrid.conformance.broken_specs:fails() raises OSError: no table of specs",
        ),
        (
            ["tests.kvhybrid.conformance.broken_specs:Named"],
            "field 'label' of type str has no default; accepted: int",
        ),
        (
            ["tests.kvhybrid.conformance.broken_specs:NeverRight"],
            "refused 300 draws of block_size, window from 1 to 12",
        ),
        (
            ["tests.kvhybrid.conformance.broken_specs:Window", "--count", "0"],
            "--count: found '0'; accepted: a whole number from 1 to 16,777,216",
        ),
        ([], "SPEC"),
    ],
)
def test_what_cannot_be_checked_is_one_line_and_exit_code_2(
    arguments: list[str], message: str, capsys: Capture
) -> None:
    assert main(["check-spec", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert captured.err.startswith("kvhybrid check-spec: ")
    assert len(captured.err.splitlines()) == 1


def test_a_module_that_exits_is_no_spec_that_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    (tmp_path / "a_script_that_exits.py").write_text("raise SystemExit\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["check-spec", "a_script_that_exits:Spec"]) == 2
    assert "cannot be imported: SystemExit" in capsys.readouterr().err
