"""Prefix keys: equal exactly where the prefixes, and the conditions that they were computed under, are equal."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvhybrid.cache.extra_keys import LoRA, MediaItem
from kvhybrid.cache.hashing import PrefixHasher
from kvhybrid.cache.request import Request


def keys(tokens: list[int], unit: int = 4, **options: Any) -> list[bytes]:
    return list(Request("r", tokens, hasher=PrefixHasher(unit), **options).block_hashes)


def shared(a: list[bytes], b: list[bytes]) -> int:
    """How many keys two chains share; behind the first difference they share none."""
    same = [x == y for x, y in zip(a, b, strict=False)]
    first = same.index(False) if False in same else len(same)
    assert not any(same[first:]), "a chain never meets again"
    return first


TOKENS = st.lists(st.integers(0, 3), min_size=1, max_size=30)


@given(TOKENS, TOKENS, st.integers(1, 5))
def test_keys_are_equal_exactly_as_far_as_the_tokens_are(a: list[int], b: list[int], unit: int) -> None:
    common = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    assert shared(keys(a, unit), keys(b, unit)) == common // unit


@given(TOKENS, st.lists(TOKENS, max_size=5), st.integers(1, 5), st.booleans())
def test_a_chain_grows_as_if_all_its_tokens_had_been_there(
    prompt: list[int], outputs: list[list[int]], unit: int, salted: bool
) -> None:
    options: dict[str, Any] = {"cache_salt": "s"} if salted else {}
    request = Request("r", prompt, hasher=PrefixHasher(unit), **options)
    for output in outputs:
        request.append_output_token_ids(output)
    assert list(request.block_hashes) == keys(request.token_ids, unit, **options)
    assert len(request.block_hashes) == request.num_tokens // unit


def test_large_and_negative_token_ids_have_keys() -> None:
    assert len({tuple(keys([token] * 4)) for token in (0, 1, -1, 2**31, 2**62)}) == 5


def test_a_token_may_not_slip_into_the_next_unit() -> None:
    assert keys([1, 2, 3, 4], 2)[1] != keys([1, 2, 3, 4], 4)[0]


@pytest.mark.parametrize(
    ("options", "common"),
    [
        ({}, 4),
        ({"cache_salt": "a"}, 0),
        ({"lora": LoRA("name", "path")}, 0),
        ({"media": (MediaItem("picture", 0, 1),)}, 0),
        ({"media": (MediaItem("picture", 5, 2),)}, 1),
        ({"media": (MediaItem("picture", 11, 2),)}, 2),
        ({"media": (MediaItem("picture", 15, 9),)}, 3),
        ({"media": (MediaItem("picture", 16, 4),)}, 4),
        ({"media": (MediaItem("picture", 4, 0),)}, 4),
    ],
)
def test_conditions_enter_the_units_that_they_concern(options: dict[str, Any], common: int) -> None:
    tokens = list(range(16))
    assert shared(keys(tokens), keys(tokens, **options)) == common


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"cache_salt": "a"}, {"cache_salt": "b"}),
        ({"lora": LoRA("a", "p")}, {"lora": LoRA("b", "p")}),
        ({"lora": LoRA("a", "p")}, {"lora": LoRA("a", "q")}),
        ({"lora": LoRA("a", "bc")}, {"lora": LoRA("ab", "c")}),
        ({"media": (MediaItem("x", 1, 2),)}, {"media": (MediaItem("y", 1, 2),)}),
        ({"media": (MediaItem("x", 1, 2),)}, {"media": (MediaItem("x", 2, 2),)}),
        ({"media": (MediaItem("x", 1, 2),)}, {"media": (MediaItem("x", 1, 3),)}),
        ({"media": (MediaItem("x1", 1, 2),)}, {"media": (MediaItem("x", 1, 2),)}),
        ({"media": (MediaItem("x", -2, 4),)}, {"media": (MediaItem("x", -2, 40),)}),
        ({"cache_salt": "a"}, {"lora": LoRA("a", "")}),
    ],
)
def test_other_conditions_give_other_keys(one: dict[str, Any], other: dict[str, Any]) -> None:
    tokens = list(range(8))
    assert shared(keys(tokens, **one), keys(tokens, **other)) == 0
    assert keys(tokens, **one) == keys(tokens, **one)


def test_a_salt_enters_the_first_unit_and_the_chain_carries_it_on() -> None:
    hasher = PrefixHasher(4)
    request = Request("r", range(8), cache_salt="s", hasher=hasher)
    assert request.extra_keys.of_unit(0, 4) != b""
    assert request.extra_keys.of_unit(1, 4) == b""


def test_an_adapter_enters_every_unit() -> None:
    hasher = PrefixHasher(4)
    request = Request("r", range(8), lora=LoRA("a", "p"), hasher=hasher)
    assert request.extra_keys.of_unit(0, 4) == request.extra_keys.of_unit(1, 4) != b""
