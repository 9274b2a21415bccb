"""Memory layouts: what they make of layers and memory, and how many requests then run at once."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from kvhybrid.cache.manager import KVCacheManager
from kvhybrid.cache.request import Request
from kvhybrid.planning import CachePlan, PlanningError, longest_planned, plan_cache
from kvhybrid.planning.capacity import requests_at_once
from kvhybrid.planning.layouts import layouts
from kvhybrid.planning.layouts.static import StaticLayout
from kvhybrid.planning.memory_meter import MemoryMeter
from kvhybrid.scheduling.scheduler import Scheduler
from kvhybrid.specs import FullAttentionSpec, KVCacheSpec, MambaSpec, SlidingWindowSpec

LAYOUTS = tuple(layouts.names())
BLOCK = 16


def gemma() -> dict[str, KVCacheSpec]:
    """12 layers, of which every sixth is full attention."""
    full = FullAttentionSpec(block_size=BLOCK, num_kv_heads=2, head_size=8)
    window = SlidingWindowSpec(block_size=BLOCK, num_kv_heads=2, head_size=8, window=64)
    return {f"layer{i}": window if i % 6 else full for i in range(12)}


def jamba() -> dict[str, KVCacheSpec]:
    """4 attention and 28 Mamba layers, with states of 84 / 7 attention pages."""
    full = FullAttentionSpec(block_size=BLOCK, num_kv_heads=8, head_size=128)
    state = MambaSpec(block_size=BLOCK, shapes=((12, full.page_bytes // 4),), dtypes=("float32",))
    return {f"layer{i}": state if i % 8 else full for i in range(32)}


MODELS = {"gemma": gemma, "jamba": jamba}


def planned(layers: Mapping[str, KVCacheSpec], layout: str, requests: float, length: int) -> CachePlan:
    """A plan with memory for ``requests`` requests of ``length`` tokens."""
    least = plan_cache(
        layers,
        memory_bytes=1 << 40,
        max_model_len=length,
        max_in_flight_tokens=4 * length,
        most_requests=4,
        layout=layout,
    )
    return plan_cache(
        layers,
        memory_bytes=int(least.memory_bytes * requests / 4),
        max_model_len=length,
        max_in_flight_tokens=4 * length,
        layout=layout,
    )


def test_padded_groups_layers_and_the_others_keep_a_kind_together() -> None:
    sizes = {
        layout: [(len(g.layers), g.spec.kind) for g in planned(gemma(), layout, 4, 256).config.groups]
        for layout in LAYOUTS
    }
    assert sizes["padded"] == [(2, "full"), *[(2, "sliding_window")] * 5]
    assert sizes["lcm"] == sizes["static"] == [(2, "full"), (10, "sliding_window")]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_memory_that_is_given_is_used_but_for_less_than_one_block_of_each_kind(layout: str, model: str) -> None:
    plan = planned(MODELS[model](), layout, 3.3, 512)
    memory = plan.memory_bytes + 12345
    again = plan_cache(
        MODELS[model](), memory_bytes=memory, max_model_len=512, max_in_flight_tokens=2048, layout=layout
    )
    step = sum(plan.block_bytes) if layout == "static" else again.memory_bytes // again.num_blocks
    assert memory - step < again.memory_bytes <= memory


@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_two_layers_share_a_byte_and_padding_is_what_none_has(layout: str) -> None:
    plan = planned(gemma(), layout, 2, 256)
    used: set[tuple[int, int]] = set()
    for group in plan.config.groups if layout != "padded" else plan.config.groups[:1]:
        for layer in group.layers:
            place, spec = plan.division.places[layer], plan.layer_specs[layer]
            mine = {(place.tensor, byte) for byte in range(place.offset, place.offset + spec.page_bytes)}
            assert place.offset + spec.page_bytes <= place.stride
            if layout == "lcm":  # kinds may share bytes, but never at one time
                mine = {(place.stride, byte) for _, byte in mine}
            assert not used & mine
            used |= mine
    if layout == "padded":
        assert len(used) == plan.bytes_per_block
    else:
        assert len(used) == sum(plan.block_bytes)
        assert plan.padding_bytes_per_block == (0, 0)


def test_the_large_page_of_jamba_is_84_small_pages() -> None:
    """Of 16 tokens of its 4 attention layers; with pages of the largest size they would have 1,344 tokens."""
    plan = planned(jamba(), "lcm", 2, 1024)
    small = plan.block_bytes[0]
    assert plan.memory_bytes // plan.num_blocks == 84 * small
    assert plan.block_bytes[1] // small * BLOCK == 1344


def test_a_number_of_blocks_means_the_memory_of_the_padded_layout() -> None:
    options = {"num_blocks": 300, "max_model_len": 256, "max_in_flight_tokens": 256}
    padded, static, lcm = (plan_cache(gemma(), **options, layout=name) for name in ("padded", "static", "lcm"))  # type: ignore[arg-type]
    assert padded.memory_bytes == 300 * padded.bytes_per_block
    assert padded.memory_bytes - sum(static.block_bytes) < static.memory_bytes <= padded.memory_bytes
    assert lcm.memory_bytes <= padded.memory_bytes


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_as_many_requests_run_at_once_as_planned(layout: str, model: str) -> None:
    """Requests of the maximum length, all of whose tokens are computed in one step, until one waits."""
    length = 256
    plan = planned(MODELS[model](), layout, 3.9, length)
    cache = KVCacheManager(
        plan.config, max_model_len=length, max_in_flight_tokens=plan.max_in_flight_tokens, enable_caching=False
    )
    scheduler = Scheduler(cache, max_batched_tokens=16 * length, max_num_seqs=16)
    for number in range(12):
        tokens = list(range(1000 * number, 1000 * number + length - 2))
        scheduler.add_request(Request(f"request{number}", tokens, max_new_tokens=2))
    at_once = requests_at_once(plan, length)
    output = scheduler.schedule()
    if model == "gemma":
        assert len(output.admitted) == at_once
    else:  # such a step writes one of the two states that a request holds later
        assert at_once <= len(output.admitted) <= 2 * at_once
    assert scheduler.waiting
    while True:
        samples = [item.request.request_id for item in output.scheduled if item.samples]
        scheduler.update_from_output(output, dict.fromkeys(samples, 7))
        if not scheduler.has_unfinished:
            break
        output = scheduler.schedule()
        assert not output.preempted or model == "jamba"
    assert cache.usage == 0


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_does_not_fit_is_refused_with_the_length_that_does(layout: str) -> None:
    plan = planned(gemma(), layout, 2, 256)
    memory = plan.memory_bytes
    options = {"memory_bytes": memory, "max_in_flight_tokens": 1024, "layout": layout}
    with pytest.raises(
        PlanningError, match=r"one request of 2048 tokens needs .*\n.*Lower max_model_len to (\d+)"
    ) as e:
        plan_cache(gemma(), max_model_len=2048, **options)  # type: ignore[arg-type]
    shorter = int(str(e.value).split("max_model_len to ")[1].split()[0])
    assert shorter == longest_planned(gemma(), max_model_len=2048, **options)  # type: ignore[arg-type]
    plan_cache(gemma(), max_model_len=shorter, **options)  # type: ignore[arg-type]
    with pytest.raises(PlanningError):
        plan_cache(gemma(), max_model_len=shorter + 1, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_memory_at_all_is_refused(layout: str) -> None:
    with pytest.raises(PlanningError, match="no memory for the cache: 100 bytes"):
        plan_cache(gemma(), memory_bytes=100, max_model_len=8, max_in_flight_tokens=8, layout=layout)


def test_a_split_of_your_own_is_followed_and_a_wrong_one_refused() -> None:
    options = {"memory_bytes": 1 << 22, "max_model_len": 256, "max_in_flight_tokens": 256}
    plan = plan_cache(gemma(), **options, layout=StaticLayout(split={"full": 1, "sliding_window": 3}))  # type: ignore[arg-type]
    full, window = (
        rows * size
        for rows, size in zip(plan.config.pools.num_blocks, plan.block_bytes, strict=True)  # type: ignore[union-attr]
    )
    assert window / full == pytest.approx(3, rel=0.02)
    with pytest.raises(PlanningError, match=r"one share for each of full, sliding_window, found full"):
        plan_cache(gemma(), **options, layout=StaticLayout(split={"full": 1}))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"layout.split: the share of full must be above 0, found -1"):
        StaticLayout(split={"full": -1})


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_meter_turns_blocks_into_bytes(layout: str) -> None:
    plan = planned(gemma(), layout, 4, 256)
    cache = KVCacheManager(plan.config, max_model_len=256, max_in_flight_tokens=1024)
    meter = MemoryMeter(plan)
    request = Request("a", list(range(100)), hasher=cache.hasher)
    assert cache.allocate_slots(request, 100) is not None
    metrics = meter.add(cache.stats())
    blocks = [len(ids) for ids in cache.get_block_ids("a")]
    assert metrics["memory/held"] == plan.request_bytes(blocks)
    padding, unused = (
        sum(value for name, value in metrics.items() if name.endswith(end)) for end in ("padding", "unused")
    )
    assert (padding == 0) == (plan.padding_layers == 0)
    assert (unused == 0) == (layout == "padded")
    assert metrics["memory/waste"] == (padding + unused) / (metrics["memory/held"] + unused)
    assert meter.figures() == {
        "memory/mean_waste": metrics["memory/waste"],
        "memory/most_held": metrics["memory/held"],
    }
