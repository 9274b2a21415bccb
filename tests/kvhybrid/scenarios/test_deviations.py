"""Why the listed deviations are right: for each letter, an oracle that tries everything or follows the content."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from kvhybrid.cache.request import Request
from kvhybrid.scenarios.config import build_manager
from kvhybrid.scenarios.file import read_scenarios
from kvhybrid.scenarios.hit_search import hit_search, keyed_by_hand
from kvhybrid.scenarios.player import Player
from kvhybrid.scenarios.pool_state import pool_state
from tests.kvhybrid.scenarios.oracles import longest_hit, most_held, tokens_read

FOLDER = Path(__file__).parents[2] / "scenarios"
LETTERS = {s.id: s.content for s in read_scenarios(FOLDER / "letters.jsonl")}
OWN = {s.id: s.content for file in sorted(FOLDER.glob("*.jsonl")) for s in read_scenarios(file)}


def played(content: Mapping[str, Any]) -> Iterator[tuple[Player, Mapping[str, Any], Mapping[str, Any]]]:
    """The player after each step, the step and its answer."""
    player = Player(build_manager(content["config"]))
    for step in content["steps"]:
        yield player, step, player.play(step)


def with_steps(*, sub_block_hits: bool) -> list[Any]:
    """Own scenarios with steps, by whether their hits may end inside a block."""
    chosen = []
    for id, content in OWN.items():
        if "steps" in content and content["config"].get("enable_caching", True):
            manager = build_manager(content["config"])
            if manager.coordinator.sub_block_hits == sub_block_hits:
                chosen.append(pytest.param(content, id=id))
    return chosen


@pytest.mark.parametrize("content", with_steps(sub_block_hits=False))
def test_a_hit_is_the_longest_position_that_every_group_can_resume_from(content: Mapping[str, Any]) -> None:
    """Letters f and g, and all look-ups of the other files: every aligned position is tried."""
    for player, step, answer in played(content):
        if step["do"] == "lookup" and not player.requests[step["request"]].skip_reading_prefix_cache:
            request = player.requests[step["request"]]
            assert answer["hit_tokens"] == longest_hit(player.manager, request, request.num_tokens - 1)


@pytest.mark.parametrize("id", [id for id, content in LETTERS.items() if content.get("kind") == "hit_search"])
def test_a_search_over_given_blocks_finds_what_trying_every_position_finds(id: str) -> None:
    """Letters b, c and e."""
    content = LETTERS[id]
    manager, request = keyed_by_hand(content)
    assert hit_search(content)["hit_tokens"] == longest_hit(manager, request, content["max_length"])


def test_a_evicted_keys_of_held_blocks_stay_away() -> None:
    gone: set[str] = set()
    for player, step, _ in played(LETTERS["a-evicted-stays-gone"]):
        gone |= {str(block) for block in step.get("blocks", ())}
        assert not gone & set(pool_state(player.manager, {})["cached"])
    assert gone


@pytest.mark.parametrize("content", with_steps(sub_block_hits=False))
def test_d_every_key_is_at_a_length_that_some_hit_uses(content: Mapping[str, Any]) -> None:
    for player, _, _ in played(content):
        manager = player.manager
        unit, alignment = manager.config.hash_unit, manager.config.scheduler_block_size
        for g, group in enumerate(manager.config.groups):
            numbers = manager.block_pool.keys.index[g].nonzero()[0].tolist()
            lengths = {manager.coordinator.index.units(number) * unit for number in numbers}
            ends = alignment if group.spec.state else manager.config.block_sizes[g]
            assert all(length % ends == 0 for length in lengths)


def test_f_a_window_of_one_reads_nothing() -> None:
    spec = build_manager(LETTERS["f-window-of-one"]["config"]).config.groups[0].spec
    assert all(not tokens_read(spec, p) for p in range(50))


def test_h_a_hit_of_null_blocks_in_an_empty_cache_gives_no_junction() -> None:
    content = LETTERS["h-null-blocks-prove-nothing"]
    for player, step, answer in played(content):
        if step["do"] == "lookup":
            assert pool_state(player.manager, {})["cached"] == {}
            assert answer["junction"] == 0


@pytest.mark.parametrize(
    "group",
    [
        {"spec": "sliding_window", "block_size": 4, "window": 6},
        {"spec": "sliding_window", "block_size": 2, "window": 4},
        {"spec": "sliding_window", "block_size": 3, "window": 9},
        {"spec": "chunked_local", "block_size": 3, "chunk": 6},
        {"spec": "mamba", "block_size": 4},
    ],
)
@pytest.mark.parametrize("in_flight", [1, 4, 8])
def test_i_the_bound_of_the_gate_is_what_some_step_holds_and_no_step_exceeds(
    group: dict[str, Any], in_flight: int
) -> None:
    config = {"num_blocks": 99, "groups": [group], "max_in_flight_tokens": in_flight, "max_model_len": 60}
    spec = build_manager(config).config.groups[0].spec
    assert spec.admission_blocks(in_flight, 60) == most_held(spec, in_flight, 60)


@pytest.mark.parametrize("window", [4, 6, 9])
@pytest.mark.parametrize("in_flight", [4, 5, 8])
def test_i_a_request_admitted_with_the_bound_is_never_refused(window: int, in_flight: int) -> None:
    group = {"spec": "sliding_window", "block_size": 4, "window": window}
    config = {"groups": [group], "max_in_flight_tokens": in_flight, "max_model_len": 100}
    spec = build_manager({**config, "num_blocks": 99}).config.groups[0].spec
    manager = build_manager({**config, "num_blocks": 1 + spec.admission_blocks(in_flight, 100)})
    request = Request("r", range(90), hasher=manager.hasher)
    while request.num_computed_tokens < 90:
        step = min(in_flight, 90 - request.num_computed_tokens)
        granted = manager.allocate_slots(request, step, full_sequence_must_fit=not request.num_computed_tokens)
        assert granted is not None
        request.num_computed_tokens += step


def test_j_the_adopted_state_is_the_older_one() -> None:
    content = LETTERS["j-older-state-serves"]
    written: list[set[int]] = [set()]
    for player, step, answer in played(content):
        if step["do"] == "new_step":
            written.append(set())
        if step["do"] == "allocate" and step["request"] != "c":
            written[-1] |= set(answer["new_blocks"][1]) - {0}
        if step["do"] == "lookup" and step["request"] == "c":
            adopted = answer["hit_blocks"][1][-1]
            assert adopted in written[0]
            assert adopted not in written[1]
            cached = pool_state(player.manager, {})["cached"]
            assert [cached[str(block)] for block in (adopted, *written[1])] == [8, 8]


STATES = [
    pytest.param(content, id=id)
    for id, content in OWN.items()
    if "steps" in content and any(g["spec"] == "mamba" for g in content["config"]["groups"])
]


@pytest.mark.parametrize("content", STATES)
def test_k_a_keyed_state_is_the_state_at_the_length_of_its_key(content: Mapping[str, Any]) -> None:
    """Follows what every state block holds: a step leaves the state at its end, a copy what its source held."""
    holds: dict[int, int] = {}
    pending: list[tuple[int, int]] = []
    for player, step, answer in played(content):
        manager = player.manager
        if step["do"] == "allocate" and "new_blocks" in answer:
            request = player.requests[step["request"]]
            for source, target in manager.take_copies():
                if (source, target) not in pending:
                    holds[target] = holds.get(source, 0)
            ends = {request.num_computed_tokens}
            if step.get("external_tokens"):
                ends.add(request.num_computed_tokens - step["new_tokens"])
            for group, table in zip(manager.config.groups, manager.get_block_ids(request.request_id), strict=True):
                if group.spec.state:
                    holds.update({int(table[(n - 1) // group.spec.block_size]): n for n in sorted(ends) if n})
        pending = manager.take_copies()
        pool, index = manager.block_pool, manager.coordinator.index
        for g, group in enumerate(manager.config.groups):
            if group.spec.state:
                for number in pool.keys.index[g].nonzero()[0].tolist():
                    assert holds[int(pool.keys.index[g, number])] == index.units(number) * manager.config.hash_unit


def test_l_a_load_is_refused_before_anything_changes() -> None:
    before: dict[str, Any] = {}
    for player, step, answer in played(LETTERS["l-load-brings-a-state"]):
        if answer == {"refused": True}:
            assert pool_state(player.manager, {}) == before
            return
        before = pool_state(player.manager, {})
        del step
    pytest.fail("nothing was refused")


def test_m_a_lone_chunk_reads_nothing_at_its_begin() -> None:
    spec = build_manager(LETTERS["m-lone-chunk"]["config"]).config.groups[0].spec
    assert not tokens_read(spec, 16)
