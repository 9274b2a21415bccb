"""Layers without a model: the groups that planning makes of them, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from kvhybrid.planning import plan_cache
from kvhybrid.replay.layers import CacheSettings, LayerSettings

CONF = Path(__file__).resolve().parents[3] / "conf" / "cache"

GROUPS = {
    "llama": {"full": 1},
    "gemma3_27b": {"full": 1, "sliding_window": 6},
    "jamba_mini": {"full": 1, "mamba": 7},
    "llama4_scout": {"full": 1, "chunked_local": 3},
    "gpt_oss": {"full": 1, "sliding_window": 1},
    "custom": {},
    "hf": {},
}


def settings_of(choice: str) -> CacheSettings:
    content = yaml.safe_load((CONF / f"{choice}.yaml").read_text())
    return CacheSettings(layers=[LayerSettings(**layer) for layer in content["layers"]])


def test_every_choice_is_tested() -> None:
    assert {place.stem for place in CONF.glob("*.yaml")} == set(GROUPS)


@pytest.mark.parametrize("choice", [choice for choice in GROUPS if GROUPS[choice]])
def test_a_choice_has_the_groups_of_its_model(choice: str) -> None:
    plan = plan_cache(
        settings_of(choice).layer_specs(512), num_blocks=10_000, max_model_len=100_000, max_in_flight_tokens=8192
    )
    kinds = [group.spec.kind for group in plan.config.groups]
    assert {kind: kinds.count(kind) for kind in kinds} == GROUPS[choice]
    assert set(plan.config.block_sizes) == {512}


@pytest.mark.parametrize(
    ("choice", "field", "value"),
    [("gemma3_27b", "window", 1024), ("llama4_scout", "chunk", 8192), ("gpt_oss", "window", 128)],
)
def test_a_choice_has_the_reach_of_its_model(choice: str, field: str, value: int) -> None:
    specs = set(settings_of(choice).layer_specs(16).values())
    assert {getattr(spec, field) for spec in specs if hasattr(spec, field)} == {value}


def test_a_list_in_a_field_is_taken_as_a_tuple() -> None:
    fields: dict[str, Any] = {"shapes": [[4, 2], [3]], "dtypes": ["float32", "bfloat16"]}
    (spec,) = CacheSettings(layers=[LayerSettings(spec="mamba", fields=fields)]).layer_specs(16).values()
    assert spec.page_bytes == 4 * 8 + 2 * 3


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        ({"spec": "fool"}, r"cache.layers\[0\].spec: unknown spec 'fool'; accepted: chunked_local, "),
        (
            {"spec": "full", "fields": {"windw": 3}},
            r"cache.layers\[0\].fields.windw: full has no such field; accepted: num_kv_heads, head_size, ",
        ),
        ({"spec": "full", "fields": {"block_size": 3}}, r"fields.block_size: full has no such field"),
        ({"spec": "sliding_window"}, r"cache.layers\[0\].fields: sliding_window needs window; accepted: "),
        (
            {"spec": "sliding_window", "fields": {"window": "wide"}},
            r"cache.layers\[0\].fields.window must be of type int, found 'wide'",
        ),
        ({"spec": "full", "fields": {"dtype": "int3"}}, r"cache.layers\[0\].fields: unknown dtype 'int3'"),
        ({"spec": "mamba", "fields": {"shapes": [["a"]]}}, r"cache.layers\[0\].fields: .*accepted: the fields of"),
    ],
)
def test_a_mistake_names_the_key_what_was_found_and_what_is_accepted(layer: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        CacheSettings(layers=[LayerSettings(**layer)]).layer_specs(16)


def test_a_cache_has_layers_and_a_count_is_at_least_one() -> None:
    with pytest.raises(ValueError, match=r"cache.layers must have an entry, .* found none"):
        CacheSettings().layer_specs(16)


def test_sizes_of_heads_are_required_where_they_matter() -> None:
    sizes = {"num_kv_heads": 8, "head_size": 64}
    full = LayerSettings(spec="full", count=2)
    window = LayerSettings(spec="sliding_window", fields={"window": 64})
    mamba = LayerSettings(spec="mamba", fields={"shapes": ((64, 16),), "dtypes": ("float32",)})
    lacking = r"cache.layers\[0\].fields: num_kv_heads, head_size must be given for {}; the defaults have size 1"
    CacheSettings(layers=[full, window]).layer_specs(16)
    with pytest.raises(ValueError, match=lacking.format("a pool in bytes")):
        CacheSettings(layers=[full, window]).layer_specs(16, in_bytes=True)
    with pytest.raises(ValueError, match=lacking.format("layers whose pages differ")):
        CacheSettings(layers=[full, mamba]).layer_specs(16)
    sized = LayerSettings(spec="full", count=2, fields=sizes)
    CacheSettings(layers=[sized, mamba]).layer_specs(16, in_bytes=True)
    with pytest.raises(ValueError, match=r"cache.layers: count must be at least 1, found 0"):
        LayerSettings(spec="full", count=0)
