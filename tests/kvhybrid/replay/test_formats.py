"""Trace formats: what a row becomes, and what happens to a malformed one."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvhybrid.errors import InputError
from kvhybrid.replay.agentic import AgenticTrace
from kvhybrid.replay.azure import AzureTrace
from kvhybrid.replay.burstgpt import BurstGptTrace
from kvhybrid.replay.json_lines import JsonLinesTrace
from kvhybrid.replay.mooncake import MooncakeTrace
from kvhybrid.replay.sharegpt import ShareGptTrace
from kvhybrid.replay.trace import Trace, TraceRequest

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
"""
BURSTGPT = """Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type
5,s1,1.2,ChatGPT,472,18,490,Conversation log
45,s1,2.0,ChatGPT,1087,230,1317,Conversation log
118,s2,3.1,GPT-4,417,276,693,API log
"""
FAILED = "120,s3,0.1,GPT-4,417,0,417,API log\n"
MESSAGES = [("human", "x" * 100), ("gpt", "y" * 40), ("human", "z" * 9), ("gpt", "w" * 5)]
SESSION = {
    "id": "a",
    "block_size": 64,
    "requests": [
        {"t": 0.0, "in": 130, "out": 7, "hash_ids": [1, 2]},
        {"t": 4.5, "in": 192, "out": 3, "hash_ids": [1, 2, 3]},
    ],
}


def file(folder: Path, name: str, content: Any) -> str:
    place = folder / name
    place.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(place)


def shared(first: TraceRequest, second: TraceRequest) -> int:
    """Parts that two prompts have in common."""
    return len({*first.prefix_ids.tolist()} & {*second.prefix_ids.tolist()})


def test_azure_gives_lengths_and_times_from_zero(tmp_path: Path) -> None:
    first, second = AzureTrace(path=file(tmp_path, "a.csv", AZURE)).read()
    assert (first.num_prompt_tokens, first.num_output_tokens, first.seconds) == (374, 44, 0.0)
    assert second.seconds == pytest.approx(4.314579)
    assert shared(first, second) == 0
    assert len(first.prefix_ids) == 24


def test_prompts_known_by_length_share_what_the_rule_says(tmp_path: Path) -> None:
    first, second = AzureTrace(path=file(tmp_path, "a.csv", AZURE), shared_tokens=100).read()
    assert shared(first, second) == 6
    assert first.prefix_ids.tolist()[:6] == second.prefix_ids.tolist()[:6]


def test_the_azure_trace_of_2024_has_zones(tmp_path: Path) -> None:
    rows = "2024-05-10 00:00:00.009930+00:00,10,2\n2024-05-10 02:00:01+02:00,10,2\n"
    _, second = AzureTrace(path=file(tmp_path, "a.csv", AZURE.splitlines()[0] + "\n" + rows)).read()
    assert second.seconds == pytest.approx(0.99007)


def test_burstgpt_gives_lengths_times_and_sessions(tmp_path: Path) -> None:
    requests = BurstGptTrace(path=file(tmp_path, "b.csv", BURSTGPT)).read()
    assert [(r.seconds, r.num_prompt_tokens, r.num_output_tokens, r.session) for r in requests] == [
        (0.0, 472, 18, "s1"),
        (40.0, 1087, 230, "s1"),
        (113.0, 417, 276, "s2"),
    ]


def test_a_failed_request_of_burstgpt_is_refused_or_skipped(tmp_path: Path) -> None:
    path = file(tmp_path, "b.csv", BURSTGPT + FAILED)
    with pytest.raises(InputError, match=r"b.csv, line 5: Response tokens: found 0, a failed request"):
        BurstGptTrace(path=path).read()
    loaded = BurstGptTrace(path=path, on_error="skip").load()
    assert (len(loaded.requests), loaded.skipped) == (3, 1)


def test_a_conversation_becomes_a_request_per_answer(tmp_path: Path) -> None:
    content = [{"id": "x", "conversations": [{"from": f, "value": v} for f, v in MESSAGES]}]
    first, second = ShareGptTrace(path=file(tmp_path, "s.json", content)).read()
    assert (first.num_prompt_tokens, first.num_output_tokens) == (25, 10)
    assert (second.num_prompt_tokens, second.num_output_tokens) == (25 + 10 + 3, 2)
    assert (second.session, second.seconds, second.think_seconds) == (first.session, 30.0, 30.0)
    # 35 tokens are common, the answer included: two full parts of 16.
    assert shared(first, second) == 2


def test_conversations_with_equal_starts_share_them(tmp_path: Path) -> None:
    content = [{"conversations": [{"from": f, "value": v} for f, v in MESSAGES]} for _ in range(2)]
    requests = ShareGptTrace(path=file(tmp_path, "s.json", content)).read()
    assert [r.request_id for r in requests][:2] == ["conversation1-turn1", "conversation2-turn1"]
    assert shared(requests[0], requests[1]) == 2


def test_token_ids_give_prefix_ids(tmp_path: Path) -> None:
    lines = [
        {"token_ids": [*range(40)], "output_token_ids": [*range(40, 48)], "session": "s", "time": 1},
        {"token_ids": [*range(60)], "output_tokens": 5, "session": "s", "time": 2, "think_time": 0.5},
    ]
    text = "\n".join(map(json.dumps, lines))
    first, second = JsonLinesTrace(path=file(tmp_path, "t.jsonl", text)).read()
    assert (first.num_prompt_tokens, first.num_output_tokens, first.output_identified) == (40, 8, True)
    assert (second.num_output_tokens, second.output_identified, second.think_seconds) == (5, False, 0.5)
    assert shared(first, second) == 3  # 48 tokens, output included


def test_hash_ids_may_have_any_block_size(tmp_path: Path) -> None:
    line = {"prompt_tokens": 100, "output_tokens": 5, "hash_ids": [4, 9], "block_size": 64}
    path = file(tmp_path, "t.jsonl", line)
    (request,) = JsonLinesTrace(path=path, part_tokens=64).read()
    assert request.prefix_ids.tolist() == [0, 1]
    with pytest.raises(InputError, match=r"line 1: block_size: found 64; accepted: 16, trace.part_tokens"):
        JsonLinesTrace(path=path).read()


def test_sessions_of_a_folder_are_merged_by_time_and_share_no_ids(tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        file(tmp_path, name, SESSION)
    requests = AgenticTrace(path=str(tmp_path)).read()
    assert [r.request_id for r in requests] == ["a-1", "b-1", "a-2", "b-2"]
    assert shared(requests[0], requests[1]) == 0
    assert shared(requests[0], requests[2]) == 2
    assert [len(r.prefix_ids) for r in requests] == [3, 3, 3, 3]  # the partial block has an id of its own
    assert [r.think_seconds for r in requests] == [0.0, 0.0, 4.5, 4.5]


def test_one_session_file_is_a_trace(tmp_path: Path) -> None:
    requests = AgenticTrace(path=file(tmp_path, "a.json", SESSION), limit=1, max_new_tokens=2).read()
    assert [(r.request_id, r.num_output_tokens) for r in requests] == [("a-1", 2)]


def test_a_compressed_trace_is_the_same_trace(tmp_path: Path) -> None:
    plain = file(tmp_path, "a.csv", AZURE)
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(AZURE.encode()))
    first, second = AzureTrace(path=plain).read(), AzureTrace(path=plain + ".gz").read()
    assert [vars(r) | {"prefix_ids": None} for r in first] == [vars(r) | {"prefix_ids": None} for r in second]


def test_a_truncated_gzip_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(AZURE.encode())[:-12])
    with pytest.raises(InputError, match="cannot be read: not a complete gzip file"):
        AzureTrace(path=str(tmp_path / "a.csv.gz")).read()
    (tmp_path / "b.csv.gz").write_text(AZURE)
    with pytest.raises(InputError, match=r"b.csv.gz: cannot be read: Not a gzipped file"):
        AzureTrace(path=str(tmp_path / "b.csv.gz")).read()


def test_zstd_needs_its_package(tmp_path: Path) -> None:
    try:
        import zstandard
    except ImportError:
        (tmp_path / "a.csv.zst").write_bytes(b"(\xb5/\xfd")
        with pytest.raises(InputError, match="needs the package zstandard: pip install zstandard"):
            AzureTrace(path=str(tmp_path / "a.csv.zst")).read()
        return
    (tmp_path / "a.csv.zst").write_bytes(zstandard.compress(AZURE.encode()))
    assert len(AzureTrace(path=str(tmp_path / "a.csv.zst")).read()) == 2
    (tmp_path / "b.csv.zst").write_text(AZURE)
    with pytest.raises(InputError, match="not a zstd file"):
        AzureTrace(path=str(tmp_path / "b.csv.zst")).read()


MALFORMED: list[tuple[Callable[..., Trace], str, Any, str]] = [
    (AzureTrace, "a.csv", AZURE + "yesterday,1,1\n", "a.csv, line 4: TIMESTAMP: found 'yesterday'"),
    (AzureTrace, "a.csv", AZURE + "2023-11-16 18:15:50,x,1\n", 'line 4: ContextTokens: found "x"'),
    (AzureTrace, "a.csv", AZURE + "2023-11-16 18:15:50,4\n", "line 4: GeneratedTokens: found nothing"),
    (BurstGptTrace, "b.csv", BURSTGPT + "x,s,1,m,4,4,8,l\n", "line 5: Timestamp: found 'x'"),
    (BurstGptTrace, "b.csv", BURSTGPT + "-1,s,1,m,4,4,8,l\n", "line 5: Timestamp: found -1"),
    (
        ShareGptTrace,
        "s.json",
        [{"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}, {"x": 1}],
        "s.json, conversation 2: conversations: found nothing",
    ),
    (
        ShareGptTrace,
        "s.json",
        [
            {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]},
            {"conversations": [{"from": "human", "value": 1}]},
        ],
        "conversation 2, message 1: value: found 1",
    ),
    (
        JsonLinesTrace,
        "t.jsonl",
        '{"token_ids": [1], "output_tokens": 1}\n{"token_ids": ["a"], "output_tokens": 1}',
        'line 2: token_ids[0]: found "a"',
    ),
    (
        JsonLinesTrace,
        "t.jsonl",
        '{"token_ids": [1], "output_tokens": 1}\n{"output_tokens": 1}',
        "line 2: hash_ids: found nothing; accepted: the keys output_tokens, and token_ids or hash_ids",
    ),
    (
        AgenticTrace,
        "a.json",
        {**SESSION, "requests": [*SESSION["requests"], {"t": 1, "in": 64, "out": 1, "hash_ids": []}]},  # type: ignore[misc]
        "a.json, request 3: hash_ids: found 0 ids; accepted: 1, which is floor(64 / 64)",
    ),
    (
        MooncakeTrace,
        "m.jsonl",
        '{"timestamp": 0, "input_length": 9, "output_length": 1, "hash_ids": [1]}\n[',
        "m.jsonl, line 2: not JSON",
    ),
]


@pytest.mark.parametrize(("kind", "name", "content", "message"), MALFORMED)
def test_a_malformed_row_is_refused_with_file_and_line_or_skipped(
    kind: Callable[..., Trace], name: str, content: Any, message: str, tmp_path: Path
) -> None:
    path = file(tmp_path, name, content)
    with pytest.raises(InputError) as raised:
        kind(path=path).read()
    assert message in str(raised.value)
    assert len(str(raised.value).splitlines()) == 1
    loaded = kind(path=path, on_error="skip").load()
    assert loaded.skipped == 1
    assert loaded.requests


def test_a_skipped_row_leaves_no_trace_in_later_ones(tmp_path: Path) -> None:
    row = {"timestamp": 0, "input_length": 1024, "output_length": 1}
    lines = [{**row, "hash_ids": ids} for ids in ([1, 2], [3, 2], [4, 3])]  # 2 must follow 1
    text = "\n".join(map(json.dumps, lines))
    loaded = MooncakeTrace(path=file(tmp_path, "m.jsonl", text), on_error="skip").load()
    assert [r.prefix_ids.tolist() for r in loaded.requests] == [[0, 1], [2, 3]]
    assert loaded.skipped == 1


@pytest.mark.parametrize(
    ("kind", "name", "content", "message"),
    [
        (AzureTrace, "a.csv", "a,b\n1,2\n", "line 1: no column 'TIMESTAMP'"),
        (AzureTrace, "a.csv", AZURE.splitlines()[0], "no requests; accepted: CSV with the columns"),
        (ShareGptTrace, "s.json", {"a": 1}, "accepted: a JSON list of objects with conversations"),
        (AgenticTrace, "a.json", {"requests": []}, "block_size: found null; accepted: 64, trace.block_tokens"),
        (AgenticTrace, "a.json", [], "no list of requests"),
    ],
)
def test_a_file_of_another_format_is_refused(
    kind: Callable[..., Trace], name: str, content: Any, message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError) as raised:
        kind(path=file(tmp_path, name, content), on_error="skip").read()
    assert message in str(raised.value)


def test_a_folder_without_sessions_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no .json files"):
        AgenticTrace(path=str(tmp_path)).read()


def test_on_error_has_two_values() -> None:
    with pytest.raises(ValueError, match=r"trace.on_error must be refuse or skip, found 'ignore'"):
        AzureTrace(path="x", on_error="ignore")
