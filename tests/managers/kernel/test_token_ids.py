"""Token ids: one rule for what is accepted, in both forms of the kernel."""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import IntEnum

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvhybrid.managers.kernel import as_token_ids, is_native, plain

pytestmark = pytest.mark.skipif(not is_native, reason="no native kernel was compiled here")


class Ordinal:
    """An integer of a class of its own."""

    def __index__(self) -> int:
        return 7


class Colour(IntEnum):
    RED = 3


FORMS = pytest.mark.parametrize("form", [as_token_ids, plain.as_token_ids], ids=["native", "plain"])


@FORMS
@given(tokens=st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_integers_of_every_kind_become_plain_ints(form: Callable[..., list[int]], tokens: list[int]) -> None:
    kinds = (
        list,
        tuple,
        iter,
        lambda given: np.array(given, np.int64),
        lambda given: list(np.array(given, np.int64)),
    )
    for kind in kinds:
        found = form(kind(tokens))
        assert found == tokens
        assert {*map(type, found)} <= {int}


@FORMS
def test_anything_with_an_index_is_an_integer(form: Callable[..., list[int]]) -> None:
    found = form([np.uint8(200), Ordinal(), Colour.RED, np.array(5), 2**40])
    assert found == [200, 7, 3, 5, 2**40]
    assert {*map(type, found)} == {int}


@FORMS
def test_the_list_is_a_new_one(form: Callable[..., list[int]]) -> None:
    given = [1, 2]
    assert form(given) is not given


@FORMS
@pytest.mark.parametrize(
    ("wrong", "error", "line"),
    [
        (True, TypeError, "token id 1 must be an integer, found True"),
        (np.True_, TypeError, "token id 1 must be an integer, found np.True_"),
        (1.0, TypeError, "token id 1 must be an integer, found 1.0"),
        ("a", TypeError, "token id 1 must be an integer, found 'a'"),
        (None, TypeError, "token id 1 must be an integer, found None"),
        ([2], TypeError, "token id 1 must be an integer, found [2]"),
        (2**63, ValueError, "token id 1 must fit in 64 bits, found 9223372036854775808"),
        (-(2**63) - 1, ValueError, "token id 1 must fit in 64 bits, found -9223372036854775809"),
        (np.uint64(2**63), ValueError, "token id 1 must fit in 64 bits, found 9223372036854775808"),
    ],
)
def test_what_is_no_token_id_is_refused(
    form: Callable[..., list[int]], wrong: object, error: type[Exception], line: str
) -> None:
    with pytest.raises(error, match=f"^{re.escape(line)}$"):
        form([5, wrong])


@FORMS
@pytest.mark.parametrize("wrong", [None, 5])
def test_token_ids_come_in_a_sequence(form: Callable[..., list[int]], wrong: object) -> None:
    with pytest.raises(TypeError, match="not iterable"):
        form(wrong)


@FORMS
def test_an_error_of_an_integer_itself_is_passed_on(form: Callable[..., list[int]]) -> None:
    class Broken:
        def __index__(self) -> int:
            raise KeyError("lost")

    with pytest.raises(KeyError, match="lost"):
        form([Broken()])


@FORMS
def test_an_integer_that_changes_the_tokens_changes_no_answer(form: Callable[..., list[int]]) -> None:
    tokens: list[object] = [1, 2, 3]

    class Clearing:
        def __index__(self) -> int:
            tokens.clear()
            return 2

    tokens[1] = Clearing()
    assert form(tokens) == [1, 2, 3]
