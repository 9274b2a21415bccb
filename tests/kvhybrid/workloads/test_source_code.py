"""The source code workload: real Python, shared pieces of modules, and functions begun behind them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from kvhybrid.text.codec import ByteCodec, TextCodec
from kvhybrid.text.corpus import held_out_text
from kvhybrid.workloads.source_code import SourceCode

TEXT = held_out_text().decode()


def prepared(codec: type[TextCodec] = ByteCodec, **sizes: Any) -> SourceCode:
    workload = SourceCode(**sizes)
    workload.prepare(codec)
    return workload


def prompts(workload: SourceCode) -> list[str]:
    return [bytes(request.prompt_token_ids).decode() for request in workload.traffic(256).ready()]


def split(prompt: str) -> tuple[str, str]:
    """The piece of a module, and the head of the function."""
    piece, _, head = prompt[:-1].rpartition("\n")
    return piece, head


def test_prompts_are_pieces_of_held_out_source_and_the_head_of_a_function() -> None:
    for prompt in prompts(prepared()):
        piece, head = split(prompt)
        assert piece in TEXT
        assert len(piece) <= 256
        assert head.lstrip().startswith("def ")
        assert f"\n{head}\n" in TEXT


def test_requests_of_one_piece_share_it_and_go_on_differently() -> None:
    found = [split(prompt) for prompt in prompts(prepared(num_prefixes=3, requests_per_prefix=5))]
    assert sorted(Counter(piece for piece, _ in found).values()) == [5, 5, 5]
    assert len(set(found)) == 15


def test_the_seed_decides_every_prompt() -> None:
    assert prompts(prepared(seed=5)) == prompts(prepared(seed=5))
    assert prompts(prepared(seed=5)) != prompts(prepared(seed=6))


def test_sizes_are_kept() -> None:
    workload = prepared(max_new_tokens=7)
    sent = workload.traffic(256).ready()
    assert len(sent) == workload.num_requests == 32
    assert (
        max(len(request.prompt_token_ids) + request.max_new_tokens for request in sent) == workload.longest_request
    )


def test_answers_are_text_and_the_first_ones_are_shown() -> None:
    traffic = prepared(num_prefixes=1, requests_per_prefix=4).traffic(256)
    for request in traffic.ready():
        traffic.finished(request.request_id, list(b"    return 1"))
    assert [answer.text for answer in traffic.answers()] == ["    return 1"] * 4
    assert traffic.num_shown == 3


class LateCodec(ByteCodec):
    """Its token ids begin where those of a byte end."""

    def encode(self, text: str) -> list[int]:
        return [256 + token for token in super().encode(text)]


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"prefix_chars": 10**6}, r"workload.prefix_chars must be at most \d+, found 1000000"),
        ({"requests_per_prefix": 10**5}, r"workload.requests_per_prefix must be at most \d+, found 100000"),
    ],
)
def test_more_than_the_source_has_is_refused(sizes: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        prepared(**sizes)


def test_a_tokenizer_that_knows_more_than_the_model_is_refused() -> None:
    workload = prepared(LateCodec)
    with pytest.raises(ValueError, match=r"gives token id 3\d\d, but the model's end at 255"):
        workload.traffic(256)
    with pytest.raises(ValueError, match=r"call `prepare` first"):
        SourceCode().traffic(256)
