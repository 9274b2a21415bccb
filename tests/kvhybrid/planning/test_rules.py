"""The rules for what observation cannot tell apart, each tried on real models.

The proof of what is live: change it in the cache of a real model and the next token's logits change; change what a
plan calls dead, and they do not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor

from kvhybrid.planning import PlanningError
from kvhybrid.planning.observed import observe
from kvhybrid.planning.rules import CONV, CacheOptions, layer_specs
from kvhybrid.specs import FullAttentionSpec, KVCacheSpec, MambaSpec, MLAAttentionSpec, SlidingWindowSpec
from tests.kvhybrid.planning.tiny_models import FULL, HYBRIDS, WINDOW, tiny_config, tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")

NUM_TOKENS = 13
TRIES = 10
SHORT = (
    "bamba",
    "flint",
    "gpt_oss",
    "jamba",
    "lfm2",
    "llama4_text",
    "mimo_v2_flash",
    "modernbert-decoder",
    "zamba2",
)
HIDDEN_CACHE = ("minimax", "recurrent_gemma")
"""Their states lie outside of the layers of the cache, and have no part that is dead."""
ALL = [
    pytest.param(name, marks=() if name in SHORT else pytest.mark.long)
    for name in HYBRIDS
    if name not in HIDDEN_CACHE
]


def specs_of(model_type: str, options: CacheOptions | None = None, **extra: Any) -> dict[str, KVCacheSpec]:
    config = tiny_config(model_type, {**HYBRIDS.get(model_type, {}), **extra})
    return layer_specs(observe(config.to_dict()), options or CacheOptions())


def kept(cache: Any, specs: Mapping[str, KVCacheSpec], *, live: bool) -> Iterator[Tensor]:
    """Views of what the layers keep: of every tensor the first entry that is live, or all that are dead."""
    for index, layer in enumerate(cache.layers):
        spec = specs.get(f"layer{index}")
        if getattr(layer, "keys", None) is not None and spec is not None:
            first = NUM_TOKENS - layer.keys.shape[-2]
            start = max(spec.live(NUM_TOKENS)[0].start - first, 0)
            for part in (layer.keys, layer.values):
                yield part[..., start : start + 1, :] if live else part[..., :start, :]
        state = specs.get(f"layer{index}.state", spec)
        for number, conv in getattr(layer, "conv_states", {}).items():
            if conv is not None and state is not None:
                (needed,) = [part.shape[-1] for part in state.page_parts() if part.name == f"{CONV}.{number}"]
                start = conv.shape[-1] - needed
                yield conv[..., start : start + 1] if live else conv[..., :start]


@pytest.mark.parametrize("model_type", ALL)
def test_only_what_a_plan_counts_is_read_again(model_type: str) -> None:
    config = tiny_config(model_type, HYBRIDS[model_type])
    specs = layer_specs(observe(config.to_dict(), "float32"), CacheOptions())
    model = tiny_model(config)
    with torch.no_grad():
        cache = model(input_ids=torch.arange(3, 3 + NUM_TOKENS)[None], use_cache=True).cache

        def next_logits(change: Callable[[Any], Iterable[Tensor]]) -> Tensor:
            changed = deepcopy(cache)
            for view in change(changed):
                view.copy_(torch.randn_like(view))
            logits: Tensor = model(input_ids=torch.tensor([[7]]), use_cache=True, cache=changed).logits
            return logits

        same = next_logits(lambda changed: ())
        assert torch.equal(next_logits(lambda changed: kept(changed, specs, live=False)), same)
        for number in range(len(list(kept(cache, specs, live=True)))):

            def one(changed: Any, number: int = number) -> list[Tensor]:
                return [list(kept(changed, specs, live=True))[number]]

            # A key that attention gives no weight may stay without any: several are tried.
            assert any(not torch.equal(next_logits(one), same) for _ in range(TRIES)), f"part {number} is not read"


def test_a_chunk_is_told_from_a_window_by_its_layer_type() -> None:
    specs = specs_of("llama4_text")
    assert {name: spec.kind for name, spec in specs.items()} == {
        f"layer{i}": "full" if i % 4 == 3 else "chunked_local" for i in range(8)
    }
    assert specs["layer0"].live(13) == (range(12, 13),)


def test_a_window_counts_the_token_itself_as_the_mask_does() -> None:
    assert specs_of("mimo_v2_flash", sliding_window=9)["layer1"].live(20) == (range(12, 20),)


@pytest.mark.parametrize("model_type", ["deepseek_v32", "kimi_linear"])
def test_latents_are_one_vector_a_token_on_every_rank(model_type: str) -> None:
    for tp in (1, 8):
        options = CacheOptions(tp=tp, block_size=32)
        specs = specs_of(model_type, options if model_type == "deepseek_v32" else CacheOptions(block_size=32))
        latents = [spec for name, spec in specs.items() if spec.prefix and not name.endswith(".indexer")]
        rope = 8 if model_type == "deepseek_v32" else 64
        assert set(latents) == {MLAAttentionSpec(block_size=32, head_size=24 + rope)}


def test_an_indexer_keeps_its_keys_beside_the_layer() -> None:
    specs = specs_of("deepseek_v32")
    assert list(specs)[:4] == ["layer0", "layer0.indexer", "layer1", "layer1.indexer"]
    assert specs["layer0.indexer"] == MLAAttentionSpec(block_size=16, head_size=128)


def test_a_layer_that_keeps_tokens_and_a_state_has_both() -> None:
    specs = specs_of("falcon_h1")
    assert list(specs)[:2] == ["layer0", "layer0.state"]
    assert (specs["layer0"].kind, specs["layer0.state"].kind) == ("full", "mamba")


def test_layers_that_keep_nothing_or_read_anothers_cache_have_no_spec() -> None:
    assert list(specs_of("gemma3n_text")) == [f"layer{i}" for i in range(5)]
    assert len(specs_of("nemotron_h")) == 2, "of 4 layers, the others are experts"


def test_one_input_less_than_a_convolution_is_wide() -> None:
    needed, stored = specs_of("jamba")["layer0"], specs_of("jamba", CacheOptions(all_stored=True))["layer0"]
    assert [part.shape for part in needed.page_parts()] == [(64, 3), (64, 16)]
    assert [part.shape for part in stored.page_parts()] == [(64, 4), (64, 16)]
    assert needed.page_parts()[0].name.startswith(CONV)


def test_dtypes_of_tokens_and_of_states_are_chosen_apart() -> None:
    specs = specs_of("jamba", CacheOptions(kv_dtype="float8_e4m3fn", state_dtype="bfloat16"))
    assert {part.dtype for part in specs["layer4"].page_parts()} == {"float8_e4m3fn"}
    assert {part.dtype for part in specs["layer0"].page_parts()} == {"bfloat16"}
    by_default = specs_of("jamba")["layer0"]
    assert [part.dtype for part in by_default.page_parts()] == ["bfloat16", "float32"]


def test_ranks_share_heads_and_channels() -> None:
    specs = specs_of("jamba", CacheOptions(tp=2))
    assert specs["layer4"] == FullAttentionSpec(block_size=16, num_kv_heads=1, head_size=8)
    assert [part.shape for part in specs["layer0"].page_parts()] == [(32, 3), (32, 16)]


def test_more_ranks_than_heads_hold_copies() -> None:
    specs = specs_of("gpt_oss", CacheOptions(tp=8))
    assert {spec.page_parts()[0].shape for spec in specs.values()} == {(16, 1, 16)}


def test_every_rank_holds_a_group_of_a_mamba2_layer() -> None:
    """64 channels, and keys and queries of 1 group of 8: the channels are halved, the group is not."""
    whole, half = (specs_of("bamba", CacheOptions(tp=tp))["layer0"] for tp in (1, 2))
    assert [part.shape for part in whole.page_parts()] == [(64 + 16, 3), (8, 8, 8)]
    assert [part.shape for part in half.page_parts()] == [(32 + 16, 3), (4, 8, 8)]


@pytest.mark.parametrize(
    ("model_type", "tp", "expected"),
    [
        ("qwen3", 3, r"tp=3: layer 0 has 2 key-value heads; accepted: a divisor or a multiple of 2"),
        ("jamba", 3, r"tp=3: conv_states.0 of layer 0 has 64 channels or heads; accepted: a divisor"),
    ],
)
def test_ranks_that_cannot_share_are_refused(model_type: str, tp: int, expected: str) -> None:
    with pytest.raises(PlanningError, match=expected):
        specs_of(model_type, CacheOptions(tp=tp))


def test_a_model_that_mixes_by_its_config_is_planned_layer_by_layer() -> None:
    specs = specs_of("olmo3", layer_types=[WINDOW, FULL, FULL, WINDOW, FULL, FULL, FULL, FULL])
    kinds = {True: SlidingWindowSpec, False: FullAttentionSpec}
    assert [type(spec) for spec in specs.values()] == [kinds[i in (0, 3)] for i in range(8)]


def test_states_of_a_cache_of_another_class_are_found() -> None:
    assert isinstance(specs_of("minimax")["layer1"], MambaSpec)
    assert isinstance(specs_of("recurrent_gemma")["layer0"], MambaSpec)
