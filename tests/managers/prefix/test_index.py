"""The prefix index: one small number per prefix key, recycled when nothing needs it."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvhybrid.managers.prefix.index import PrefixIndex, PrefixPath
from kvhybrid.managers.prefix.key_chain import KeyChain


def keys(*tokens: int) -> list[bytes]:
    """Each identifies all the tokens up to it."""
    return [b",".join(b"%d" % token for token in tokens[: i + 1]) for i in range(len(tokens))]


def chain(*tokens: int) -> KeyChain:
    return KeyChain(keys(*tokens))


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
    assert [index.key(n) for n in path.numbers.tolist()] == keys(1, 2, 3, 4)
    assert [index.units(n) for n in path.numbers.tolist()] == [1, 2, 3, 4]


def test_a_path_grows_with_its_keys_and_keeps_its_numbers() -> None:
    index = PrefixIndex(room=100)
    path = PrefixPath()
    short = index.extend(path, chain(5, 6)).tolist()
    assert index.extend(path, chain(5, 6)).tolist() == short
    assert index.extend(path, chain(5, 6, 7)).tolist()[:2] == short
    assert index.extend(PrefixPath(), chain()).tolist() == []


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
    assert [index.key(n) for n in numbers] == keys(1, 2)
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
    assert [index.key(n) for n in numbers] == keys(1, 2)


class Sequence:
    """Tokens, one a unit, with their keys and their path."""

    def __init__(self, tokens: list[int]) -> None:
        self.tokens, self.chain, self.path = tokens, chain(*tokens), PrefixPath()

    def grow(self, tokens: list[int]) -> None:
        self.tokens = self.tokens + tokens
        for key in keys(*self.tokens)[len(self.chain) :]:
            self.chain.append(key)


TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=8)


CALLS = ["new", "use", "grow", "grow", "grow", "hold", "drop", "key", "unkey", "elsewhere"]


def check_tree(index: PrefixIndex) -> None:
    """Runs with their room and free spans share all numbers out; every run lies where its numbers say."""
    runs = [run for run in index._runs if run is not index._root]
    spans = [(run.base, run.base + run.length + run.room) for run in runs]
    spans += [(first, first + length) for length, first in index._numbers._spans] + index._numbers._returned
    assert sorted(n for first, end in spans for n in range(first, end)) == list(range(1, len(index)))
    for run in runs:
        numbers = range(run.base, run.base + run.length + run.room)
        assert run.length
        assert [index._runs[index._run_of[n]] is run for n in numbers] == [True] * len(numbers)
        assert run.parent is not None
        assert run.parent.children[run.key(run.base)] is run
        assert run.units_before == run.parent.units_before + run.parent.length
    assert len(runs) + len(index._spare_places) + 1 == len(index._runs)


@given(st.integers(0, 60), st.lists(st.tuples(st.sampled_from(CALLS), TOKENS), min_size=30, max_size=80))
def test_a_number_in_use_never_changes_its_meaning(room: int, calls: list[tuple[str, list[int]]]) -> None:
    """Requests come, look up, are held and go; some prefixes are kept by a block. A small room forces sweeps."""
    index, other = PrefixIndex(room), PrefixIndex(room)
    requests: list[Sequence] = []
    held: list[Sequence] = []
    keyed: dict[int, bytes] = {}

    def look_up(request: Sequence) -> None:
        if index.wants_sweep:
            index.sweep(in_use(index, *keyed), [request.path for request in held])
        numbers = index.extend(request.path, request.chain)
        assert index.keys_of(numbers) == keys(*request.tokens)
        assert index.units_of(numbers).tolist() == list(range(1, len(request.tokens) + 1))

    for call, tokens in calls:
        at = sum(tokens) % max(len(requests), 1)
        if call == "new":
            requests.append(Sequence(tokens))
            look_up(requests[-1])
        elif call == "use" and requests:
            look_up(requests[at])
        elif call == "grow" and requests:
            requests[at].grow(tokens)
            look_up(requests[at])
        elif call == "elsewhere" and requests:
            there = other.extend(requests[at].path, requests[at].chain)
            assert other.keys_of(there) == keys(*requests[at].tokens)
        elif call == "hold" and requests:
            look_up(requests[at])
            held.append(requests[at])
        elif call == "drop" and held:
            held.pop(sum(tokens) % len(held))
        elif call == "key" and requests:
            look_up(requests[at])
            number = int(requests[at].path.numbers[-1])
            keyed[number] = index.key(number)
        elif call == "unkey" and keyed:
            keyed.pop(next(iter(keyed)))
        check_tree(index)
        assert all(index.key(number) == key for number, key in keyed.items())
        for request in held:
            if index.is_current(request.path):
                known = [index.key(n) for n in request.path.numbers.tolist()]
                assert known == keys(*request.tokens)[: len(known)]
        for request in requests:
            assert request.chain.keys == keys(*request.tokens), "a chain belongs to its request"


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
    first: list[bytes] = [Counted(b"%d" % i) for i in range(1000)]
    index.extend(PrefixPath(), KeyChain(first))
    index.extend(PrefixPath(), KeyChain([*first[:500], *(Counted(b"x%d" % i) for i in range(500))]))
    Counted.probes = 0
    index.extend(PrefixPath(), KeyChain(first))
    assert Counted.probes <= 4


def kept_keys(index: PrefixIndex) -> int:
    """Keys in all the lists that the runs of ``index`` refer to."""
    lists = {id(run.keys): run.keys for run in index._runs}
    return sum(map(len, lists.values()))


def test_a_long_conversation_does_not_keep_the_keys_of_all_its_turns() -> None:
    index, tokens = PrefixIndex(room=10_000), list(range(40))
    for turn in range(50):
        index.extend(PrefixPath(), chain(*tokens))
        tokens += [1000 + turn] * 10
    assert len(index) - 1 == 40 + 49 * 10
    assert kept_keys(index) <= 2 * (len(index) - 1)


def test_a_sweep_gives_up_the_keys_of_what_it_recycles() -> None:
    index = PrefixIndex(room=10_000)
    for request in range(20):
        index.extend(PrefixPath(), chain(request, *range(99)))
    first_ten = [request * 100 + 1 + unit for request in range(20) for unit in range(10)]
    index.sweep(in_use(index, *first_ten), [])
    assert kept_keys(index) == 200


def test_a_place_in_the_list_of_runs_is_given_again() -> None:
    index = PrefixIndex(room=10_000)
    for _ in range(5):
        for request in range(30):
            index.extend(PrefixPath(), chain(request, 1, 2))
        index.sweep(in_use(index), [])
    assert len(index._runs) == 1 + 30


def test_a_sweep_tells_what_it_has_recycled() -> None:
    index = PrefixIndex(room=10_000)
    kept = PrefixPath()
    index.extend(kept, chain(1, 2, 3))
    index.extend(PrefixPath(), chain(1, 2, 9, 8))
    index.extend(PrefixPath(), chain(5, 6))
    assert sorted(index.sweep(in_use(index, 4), [kept])) == [(4, 4), (5, 6), (6, 8)]


def test_a_sweep_leaves_the_path_of_another_index_alone() -> None:
    here, there = PrefixIndex(room=100), PrefixIndex(room=100)
    path = PrefixPath()
    there.extend(path, chain(1, 2, 3))
    here.extend(PrefixPath(), chain(7, 8, 9))
    assert here.sweep(in_use(here), [path]) == [(1, 4)]
    assert there.is_current(path)
