"""Requests: their tokens and the keys that grow with them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kvhybrid.cache.hashing import PrefixHasher
from kvhybrid.cache.request import LoRA, MediaItem, Request, RequestStatus


def test_a_new_request_waits_and_has_computed_nothing() -> None:
    request = Request("r", [1, 2, 3])
    assert request.status is RequestStatus.WAITING
    assert (request.num_tokens, request.num_prompt_tokens, request.num_output_tokens) == (3, 3, 0)
    assert (request.num_computed_tokens, request.num_in_flight_tokens, request.num_preemptions) == (0, 0, 0)


def test_an_empty_prompt_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="request 'r': the prompt has no tokens"):
        Request("r", [])


def test_output_tokens_come_after_the_prompt() -> None:
    request = Request("r", [1, 2])
    request.append_output_token_ids([7])
    request.append_output_token_ids([8, 9])
    assert request.token_ids == [1, 2, 7, 8, 9]
    assert request.output_token_ids == [7, 8, 9]
    assert (request.num_prompt_tokens, request.num_output_tokens) == (2, 3)


def test_a_request_owns_its_tokens() -> None:
    prompt = [1, 2, 3]
    request = Request("r", prompt)
    request.append_output_token_ids([4])
    assert prompt == [1, 2, 3]


KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "salted": {"cache_salt": "s"},
    "adapted": {"lora": LoRA("a", "p")},
    "media": {"media": (MediaItem("x", 1, 2),)},
    "without keys": {"hasher": None},
}
EVERY_KIND = pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)


def request_of(tokens: Any, options: dict[str, Any]) -> Request:
    return Request("r", tokens, **{"hasher": PrefixHasher(4), **options})


@EVERY_KIND
def test_token_ids_of_every_integer_type_are_the_same_tokens(options: dict[str, Any]) -> None:
    expected = request_of(range(10), options)
    for given in (np.arange(10), list(np.arange(10, dtype=np.uint16)), tuple(map(IntId, range(10)))):
        request = request_of(given[:6], options)
        request.append_output_token_ids(given[6:])
        assert request.token_ids == expected.token_ids
        assert {*map(type, request.token_ids)} == {int}
        assert list(request.block_hashes) == list(expected.block_hashes)


class IntId(int):
    """An int of a class of its own."""


@EVERY_KIND
@pytest.mark.parametrize("wrong", [True, 1.0, "1", None, 2**63], ids=repr)
def test_what_is_no_token_id_is_refused_by_name(options: dict[str, Any], wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"^request 'r': token id 2 must "):
        request_of([1, 2, wrong, 4], options)
    request = request_of([1, 2, 3], options)
    with pytest.raises(ValueError, match=r"^request 'r': token id 1 must "):
        request.append_output_token_ids([4, wrong])
    assert request.token_ids == [1, 2, 3]
    assert len(request.block_hashes) == 0


def test_keys_appear_when_a_unit_is_full() -> None:
    request = Request("r", range(7), hasher=PrefixHasher(4))
    assert len(request.block_hashes) == 1
    request.append_output_token_ids([7])
    assert len(request.block_hashes) == 2
    request.append_output_token_ids(range(8, 20))
    assert len(request.block_hashes) == 5


def test_keys_do_not_tell_prompt_from_output() -> None:
    hasher = PrefixHasher(4)
    prompt = Request("a", range(12), hasher=hasher)
    grown = Request("b", range(3), hasher=hasher)
    for token in range(3, 12):
        grown.append_output_token_ids([token])
    assert list(grown.block_hashes) == list(prompt.block_hashes)


def test_without_a_hasher_there_are_no_keys() -> None:
    request = Request("r", range(8))
    request.append_output_token_ids([8])
    assert list(request.block_hashes) == []


def test_an_empty_salt_is_no_salt() -> None:
    assert Request("r", [1], cache_salt="").extra_keys.salt is None
