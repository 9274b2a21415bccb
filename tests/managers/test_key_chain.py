"""A request's keys, unit by unit."""

from __future__ import annotations

import pytest

from kvhybrid.managers.key_chain import KeyChain


def test_a_chain_is_read_like_a_list_and_grows_at_its_end() -> None:
    chain = KeyChain([b"a"])
    chain.append(b"b")
    chain.extend([b"c", b"d"])
    assert (len(chain), list(chain), chain[1], chain[-1]) == (4, [b"a", b"b", b"c", b"d"], b"b", b"d")
    assert repr(chain) == "KeyChain([b'a', b'b', b'c', b'd'])"


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
