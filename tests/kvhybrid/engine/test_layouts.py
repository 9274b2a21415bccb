"""Memory layouts in the engine: the same tokens, exactly the planned bytes, and room for every copy."""

from __future__ import annotations

import random

import pytest

from kvhybrid.engine.engine import Engine
from kvhybrid.models.base import HybridModel
from kvhybrid.settings.model import Gemma3Settings, JambaSettings

MODELS = {"gemma": Gemma3Settings, "jamba": JambaSettings}
LAYOUTS = ("padded", "static", "lcm")


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest) -> HybridModel:
    return MODELS[request.param]().build()


def prompts(seed: int, count: int) -> list[list[int]]:
    """Prompts that share prefixes of all lengths."""
    draw = random.Random(seed)
    shared = [draw.randrange(100) for _ in range(80)]
    return [
        shared[: draw.randrange(1, 80)] + [draw.randrange(100) for _ in range(draw.randrange(1, 40))]
        for _ in range(count)
    ]


def engine_of(model: HybridModel, layout: str, requests: int, **options: object) -> Engine:
    """An engine with memory for ``requests`` requests of the maximum length."""
    return Engine(
        model,
        max_model_len=144,
        max_batched_tokens=48,
        max_num_seqs=requests,
        layout=layout,
        **options,  # type: ignore[arg-type]
    )


def test_all_layouts_give_the_tokens_of_an_engine_without_a_cache(model: HybridModel) -> None:
    asked = prompts(1, 9)
    expected = engine_of(model, "padded", 9, enable_prefix_caching=False).generate(asked, 12)
    for layout in LAYOUTS:
        for options in ({"block_size": 16}, {"block_size": 16, "hash_block_size": 4}):
            engine = engine_of(model, layout, 3, **options)
            assert engine.pool.num_bytes == engine.plan.memory_bytes
            assert engine.generate(asked, 12) == expected, (layout, options)
            assert engine.generate(asked, 12) == expected, (layout, options)
            assert engine.stats().hit_rate > 0
            assert engine.stats().usage == 0


def test_requests_that_are_preempted_give_the_same_tokens(model: HybridModel) -> None:
    asked = prompts(2, 8)
    expected = engine_of(model, "padded", 8, enable_prefix_caching=False).generate(asked, 16)
    for layout in LAYOUTS:
        small = engine_of(model, layout, 2).plan.memory_bytes
        engine = Engine(
            model,
            max_model_len=144,
            max_batched_tokens=48,
            max_num_seqs=8,
            memory_bytes=small,
            layout=layout,
        )
        assert engine.generate(asked, 16) == expected, layout
        assert engine.stats().usage == 0


def test_with_room_for_everything_all_layouts_have_the_same_hits(model: HybridModel) -> None:
    """At equal block sizes: 48 tokens are enough for a state of the small Jamba in a padded page."""
    asked = prompts(3, 10)
    rates = []
    for layout in LAYOUTS:
        engine = engine_of(model, layout, 24, block_size=48)
        assert set(engine.plan.config.block_sizes) == {48}
        engine.generate(asked, 4)
        stats = engine.stats()
        rates.append((stats.hit_rate, sum(group.evictions for group in stats.groups)))
    assert rates[0][0] > 0
    assert rates == [rates[0]] * 3
    assert rates[0][1] == 0


def test_layers_of_a_kind_read_their_own_part_of_a_large_page(model: HybridModel) -> None:
    engine = engine_of(model, "lcm", 2)
    views = engine.pool.views()
    for number, parts in enumerate(views.values(), start=1):
        for part in parts.values():
            part[:] = number
    kinds = {group.name: group.layers for group in engine.plan.config.groups}
    for layers in kinds.values():
        for layer in layers:
            for part in views[layer].values():
                part[:] = list(views).index(layer) + 1
        for layer in layers:
            assert all((part == list(views).index(layer) + 1).all() for part in views[layer].values())
