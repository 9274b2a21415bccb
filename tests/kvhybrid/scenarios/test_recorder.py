"""A recording of a manager's calls, played again, gives the same answers."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from kvhybrid.cache.blocks import KVCacheBlocks
from kvhybrid.cache.config import KVCacheConfig, KVCacheGroup
from kvhybrid.cache.extra_keys import MediaItem
from kvhybrid.cache.manager import KVCacheManager
from kvhybrid.cache.request import Request, RequestStatus
from kvhybrid.scenarios.check import check
from kvhybrid.scenarios.config import DEFAULTS, build_manager, cache_config
from kvhybrid.scenarios.file import read_scenarios
from kvhybrid.scenarios.player import Player
from kvhybrid.scenarios.recorder import Recorder
from kvhybrid.scheduling.scheduler import Scheduler
from kvhybrid.specs import FullAttentionSpec, MambaSpec, SlidingWindowSpec

OWN = Path(__file__).parents[2] / "scenarios"
WITH_STEPS = [s for file in sorted(OWN.glob("*.jsonl")) for s in read_scenarios(file) if "steps" in s.content]


def only(path: Path) -> Mapping[str, Any]:
    [scenario] = read_scenarios(path)
    return scenario.content


def config_of(*specs: Any, num_blocks: int = 60) -> KVCacheConfig:
    groups = tuple(KVCacheGroup(f"g{g}", spec) for g, spec in enumerate(specs))
    return KVCacheConfig(groups, num_blocks)


def manager_of(recorder: Recorder, *specs: Any, num_blocks: int = 60, **options: Any) -> KVCacheManager:
    return recorder.manager(config_of(*specs, num_blocks=num_blocks), max_model_len=200, **options)


def manager_for(recorder: Recorder, config: Mapping[str, Any]) -> KVCacheManager:
    """As `build_manager`, and recorded."""
    options = ("max_model_len", "max_in_flight_tokens", "enable_caching", "watermark", "retention_interval")
    given = {**DEFAULTS, **config}
    return recorder.manager(cache_config(config), **{name: given[name] for name in options})


@pytest.mark.parametrize("scenario", WITH_STEPS, ids=lambda scenario: scenario.id)
def test_recording_a_scenario_gives_it_back(scenario: Any, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    with Recorder(out, id="again") as recorder:
        player = Player(manager_for(recorder, scenario.content["config"]))
        answers = [player.play(step) for step in scenario.content["steps"]]
    again = only(out)
    assert "note" not in again
    assert check(again) is None
    asked = ("lookup", "reset", "take_copies")
    given = [a for s, a in zip(scenario.content["steps"], answers, strict=True) if s["do"] in asked]
    assert [s["expect"] for s in again["steps"] if s["do"] in asked] == given


def random_run(manager: KVCacheManager, rng: random.Random) -> int:
    """Requests with shared prefixes through the real scheduler; returns how many were preempted."""
    scheduler = Scheduler(manager, max_batched_tokens=rng.choice([12, 24, 100]), max_num_seqs=4)
    for i in range(12):
        head = list(range(rng.choice([0, 6, 13, 20])))
        prompt = head + [1000 * (i % 5 + 1) + t for t in range(rng.randint(1, 20))]
        salt = rng.choice([None, None, "s"])
        request = Request(
            f"r{i}", prompt, max_new_tokens=rng.randint(1, 9), cache_salt=salt, hasher=manager.hasher
        )
        scheduler.add_request(request)
    while scheduler.has_unfinished:
        output = scheduler.schedule()
        sampled = {s.request.request_id: rng.randrange(3) for s in output.scheduled if s.samples}
        scheduler.update_from_output(output, sampled)
        if rng.random() < 0.05:
            scheduler.abort(f"r{rng.randrange(12)}")
        if rng.random() < 0.05:
            manager.evict_blocks(iter([rng.randrange(1, manager.config.num_blocks)]))
    manager.reset_prefix_cache()
    return scheduler.num_preemptions


@pytest.mark.parametrize("seed", range(12))
def test_a_run_of_the_scheduler_plays_again(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    full, window, state = (
        FullAttentionSpec(block_size=4),
        SlidingWindowSpec(block_size=4, window=7),
        MambaSpec(block_size=4),
    )
    specs = rng.choice([(full,), (full, window), (full, state), (window, full, state, window)])
    retention = rng.choice([None, 0, 8])
    num_blocks, out = 1 + 13 * len(specs), tmp_path / "out.jsonl"
    with Recorder(out) as recorder:
        manager = manager_of(recorder, *specs, num_blocks=num_blocks, watermark=0.1, retention_interval=retention)
        random_run(manager, rng)
    recorded = only(out)
    assert "note" not in recorded
    assert check(recorded) is None
    assert recorded["steps"][-1]["do"] == "state"


def test_a_run_with_preemptions_plays_again(tmp_path: Path) -> None:
    with Recorder(tmp_path / "out.jsonl") as recorder:
        manager = manager_of(recorder, FullAttentionSpec(block_size=4), num_blocks=13)
        assert random_run(manager, random.Random(3)) > 0
    recorded = only(tmp_path / "out.jsonl")
    assert "preempt" in {step["do"] for step in recorded["steps"]}
    assert check(recorded) is None


def test_a_difference_shows(tmp_path: Path) -> None:
    with Recorder(tmp_path / "out.jsonl") as recorder:
        manager = manager_of(recorder, FullAttentionSpec(block_size=4))
        random_run(manager, random.Random(1))
    recorded = json.loads((tmp_path / "out.jsonl").read_text())
    recorded["config"]["groups"][0]["block_size"] = 5
    assert check(recorded) is not None


def test_a_closed_recorder_records_no_more_and_its_manager_works_on(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "out.jsonl")
    manager = manager_of(recorder, FullAttentionSpec(block_size=4))
    manager.allocate_slots(Request("a", range(9), hasher=manager.hasher), 9)
    recorder.close()
    before = (tmp_path / "out.jsonl").read_bytes()
    assert manager.allocate_slots(Request("b", range(9), hasher=manager.hasher), 9) is not None
    recorder.close()
    assert (tmp_path / "out.jsonl").read_bytes() == before


def test_a_recorder_writes_nothing_before_it_has_a_manager(tmp_path: Path) -> None:
    with Recorder(tmp_path / "out.jsonl"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_recorder_makes_one_manager(tmp_path: Path) -> None:
    with Recorder(tmp_path / "out.jsonl") as recorder:
        manager_of(recorder, FullAttentionSpec(block_size=4))
        with pytest.raises(ValueError, match=r"out\.jsonl is the recording of another cache manager"):
            manager_of(recorder, FullAttentionSpec(block_size=4))


def test_what_no_scenario_can_express_is_refused_at_once(tmp_path: Path) -> None:
    group = KVCacheGroup("own", FullAttentionSpec(block_size=4), private_blocks=8)
    with (
        Recorder(tmp_path / "out.jsonl") as recorder,
        pytest.raises(ValueError, match="cannot be recorded: group 'own' has a pool of its own"),
    ):
        recorder.manager(KVCacheConfig((group,), 10), max_model_len=200)
    assert list(tmp_path.iterdir()) == []


CALLS: Sequence[tuple[tuple[Any, ...], Mapping[str, Any]]] = (
    ((4,), {}),
    ((), {"num_new_tokens": 4, "num_lookahead_tokens": 2}),
    ((4, 0, None), {"reserved_blocks": 3, "has_scheduled_reqs": False}),
    ((4,), {"num_new_computed_tokens": 0, "new_computed_blocks": None, "full_sequence_must_fit": True}),
)


@pytest.mark.parametrize(("args", "kwargs"), CALLS)
def test_arguments_may_come_by_place_or_by_name(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], tmp_path: Path
) -> None:
    plain = KVCacheManager(config_of(FullAttentionSpec(block_size=4)), max_model_len=200)
    expected = plain.allocate_slots(Request("a", range(9)), *args, **kwargs)
    with Recorder(tmp_path / "out.jsonl") as recorder:
        manager = manager_of(recorder, FullAttentionSpec(block_size=4))
        given = manager.allocate_slots(Request("a", range(9), hasher=manager.hasher), *args, **kwargs)
    assert expected is not None
    assert given is not None
    assert given.get_block_ids() == expected.get_block_ids()
    assert check(only(tmp_path / "out.jsonl")) is None


@pytest.mark.parametrize("wrong", [{"num_tokens": 4}, {"num_new_tokens": 4, "lookahead": 1}])
def test_a_wrong_argument_is_a_type_error_as_without_a_recorder(wrong: Mapping[str, int], tmp_path: Path) -> None:
    with Recorder(tmp_path / "out.jsonl") as recorder:
        manager = manager_of(recorder, FullAttentionSpec(block_size=4))
        with pytest.raises(TypeError, match="argument"):
            manager.allocate_slots(Request("a", range(9), hasher=manager.hasher), **wrong)
    assert [step["do"] for step in only(tmp_path / "out.jsonl")["steps"]] == ["state"]


def test_an_eviction_may_name_a_group_of_the_shared_pool(tmp_path: Path) -> None:
    with Recorder(tmp_path / "out.jsonl") as recorder:
        manager = manager_of(recorder, FullAttentionSpec(block_size=4))
        request = Request("a", [1] * 8, hasher=manager.hasher)
        manager.allocate_slots(request, 8)
        manager.evict_blocks(manager.get_block_ids("a")[0], group=0)
    assert {"do": "evict", "blocks": [1, 2]} in only(tmp_path / "out.jsonl")["steps"]
    assert check(only(tmp_path / "out.jsonl")) is None


def test_prompts_are_not_written_down(tmp_path: Path) -> None:
    with Recorder(tmp_path / "out.jsonl") as recorder:
        manager = manager_of(recorder, FullAttentionSpec(block_size=2))
        for name, prompt in (("a", [90210] * 6), ("b", [90210] * 4 + [90211])):
            request = Request(name, prompt, hasher=manager.hasher)
            found = manager.get_computed_blocks(request)
            manager.allocate_slots(request, len(prompt) - found.num_tokens, found.num_tokens, found.blocks)
            request.num_computed_tokens, request.status = len(prompt), RequestStatus.RUNNING
    assert "9021" not in (tmp_path / "out.jsonl").read_text()
    a, b = (s for s in only(tmp_path / "out.jsonl")["steps"] if s["do"] == "submit")
    assert a["tokens"] == [[1, 6]]
    assert b["tokens"] == [[1, 4], [7, 1]]


def test_media_separate_equal_tokens_in_a_recording_too(tmp_path: Path) -> None:
    hits = []
    with Recorder(tmp_path / "out.jsonl") as recorder:
        manager = manager_of(recorder, FullAttentionSpec(block_size=2))
        for name, content in (("a", "cat"), ("b", "dog"), ("c", "cat")):
            media = (MediaItem(content, 2, 3),)
            request = Request(name, [5] * 9, media=media, hasher=manager.hasher)
            found = manager.get_computed_blocks(request)
            hits.append(found.num_tokens)
            manager.allocate_slots(request, 9 - found.num_tokens, found.num_tokens, found.blocks)
            request.num_computed_tokens, request.status = 9, RequestStatus.RUNNING
    assert hits == [0, 2, 8]
    assert check(only(tmp_path / "out.jsonl")) is None


def test_a_name_used_again_is_a_new_request(tmp_path: Path) -> None:
    with Recorder(tmp_path / "out.jsonl") as recorder:
        manager = manager_of(recorder, FullAttentionSpec(block_size=4))
        for _ in range(2):
            request = Request("same", range(9), hasher=manager.hasher)
            found = manager.get_computed_blocks(request)
            manager.allocate_slots(request, 9 - found.num_tokens, found.num_tokens, found.blocks)
            request.num_computed_tokens, request.status = 9, RequestStatus.FINISHED
            manager.free(request)
    recorded = only(tmp_path / "out.jsonl")
    assert [s["request"] for s in recorded["steps"] if s["do"] == "submit"] == ["same", "same#2"]
    assert check(recorded) is None


def test_what_a_scenario_cannot_say_ends_the_recording_and_not_the_run(tmp_path: Path) -> None:
    with Recorder(tmp_path / "out.jsonl") as recorder:
        manager = manager_of(recorder, FullAttentionSpec(block_size=4))
        first = Request("a", range(9), hasher=manager.hasher)
        assert manager.allocate_slots(first, 9) is not None
        first.num_computed_tokens, first.status = 9, RequestStatus.RUNNING
        second = Request("b", range(9), hasher=manager.hasher)
        manager.get_computed_blocks(second)
        assert isinstance(manager.allocate_slots(second, 9), KVCacheBlocks)
    recorded = only(tmp_path / "out.jsonl")
    assert "b adopts 0 tokens; its latest look-up found 8" in recorded["note"]
    assert [s["do"] for s in recorded["steps"]] == ["submit", "allocate", "submit", "lookup"]
    assert check(recorded) is None


def test_blocks_that_stay_held_after_their_request_end_the_recording(tmp_path: Path) -> None:
    with Recorder(tmp_path / "out.jsonl") as recorder:
        manager = manager_of(recorder, FullAttentionSpec(block_size=4))
        request = Request("a", range(9), hasher=manager.hasher)
        manager.allocate_slots(request, 9)
        held = manager.pop_blocks_for_free(request)
        assert held is not None
        manager.free_blocks(held)
    recorded = only(tmp_path / "out.jsonl")
    assert "a ends, and its blocks stay held" in recorded["note"]
    assert check(recorded) is None


def test_an_exception_in_the_run_still_leaves_the_file(tmp_path: Path) -> None:
    def run() -> None:
        with Recorder(tmp_path / "out.jsonl") as recorder:
            manager = manager_of(recorder, FullAttentionSpec(block_size=4))
            manager.allocate_slots(Request("a", range(9), hasher=manager.hasher), 9)
            raise RuntimeError("out of luck")

    with pytest.raises(RuntimeError, match="out of luck"):
        run()
    assert check(only(tmp_path / "out.jsonl")) is None


def test_the_config_is_said_in_full(tmp_path: Path) -> None:
    options = {"max_in_flight_tokens": 12, "watermark": 0.25, "retention_interval": 8}
    with Recorder(tmp_path / "out.jsonl") as recorder:
        manager_of(recorder, SlidingWindowSpec(block_size=4, window=9), MambaSpec(block_size=8), **options)
    config = only(tmp_path / "out.jsonl")["config"]
    assert config["groups"] == [
        {"spec": "sliding_window", "block_size": 4, "window": 9},
        {"spec": "mamba", "mode": "align", "block_size": 8},
    ]
    again = build_manager(config)
    assert (again.watermark_blocks, again.max_model_len) == (15, 200)
    assert (config["max_in_flight_tokens"], config["retention_interval"]) == (12, 8)


def test_specs_that_differ_in_their_pages_alone_stay_apart(tmp_path: Path) -> None:
    specs = (FullAttentionSpec(block_size=4, num_kv_heads=2), FullAttentionSpec(block_size=4, num_kv_heads=4))
    with Recorder(tmp_path / "out.jsonl") as recorder:
        manager_of(recorder, *specs)
    again = build_manager(only(tmp_path / "out.jsonl")["config"])
    assert tuple(group.spec for group in again.config.groups) == specs
