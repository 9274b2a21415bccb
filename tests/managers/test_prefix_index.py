"""The prefix index: one small number per prefix key, recycled when nobody needs it."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvhybrid.managers.prefix_index import PrefixIndex, PrefixPath


def chain(*tokens: int) -> list[bytes]:
    """A chain of keys: each stands for all the tokens up to it."""
    return [b",".join(b"%d" % token for token in tokens[: i + 1]) for i in range(len(tokens))]


def in_use(index: PrefixIndex, *numbers: int) -> np.ndarray:
    mask = np.zeros(len(index), bool)
    mask[list(numbers)] = True
    return mask


def test_numbers_start_at_one_and_equal_prefixes_share_theirs() -> None:
    index = PrefixIndex(room=100)
    first = index.extend(PrefixPath(), chain(1, 2, 3)).tolist()
    second = index.extend(PrefixPath(), chain(1, 2, 9)).tolist()
    assert first == [1, 2, 3]
    assert second == [1, 2, 4]
    assert len(index) == 5


def test_a_number_leads_back_to_its_key_and_length() -> None:
    index = PrefixIndex(room=100)
    path = PrefixPath()
    index.extend(path, chain(1, 2))
    index.extend(path, chain(1, 2, 3, 4))
    assert [index.key(n) for n in path.numbers.tolist()] == chain(1, 2, 3, 4)
    assert [index.units(n) for n in path.numbers.tolist()] == [1, 2, 3, 4]


def test_a_path_grows_with_its_keys_and_keeps_its_numbers() -> None:
    index = PrefixIndex(room=100)
    path = PrefixPath()
    short = index.extend(path, chain(5, 6)).tolist()
    assert index.extend(path, chain(5, 6)).tolist() == short
    assert index.extend(path, chain(5, 6, 7)).tolist()[:2] == short
    assert index.extend(PrefixPath(), []).tolist() == []


def test_a_sweep_is_wanted_when_as_many_numbers_were_given_as_there_is_room() -> None:
    index = PrefixIndex(room=3)
    index.extend(PrefixPath(), chain(1, 2, 3))
    assert not index.wants_sweep
    index.extend(PrefixPath(), chain(1, 2, 3, 4))
    assert index.wants_sweep
    index.sweep(in_use(index), [])
    assert not index.wants_sweep


def test_a_sweep_recycles_what_neither_a_block_nor_a_request_needs() -> None:
    index = PrefixIndex(room=3)
    held, gone = PrefixPath(), PrefixPath()
    index.extend(held, chain(1, 2))
    index.extend(gone, chain(7, 8, 9))
    index.sweep(in_use(index, 4), [held])
    assert index.is_current(held)
    assert not index.is_current(gone)
    assert index.extend(PrefixPath(), chain(20)).tolist() == [5], "the number of 7, 8, 9"
    assert index.extend(PrefixPath(), chain(21)).tolist() == [6], "that of 7 is needed as long as that of 7, 8"
    assert index.extend(held, chain(1, 2)).tolist() == [1, 2]


def test_a_stale_path_is_looked_up_afresh() -> None:
    index = PrefixIndex(room=3)
    stale = PrefixPath()
    index.extend(stale, chain(1, 2))
    index.sweep(in_use(index, 2), [])
    index.extend(PrefixPath(), chain(50))
    numbers = index.extend(stale, chain(1, 2)).tolist()
    assert [index.key(n) for n in numbers] == chain(1, 2)
    assert numbers[1] == 2, "a block kept it"
    assert index.is_current(stale)


def test_a_path_that_was_stale_before_it_is_held_is_not_taken_for_current() -> None:
    index = PrefixIndex(room=3)
    path = PrefixPath()
    index.extend(path, chain(1, 2))
    index.sweep(in_use(index), [])
    index.extend(PrefixPath(), chain(50, 51))
    index.sweep(in_use(index), [path])
    numbers = index.extend(path, chain(1, 2)).tolist()
    assert [index.key(n) for n in numbers] == chain(1, 2)


TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=8)


@given(
    st.integers(0, 6),
    st.lists(
        st.tuples(st.sampled_from(["new", "use", "grow", "hold", "drop", "key", "unkey"]), TOKENS), max_size=60
    ),
)
def test_a_number_in_use_never_changes_its_meaning(room: int, calls: list[tuple[str, list[int]]]) -> None:
    """Requests come, look up, are held and go; some prefixes are kept by a block. A small room forces sweeps."""
    index = PrefixIndex(room)
    paths: list[tuple[PrefixPath, list[int]]] = []
    held: list[tuple[PrefixPath, list[int]]] = []
    keyed: dict[int, bytes] = {}

    def look_up(path: PrefixPath, tokens: list[int]) -> None:
        if index.wants_sweep:
            index.sweep(in_use(index, *keyed), [path for path, _ in held])
        numbers = index.extend(path, chain(*tokens)).tolist()
        assert [index.key(n) for n in numbers] == chain(*tokens)
        assert [index.units(n) for n in numbers] == list(range(1, len(tokens) + 1))

    for call, tokens in calls:
        at = sum(tokens) % max(len(paths), 1)
        if call == "new":
            paths.append((PrefixPath(), tokens))
            look_up(*paths[-1])
        elif call == "use" and paths:
            look_up(*paths[at])
        elif call == "grow" and paths:
            paths[at] = (paths[at][0], paths[at][1] + tokens)
            look_up(*paths[at])
        elif call == "hold" and paths:
            look_up(*paths[at])
            held.append(paths[at])
        elif call == "drop" and held:
            held.pop(sum(tokens) % len(held))
        elif call == "key" and paths:
            look_up(*paths[at])
            number = int(paths[at][0].numbers[-1])
            keyed[number] = index.key(number)
        elif call == "unkey" and keyed:
            keyed.pop(next(iter(keyed)))
        assert all(index.key(number) == key for number, key in keyed.items())
        for path, tokens_of_path in held:
            if index.is_current(path):
                expected = chain(*tokens_of_path)  # the path may have grown since, or not be looked up yet
                known = [index.key(n) for n in path.numbers[: len(expected)].tolist()]
                assert known == expected[: len(known)]


def test_numbers_stay_few_however_many_prefixes_pass() -> None:
    index = PrefixIndex(room=16)
    for i in range(500):
        if index.wants_sweep:
            index.sweep(in_use(index), [])
        index.extend(PrefixPath(), chain(i, 1, 2))
    assert len(index) <= 16 + 3 + 3


def test_one_look_up_of_an_equal_prefix_compares_lists_and_not_keys() -> None:
    """A key that counts its comparisons: a thousand equal units cost a handful of dictionary probes."""

    class Counted(bytes):
        probes = 0

        def __hash__(self) -> int:
            Counted.probes += 1
            return bytes.__hash__(self)

    index = PrefixIndex(room=10_000)
    keys: list[bytes] = [Counted(b"%d" % i) for i in range(1000)]
    index.extend(PrefixPath(), keys)
    index.extend(PrefixPath(), [*keys[:500], *(Counted(b"x%d" % i) for i in range(500))])
    Counted.probes = 0
    index.extend(PrefixPath(), keys)
    assert Counted.probes <= 4
