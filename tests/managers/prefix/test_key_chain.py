"""A request's keys, unit by unit."""

from __future__ import annotations

import pytest

from kvhybrid.managers.prefix.key_chain import KeyChain


def test_a_chain_is_read_like_a_list_and_grows_at_its_end() -> None:
    chain = KeyChain([b"a", b"b"])
    chain.append(b"c")
    assert (len(chain), list(chain), chain[1], chain[-1]) == (3, [b"a", b"b", b"c"], b"b", b"c")
    assert chain[1:] == [b"b", b"c"]
    assert repr(chain) == "KeyChain([b'a', b'b', b'c'])"


def test_a_key_can_be_neither_changed_nor_taken_out() -> None:
    chain = KeyChain([b"a", b"b"])
    with pytest.raises(TypeError):
        chain[0] = b"x"  # type: ignore[index]
    with pytest.raises(TypeError):
        del chain[0]  # type: ignore[attr-defined]
    assert not {"clear", "pop", "remove", "insert", "reverse", "sort"} & set(dir(chain))


def test_a_chain_has_a_list_of_its_own() -> None:
    given = [b"a", b"b"]
    chain = KeyChain(given)
    given[0] = b"x"
    assert list(chain) == [b"a", b"b"]


def test_chains_and_lists_are_equal_when_their_keys_are() -> None:
    chain = KeyChain([b"a", b"b"])
    assert chain == KeyChain([b"a", b"b"])
    assert chain == [b"a", b"b"]
    assert chain != KeyChain([b"a"])
    assert chain != [b"a", b"x"]
    with pytest.raises(TypeError, match="grows"):
        hash(chain)
