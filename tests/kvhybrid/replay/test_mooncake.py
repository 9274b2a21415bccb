"""Reading a trace: what it gives, and one clear line for what is wrong with it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvhybrid.errors import InputError
from kvhybrid.replay.mooncake import MooncakeTrace

SMALL = Path(__file__).with_name("small_trace.jsonl")
LINE = {"timestamp": 1500, "input_length": 1100, "output_length": 7, "hash_ids": [70, 3, 9]}


def written(place: Path, *lines: dict[str, Any] | str) -> MooncakeTrace:
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    (place / "trace.jsonl").write_text(text + "\n")
    return MooncakeTrace(path=str(place / "trace.jsonl"))


def test_a_line_becomes_a_request_in_seconds_with_ids_numbered_as_they_appear(tmp_path: Path) -> None:
    first, second = written(tmp_path, LINE, "", {**LINE, "timestamp": 2000.5, "hash_ids": [70, 4, 5]}).read()
    assert (first.request_id, second.request_id) == ("line1", "line3")
    assert (first.seconds, second.seconds) == (1.5, 2.0005)
    assert (first.num_prompt_tokens, first.num_output_tokens, first.num_tokens) == (1100, 7, 1107)
    assert (first.prefix_ids.tolist(), second.prefix_ids.tolist()) == ([0, 1, 2], [0, 3, 4])


def test_keys_that_are_not_needed_are_passed_over(tmp_path: Path) -> None:
    (request,) = written(tmp_path, {**LINE, "type": "chat"}).read()
    assert request.num_prompt_tokens == 1100


def test_limit_takes_the_first_requests_and_reads_no_further(tmp_path: Path) -> None:
    trace = written(tmp_path, LINE, LINE, "not JSON")
    trace = replace(trace, limit=2)
    assert len(trace.read()) == 2


def test_outputs_can_be_capped() -> None:
    plain = [request.num_output_tokens for request in MooncakeTrace(path=str(SMALL)).read()]
    capped = [request.num_output_tokens for request in MooncakeTrace(path=str(SMALL), max_new_tokens=9).read()]
    assert min(plain) < 9 < max(plain)
    assert capped == [min(tokens, 9) for tokens in plain]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("{", ["not JSON", "accepted: one JSON object per line"]),
        ("[1]", ["found [1]", "accepted: a JSON object"]),
        (
            {**LINE, "input_length": "many"},
            ['input_length: found "many"', "accepted: a whole number of at least 1"],
        ),
        ({**LINE, "input_length": 1.5}, ["input_length: found 1.5"]),
        ({**LINE, "input_length": True}, ["input_length: found true"]),
        ({**LINE, "output_length": 0}, ["output_length: found 0", "a whole number of at least 1"]),
        ({**LINE, "timestamp": -1}, ["timestamp: found -1", "milliseconds, a number of at least 0"]),
        ({**LINE, "timestamp": float("nan")}, ["timestamp: found NaN"]),
        ({**LINE, "timestamp": None}, ["timestamp: found null"]),
        ({**LINE, "hash_ids": 5}, ["hash_ids: found 5", "a list of whole numbers"]),
        ({**LINE, "hash_ids": [70, 3]}, ["hash_ids: found 2 ids; accepted: 3, which is ceil(1100 / 512)"]),
        ({**LINE, "hash_ids": [70, "x", 9]}, ['hash_ids[1]: found "x"; accepted: a whole number']),
        ({**LINE, "hash_ids": [70, 9, 3]}, ["hash_ids[1]: found 9 after a different id than before"]),
        ({"timestamp": 0}, ["input_length: found nothing", "accepted: the keys timestamp, input_length"]),
    ],
)
def test_a_mistake_names_file_line_key_found_and_accepted(
    line: dict[str, Any] | str, expected: list[str], tmp_path: Path
) -> None:
    trace = written(tmp_path, LINE, line)
    with pytest.raises(InputError) as raised:
        trace.read()
    message = str(raised.value)
    assert len(message.splitlines()) == 1
    for part in [f"{tmp_path}/trace.jsonl, line 2: ", *expected]:
        assert part in message


def test_what_is_no_file_of_lines_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"trace.path: {tmp_path}/nothing: cannot be read: No such file"):
        MooncakeTrace(path=str(tmp_path / "nothing")).read()
    with pytest.raises(InputError, match=f"{tmp_path}: cannot be read: it is a folder"):
        MooncakeTrace(path=str(tmp_path)).read()
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="binary: cannot be read: line 1, byte 0 is not UTF-8"):
        MooncakeTrace(path=str(tmp_path / "binary")).read()
    (tmp_path / "empty").touch()
    with pytest.raises(InputError, match="empty: no requests"):
        MooncakeTrace(path=str(tmp_path / "empty")).read()


@pytest.mark.parametrize("key", ["limit", "max_new_tokens", "id_tokens"])
def test_a_setting_out_of_range_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match=rf"trace.{key} must be at least 1, found 0"):
        MooncakeTrace(path="trace.jsonl", **{key: 0})
