"""YAML files of a user: what would grow without end is refused at once, with the file's name."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvhybrid.cli import main
from kvhybrid.errors import InputError
from kvhybrid.hydra_app.yaml_files import MOST_NODES, check_yaml
from tests.kvhybrid.named_files import NO_FILES, no_file

LISTS = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 20)]
MAPPINGS = [f"a{n}: &a{n} {{" + ", ".join(f"k{i}: *a{n - 1}" for i in range(10)) + "}" for n in range(1, 20)]
MERGES = [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}" for n in range(1, 20)]
ODD = {
    "a billion laughs in lists": ("\n".join(["a0: &a0 lol", *LISTS]), "with aliases expanded"),
    "in mappings": ("\n".join(["a0: &a0 lol", *MAPPINGS]), "with aliases expanded"),
    "in merges": ("\n".join(["a0: &a0 {k: lol}", *MERGES]), "with aliases expanded"),
    "an alias inside of what it names": ("a: &a [*a]", "with aliases expanded"),
    "many values": ("a:" + "\n- 0" * MOST_NODES, "more than 10,000 keys and values"),
    "deep nesting": ("a: " + "[" * 900 + "]" * 900, "nested too deeply"),
    "deeper nesting": ("a: " + "[" * 100_000, "mine.yaml: "),
    "no YAML": ("pool: [\n", "mine.yaml: no YAML: line 4: "),
    "no UTF-8": (b"\xff".decode("latin-1"), "byte 21 is not UTF-8"),
    "code": ("name: !!python/object/apply:os.getcwd []", "mine.yaml"),
}


@pytest.mark.parametrize("kind", ODD)
def test_an_odd_file_is_refused_on_one_line(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    text, said = ODD[kind]
    Path("conf", "experiment").mkdir(parents=True)
    encoding = "latin-1" if kind == "no UTF-8" else "utf-8"
    Path("conf", "experiment", "mine.yaml").write_text(f"# @package _global_\n\n{text}", encoding=encoding)
    for way in (["--config-dir", "conf"], [f"hydra.searchpath=[file://{tmp_path}/conf]"]):
        assert main(["run", *way, "experiment=mine"]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert said in line
        assert "mine.yaml" in line
        assert len(line) < 500
    assert [place.name for place in tmp_path.iterdir()] == ["conf"]


@pytest.mark.parametrize("kind", NO_FILES)
def test_what_is_no_file_is_never_opened(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with no_file(kind, Path("mine.yaml")), pytest.raises(InputError, match=f"it is {NO_FILES[kind]}"):
        check_yaml(Path("mine.yaml"))


def test_aliases_that_stay_small_are_fine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "pool").mkdir()
    (tmp_path / "pool" / "mine.yaml").write_text("block_size: &size 16\nhash_block_size: *size\nnum_blocks: 77\n")
    assert main(["run", "--config-dir", str(tmp_path), "pool=mine", "--cfg", "job"]) == 0
    assert "hash_block_size: 16" in capsys.readouterr().out
