"""Files that a user names: regular ones and links to them are read and written, anything else is refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from kvhybrid import files
from kvhybrid.cli import main
from kvhybrid.files import UnreadableError, output_file, parse_json, read_bytes, read_lines, read_text
from tests.kvhybrid.named_files import NO_FILES, no_file

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = str(ROOT / "docs" / "examples" / "window_resume.jsonl")
RUN = ["run", "model=gemma3_tiny", "workload=random", "workload.requests=1", "tracking=none"]
OUTPUTS: Mapping[str, tuple[Callable[[str], list[str]], str]] = {
    "record": (lambda out: [*RUN, f"record={out}"], "out.jsonl"),
    "--record": (lambda out: ["scenario", "--record", out, EXAMPLE], "out.jsonl"),
    "--out": (
        lambda out: ["check-spec", "kvhybrid.specs:FullAttentionSpec", "--out", str(Path(out).parent)],
        "check-spec-full.jsonl",
    ),
}
"""By the key that a refusal names: a command that writes a file of that name."""


@pytest.mark.parametrize("kind", NO_FILES)
@pytest.mark.parametrize("key", OUTPUTS)
def test_an_output_that_is_no_file_is_refused_and_stays(
    key: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words, name = OUTPUTS[key]
    with no_file(kind, Path(name)):
        assert main(words(name)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    *_, line = captured.err.splitlines()
    assert f"{key} must be a file to write, found {NO_FILES[kind]}: {name}" in line
    assert not [place for place in tmp_path.rglob("*") if place.is_file()]


@pytest.mark.parametrize("key", ["record", "--record"])
def test_a_link_to_a_file_is_followed(key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words, name = OUTPUTS[key]
    Path("elsewhere").mkdir()
    old = Path(EXAMPLE).read_text() + "\n"
    Path("elsewhere", "old").write_text(old)
    Path(name).symlink_to("elsewhere/old")
    for target in ("elsewhere/old", "elsewhere/new"):
        Path(name).unlink()
        Path(name).symlink_to(target)
        assert main(words(name)) == 0
        assert Path(name).is_symlink()
        assert "steps" in json.loads(Path(target).read_text())
        assert Path(target).read_text() != old
    assert sorted(place.name for place in Path("elsewhere").iterdir()) == ["new", "old"]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("no/such/folder/out", "x: no such folder: "),
        (EXAMPLE + "/out", "Not a directory; accepted: a file to write"),
        ("loop", "symbolic links; accepted: a file to write"),
        ("x" * 300, "File name too long; accepted: a file to write"),
        ("nul\0", "null byte; accepted: a file to write"),
        ("", "x must be a file to write, found a folder"),
    ],
)
def test_a_name_that_cannot_be_written_is_refused(
    name: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("loop").symlink_to("loop")
    with pytest.raises(ValueError, match=reason):
        output_file("x", name if name else Path(name))


def test_a_new_name_and_a_file_are_written_where_they_lie(tmp_path: Path) -> None:
    (tmp_path / "old").touch()
    (tmp_path / "link").symlink_to("new")
    found = {name: output_file("x", tmp_path / name).name for name in ("old", "new", "link")}
    assert found == {"old": "old", "new": "new", "link": "new"}


READERS = {"bytes": read_bytes, "text": read_text, "lines": lambda path: list(read_lines(path))}


@pytest.mark.parametrize("kind", NO_FILES)
@pytest.mark.parametrize("reader", READERS)
def test_an_input_that_is_no_file_is_never_opened(
    reader: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with no_file(kind, Path("in")), pytest.raises(UnreadableError, match=f"it is {NO_FILES[kind]}"):
        READERS[reader]("in")


@pytest.mark.parametrize("reader", READERS)
def test_an_input_has_its_limits(reader: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MOST_BYTES", 10)
    monkeypatch.setattr(files, "MOST_LINE_BYTES", 10)
    path = tmp_path / "in"
    path.write_bytes(b"x" * 10)
    assert READERS[reader](path) in (b"x" * 10, "x" * 10, [(1, "x" * 10)])
    path.write_bytes(b"x" * 11)
    with pytest.raises(UnreadableError, match="has more than 10 bytes"):
        READERS[reader](path)


def test_lines_have_their_numbers_and_may_end_in_any_way(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"\xef\xbb\xbfone\r\n\n \t\nfour \xc3\xa9")
    assert list(read_lines(tmp_path / "in")) == [(1, "one\r\n"), (4, "four é")]
    (tmp_path / "in").write_bytes(b"one\n\xff")
    with pytest.raises(UnreadableError, match="line 2, byte 0 is not UTF-8"):
        list(read_lines(tmp_path / "in"))


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "9" * 5_000, '{"a": ' * 100_000])
def test_what_is_no_json_is_refused_in_a_few_words(text: str) -> None:
    with pytest.raises(UnreadableError) as refused:
        parse_json(text)
    assert 0 < len(str(refused.value)) < 150
