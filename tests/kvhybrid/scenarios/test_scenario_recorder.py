"""A recording of a manager's calls, played again, gives the same answers."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kvhybrid.cache.blocks import KVCacheBlocks
from kvhybrid.cache.config import KVCacheConfig, KVCacheGroup
from kvhybrid.cache.manager import KVCacheManager
from kvhybrid.cache.request import MediaItem, Request, RequestStatus
from kvhybrid.scenarios.check import check
from kvhybrid.scenarios.config import build_manager
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


def manager_of(*specs: Any, num_blocks: int = 60, **options: Any) -> KVCacheManager:
    groups = tuple(KVCacheGroup(f"g{g}", spec) for g, spec in enumerate(specs))
    return KVCacheManager(KVCacheConfig(groups, num_blocks), max_model_len=200, **options)


@pytest.mark.parametrize("scenario", WITH_STEPS, ids=lambda scenario: scenario.id)
def test_recording_a_scenario_gives_it_back(scenario: Any, tmp_path: Path) -> None:
    manager = build_manager(scenario.content["config"])
    player = Player(manager)
    out = tmp_path / "out.jsonl"
    with Recorder(manager, out, id="again"):
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
    manager = manager_of(*specs, num_blocks=1 + 13 * len(specs), watermark=0.1, retention_interval=retention)
    out = tmp_path / "out.jsonl"
    with Recorder(manager, out):
        random_run(manager, rng)
    recorded = only(out)
    assert "note" not in recorded
    assert check(recorded) is None
    assert recorded["steps"][-1]["do"] == "state"


def test_a_run_with_preemptions_plays_again(tmp_path: Path) -> None:
    manager = manager_of(FullAttentionSpec(block_size=4), num_blocks=13)
    with Recorder(manager, tmp_path / "out.jsonl"):
        assert random_run(manager, random.Random(3)) > 0
    recorded = only(tmp_path / "out.jsonl")
    assert "preempt" in {step["do"] for step in recorded["steps"]}
    assert check(recorded) is None


def test_a_difference_shows(tmp_path: Path) -> None:
    manager = manager_of(FullAttentionSpec(block_size=4))
    with Recorder(manager, tmp_path / "out.jsonl"):
        random_run(manager, random.Random(1))
    recorded = json.loads((tmp_path / "out.jsonl").read_text())
    recorded["config"]["groups"][0]["block_size"] = 5
    assert check(recorded) is not None


def test_a_manager_is_untouched_before_and_after(tmp_path: Path) -> None:
    manager = manager_of(FullAttentionSpec(block_size=4))
    assert manager.recorder is None
    recorder = Recorder.attach(manager, tmp_path / "out.jsonl")
    assert manager.recorder is recorder
    recorder.close()
    assert manager.recorder is None


def test_one_recorder_at_a_time(tmp_path: Path) -> None:
    manager = manager_of(FullAttentionSpec(block_size=4))
    with Recorder(manager, tmp_path / "out.jsonl") as first:
        with pytest.raises(ValueError, match="another recorder"):
            Recorder.attach(manager, tmp_path / "second.jsonl")
        assert manager.recorder is first


def test_an_eviction_may_name_a_group_of_the_shared_pool(tmp_path: Path) -> None:
    manager = manager_of(FullAttentionSpec(block_size=4))
    with Recorder(manager, tmp_path / "out.jsonl"):
        request = Request("a", [1] * 8, hasher=manager.hasher)
        manager.allocate_slots(request, 8)
        manager.evict_blocks(manager.get_block_ids("a")[0], group=0)
    assert {"do": "evict", "blocks": [1, 2]} in only(tmp_path / "out.jsonl")["steps"]
    assert check(only(tmp_path / "out.jsonl")) is None


def test_prompts_are_not_written_down(tmp_path: Path) -> None:
    manager = manager_of(FullAttentionSpec(block_size=2))
    with Recorder(manager, tmp_path / "out.jsonl"):
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
    manager = manager_of(FullAttentionSpec(block_size=2))
    hits = []
    with Recorder(manager, tmp_path / "out.jsonl"):
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
    manager = manager_of(FullAttentionSpec(block_size=4))
    with Recorder(manager, tmp_path / "out.jsonl"):
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
    manager = manager_of(FullAttentionSpec(block_size=4))
    with Recorder(manager, tmp_path / "out.jsonl"):
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


def test_an_exception_in_the_run_still_leaves_the_file(tmp_path: Path) -> None:
    manager = manager_of(FullAttentionSpec(block_size=4))
    request = Request("a", range(9), hasher=manager.hasher)

    def run() -> None:
        with Recorder(manager, tmp_path / "out.jsonl"):
            manager.allocate_slots(request, 9)
            raise RuntimeError("out of luck")

    with pytest.raises(RuntimeError, match="out of luck"):
        run()
    assert check(only(tmp_path / "out.jsonl")) is None


def test_a_used_manager_is_refused(tmp_path: Path) -> None:
    manager = manager_of(FullAttentionSpec(block_size=4))
    manager.allocate_slots(Request("a", range(9), hasher=manager.hasher), 9)
    with pytest.raises(ValueError, match="before the cache manager's first request"):
        Recorder(manager, tmp_path / "out.jsonl")


def test_the_config_is_said_in_full(tmp_path: Path) -> None:
    options = {"max_in_flight_tokens": 12, "watermark": 0.25, "retention_interval": 8}
    manager = manager_of(SlidingWindowSpec(block_size=4, window=9), MambaSpec(block_size=8), **options)
    with Recorder(manager, tmp_path / "out.jsonl"):
        pass
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
    with Recorder(manager_of(*specs), tmp_path / "out.jsonl"):
        pass
    again = build_manager(only(tmp_path / "out.jsonl")["config"])
    assert tuple(group.spec for group in again.config.groups) == specs
