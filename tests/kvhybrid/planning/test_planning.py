"""Planning: layers to groups, groups to one page size, memory to a number of blocks."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvhybrid.cache.config import KVCacheConfig, KVCacheGroup
from kvhybrid.planning import CachePlan, PlanningError, plan_cache, request_blocks
from kvhybrid.specs import (
    AttentionSpec,
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    PagePart,
    PrivateStateSpec,
    SlidingWindowSpec,
)

GIB = 1 << 30
IN_FLIGHT = 16_384

Layers = dict[str, KVCacheSpec]


def interleave(count: int, every: int, rare: KVCacheSpec, common: KVCacheSpec, at: int = -1) -> Layers:
    """``count`` layers of which the one at index ``at`` of every ``every`` is ``rare``."""
    return {f"layer.{i}": rare if i % every == at % every else common for i in range(count)}


def full(heads: int = 8, size: int = 128, block: int = 16) -> FullAttentionSpec:
    return FullAttentionSpec(block_size=block, num_kv_heads=heads, head_size=size)


def window(width: int, heads: int = 8, size: int = 128, block: int = 16) -> SlidingWindowSpec:
    return SlidingWindowSpec(block_size=block, num_kv_heads=heads, head_size=size, window=width)


# Jamba-1.5-Mini: 8,192 channels; a conv state of width 4 - 1 in BF16 and an SSM state of 16 in BF16.
JAMBA_STATE = MambaSpec(block_size=16, shapes=((8192, 3), (8192, 16)), dtypes=("bfloat16", "bfloat16"))

LLAMA_3_8B: Layers = {f"layer.{i}": full() for i in range(32)}
GEMMA_3_27B = interleave(62, 6, full(16), window(1024, 16))
GEMMA_2_9B = interleave(42, 2, full(8, 256), window(4096, 8, 256))
JAMBA_MINI = interleave(32, 8, full(), JAMBA_STATE, at=4)
GPT_OSS_20B = interleave(24, 2, full(8, 64), window(128, 8, 64))
LLAMA_4_SCOUT = interleave(
    48, 4, full(), ChunkedLocalAttentionSpec(block_size=16, num_kv_heads=8, head_size=128, chunk=8192)
)


def plan(layers: Layers, length: int = 131_072, memory: int = 40 * GIB) -> CachePlan:
    return plan_cache(layers, memory_bytes=memory, max_model_len=length, max_in_flight_tokens=IN_FLIGHT)


def sizes(result: CachePlan) -> dict[str, int]:
    return {group.name: len(group.layers) for group in result.config.groups}


class TestModels:
    """Known models at 40 GiB, BF16, 16,384 tokens in flight."""

    def test_llama_3_1_8b_is_one_group(self) -> None:
        result = plan(LLAMA_3_8B)
        assert sizes(result) == {"full": 32}
        assert result.page_bytes == 65_536
        assert result.bytes_per_block == 2_097_152
        assert result.num_blocks == 20_480
        assert result.capacity_tokens == 327_680
        assert result.blocks_per_request == (8192,)
        assert result.concurrency == 2.5
        assert result.padding_share == 0

    def test_llama_3_1_8b_on_what_80_gib_leave(self) -> None:
        result = plan(LLAMA_3_8B, memory=55_910 << 20)
        assert result.num_blocks == 27_955
        assert result.capacity_tokens == 447_280 == result.num_blocks * 16
        assert round(result.concurrency, 2) == 3.41
        assert result.memory_bytes == 55_910 << 20

    def test_gemma_3_27b_pads_eight_layers(self) -> None:
        result = plan(GEMMA_3_27B)
        windows = {f"sliding_window.{i}": 9 if i < 4 else 8 for i in range(6)}
        assert sizes(result) == {**windows, "full": 10}
        assert result.bytes_per_block == 1_310_720
        assert result.num_blocks == 32_768
        assert result.blocks_per_request == (*[1089] * 6, 8192)
        assert round(result.concurrency, 3) == 2.225
        assert result.padding_layers == 8
        assert result.padding_bytes_per_block == (*[131_072] * 4, *[262_144] * 2, 0)
        assert round(100 * result.padding_share, 1) == 11.4

    def test_gemma_2_9b_holds_no_more_window_blocks_than_the_request_has(self) -> None:
        result = plan(GEMMA_2_9B, 8192)
        assert sizes(result) == {"sliding_window": 21, "full": 21}
        assert result.bytes_per_block == 2_752_512
        assert result.num_blocks == 15_603
        # 8,192 tokens lie in 512 blocks. The looser bound, one block above, would give 15.22.
        assert result.blocks_per_request == (512, 512)
        assert round(result.num_blocks / (513 + 512), 2) == 15.22
        assert round(result.concurrency, 2) == 15.24
        assert result.capacity_tokens == 124_824

    def test_jamba_mini_raises_the_attention_block_until_a_state_fits(self) -> None:
        result = plan(JAMBA_MINI, 262_144)
        assert JAMBA_STATE.page_bytes == 311_296
        assert sizes(result) == {**{f"mamba.{i}": 4 for i in range(7)}, "full": 4}
        assert set(result.config.block_sizes) == {80}
        assert result.page_bytes == 327_680
        assert result.bytes_per_block == 1_310_720
        assert result.num_blocks == 32_768
        assert result.blocks_per_request == (*[2] * 7, 3277)
        assert round(result.concurrency, 3) == 9.957
        assert result.padding_layers == 0
        assert result.padding_bytes_per_block == (*[4 * 16_384] * 7, 0)
        assert result.padding_share == 0.04375

    def test_gpt_oss_20b(self) -> None:
        result = plan(GPT_OSS_20B)
        assert sizes(result) == {"sliding_window": 12, "full": 12}
        assert result.bytes_per_block == 393_216
        assert result.num_blocks == 109_226
        assert result.blocks_per_request == (1033, 8192)
        assert round(result.concurrency, 2) == 11.84

    def test_llama_4_scout(self) -> None:
        result = plan(LLAMA_4_SCOUT)
        assert sizes(result) == {**{f"chunked_local.{i}": 12 for i in range(3)}, "full": 12}
        assert result.bytes_per_block == 786_432
        assert result.num_blocks == 54_613
        assert result.blocks_per_request == (*[1536] * 3, 8192)
        assert round(result.concurrency, 3) == 4.267


class TestGroups:
    def small(self, layers: Layers, **options: object) -> CachePlan:
        return plan_cache(layers, num_blocks=4096, max_model_len=1024, max_in_flight_tokens=64, **options)  # type: ignore[arg-type]

    def of_sizes(self, fulls: int, windows: int) -> list[int]:
        layers: Layers = {f"full.{i}": full() for i in range(fulls)}
        layers.update({f"window.{i}": window(64) for i in range(windows)})
        return [len(group.layers) for group in self.small(layers).config.groups]

    def test_the_smallest_bucket_sets_the_group_size(self) -> None:
        assert self.of_sizes(20, 30) == [20, 15, 15]

    def test_the_largest_does_where_it_is_less_than_half_as_large_again(self) -> None:
        assert self.of_sizes(20, 29) == [20, 29]

    def test_a_bucket_is_dealt_out_by_stride(self) -> None:
        layers = interleave(6, 3, full(), window(64))
        groups = self.small(layers).config.groups
        assert [group.layers for group in groups] == [
            ("layer.0", "layer.3"),
            ("layer.1", "layer.4"),
            ("layer.2", "layer.5"),
        ]

    def test_names_have_an_index_only_where_a_kind_has_several_groups(self) -> None:
        layers: Layers = {"a": window(64), "b": full(), "c": window(128)}
        assert list(sizes(self.small(layers))) == ["sliding_window.0", "full", "sliding_window.1"]

    def test_a_draft_layer_marks_its_group(self) -> None:
        layers = {**interleave(6, 2, full(), window(64)), "draft": window(64)}
        groups = self.small(layers, draft_layers=["draft"]).config.groups
        assert {group.name: group.draft for group in groups} == {"sliding_window": True, "full": False}

    def test_full_attention_with_several_head_counts_is_one_group_without_padding(self) -> None:
        result = self.small({"a": full(4), "b": full(8), "c": full(4)})
        (group,) = result.config.groups
        assert group.layers == ("a", "b", "c")
        assert result.tensor_page_bytes == (32_768, 65_536, 32_768)
        assert result.bytes_per_block == 131_072
        assert result.padding_bytes_per_block == (0,)
        assert result.layer_specs["a"].page_bytes == 32_768

    def test_full_attention_with_several_block_sizes_is_not_uniform(self) -> None:
        result = self.small({"a": full(4, block=16), "b": full(8, block=32)})
        assert {layer: spec.block_size for layer, spec in result.layer_specs.items()} == {"a": 64, "b": 32}
        assert len(result.config.groups) == 2


class TestPages:
    def small(self, layers: Layers, **options: object) -> CachePlan:
        return plan_cache(layers, num_blocks=4096, max_model_len=1024, max_in_flight_tokens=64, **options)  # type: ignore[arg-type]

    def test_half_the_heads_give_twice_the_tokens(self) -> None:
        result = self.small({"a": full(4), "b": window(64, 2)})
        assert result.config.block_sizes == (16, 32)
        assert result.padding_share == 0

    def test_a_page_that_does_not_divide_the_largest_is_padded(self) -> None:
        result = self.small({"a": full(3), "b": window(64, 2)})
        assert result.config.block_sizes == (16, 16)
        assert result.config.groups[1].spec.padded_page_bytes == result.page_bytes == full(3).page_bytes
        assert result.padding_bytes_per_block == (0, full(1).page_bytes)

    def test_a_state_that_fits_takes_the_attention_block_as_it_is(self) -> None:
        state = MambaSpec(block_size=4, shapes=((10,),))
        result = self.small({"a": full(block=8), "b": state})
        assert result.config.block_sizes == (8, 8)
        assert result.page_bytes == full(block=8).page_bytes

    def test_the_raised_block_is_the_smallest_multiple_that_the_kernel_takes(self) -> None:
        token_bytes = full(1, 64, 1).page_bytes
        state = MambaSpec(block_size=16, shapes=((token_bytes // 4, 100),))
        for multiple, expected in ((1, 100), (16, 112), (256, 256)):
            result = self.small({"a": full(1, 64), "b": state}, page_multiple=multiple)
            assert result.config.block_sizes == (expected, expected)

    def test_every_token_group_is_raised_for_a_state(self) -> None:
        state = MambaSpec(block_size=16, shapes=((full().page_bytes, 1),))
        result = self.small({"a": full(8), "b": window(64, 4), "c": state})
        assert result.config.block_sizes == (64, 128, 64)
        assert result.padding_share == 0

    def test_a_block_is_never_made_smaller_for_a_state(self) -> None:
        state = MambaSpec(block_size=16, shapes=((full(1).page_bytes, 1),))
        result = self.small({"a": full(3), "b": window(64, 1, block=40), "c": state})
        assert result.config.block_sizes == (32, 80, 32)
        assert result.layer_specs["b"].padded_page_bytes == full(3, block=32).page_bytes

    def test_states_alone_are_padded_to_the_largest(self) -> None:
        result = self.small(
            {"a": MambaSpec(block_size=16, shapes=((10,),)), "b": MambaSpec(block_size=16, shapes=((30,),))}
        )
        assert result.padding_bytes_per_block == (80, 0)

    def test_a_private_state_has_one_block_for_the_whole_request(self) -> None:
        private = PrivateStateSpec(block_size=16, shapes=((10,),))
        result = self.small({"a": full(), "b": private})
        assert result.config.block_sizes == (16, 1024)
        assert result.blocks_per_request == (64, 1)
        assert self.small({"b": private}).blocks_per_request == (1,)

    def test_context_parallel_ranks_share_the_tokens_of_an_attention_block(self) -> None:
        result = self.small({"a": full(), "b": MambaSpec(block_size=16)}, context_parallel=4)
        assert result.config.block_sizes == (64, 16)
        assert result.blocks_per_request == (16, 2)

    def test_an_encoder_group_is_sized_by_the_encoder(self) -> None:
        layers: Layers = {"a": full(), "b": CrossAttentionSpec(block_size=16, num_kv_heads=8, head_size=128)}
        assert self.small(layers).blocks_per_request == (64, 64)
        assert self.small(layers, max_encoder_tokens=1500).blocks_per_request == (64, 94)

    def test_a_spec_from_elsewhere_is_planned_by_what_it_declares(self) -> None:
        @dataclass(frozen=True, kw_only=True)
        class SinkWindow(AttentionSpec):
            def live(self, p: int) -> tuple[range, ...]:
                return range(min(4, p)), range(max(min(4, p), p - 31), p)

        result = self.small({"a": full(4), "b": SinkWindow(block_size=16, num_kv_heads=2, head_size=128)})
        assert list(sizes(result)) == ["full", "SinkWindow"]
        assert result.config.block_sizes == (16, 32)
        # A block of sinks, and 31 read and 64 written tokens that touch at most four blocks of 32.
        assert result.blocks_per_request == (64, 5)

    def test_the_block_that_is_padded_is_the_scaled_one(self) -> None:
        result = self.small({"a": full(5), "b": window(64, 2)})
        assert result.config.block_sizes == (16, 32)
        assert result.padding_bytes_per_block == (0, full(1).page_bytes)

    def test_pages_that_nearly_divide_cost_little(self) -> None:
        """Bytes a head and token: 256 values of int8 and a scale of four bytes, 512 and a scale."""
        windows = SlidingWindowSpec(block_size=16, window=1024, num_kv_heads=16, head_size=260, dtype="int8")
        fulls = FullAttentionSpec(block_size=16, num_kv_heads=4, head_size=516, dtype="int8")
        layers: Layers = {str(i): fulls if i % 6 == 5 else windows for i in range(60)}
        result = plan_cache(layers, memory_bytes=20 * GIB, max_model_len=131_072, max_in_flight_tokens=2048)
        assert result.config.groups[-1].spec.block_size == 32
        assert int(result.concurrency * 131_072) == 417_767, "230,896 with blocks of 16 tokens padded to twice"

    def test_a_page_with_a_fixed_part_holds_as_many_tokens_as_fit_beside_it(self) -> None:
        @dataclass(frozen=True, kw_only=True)
        class Scaled(FullAttentionSpec):
            def page_parts(self) -> tuple[PagePart, ...]:
                return PagePart("scale", (64,), "uint8"), PagePart("k", (self.block_size, 12), "uint8")

        wide = window(64, 1, 16)
        result = self.small({"a": wide, "b": Scaled(block_size=16)})
        assert result.config.block_sizes == (16, 80)
        assert result.padding_bytes_per_block == (0, wide.page_bytes - 64 - 80 * 12)


SPECS = st.one_of(
    st.builds(full, st.integers(1, 6), st.just(8), st.sampled_from([4, 16])),
    st.builds(window, st.integers(1, 40), st.integers(1, 6), st.just(8), st.sampled_from([4, 16])),
    st.builds(MambaSpec, block_size=st.sampled_from([4, 16]), shapes=st.tuples(st.tuples(st.integers(1, 2000)))),
    st.builds(PrivateStateSpec, block_size=st.just(16), shapes=st.tuples(st.tuples(st.integers(1, 2000)))),
)


@settings(deadline=None)
@given(st.lists(SPECS, min_size=1, max_size=8), st.integers(1, 300), st.integers(1, 64))
def test_every_plan_holds_together(specs: list[KVCacheSpec], length: int, in_flight: int) -> None:
    layers = {f"layer.{i}": spec for i, spec in enumerate(specs)}
    result = plan_cache(layers, num_blocks=10_000, max_model_len=length, max_in_flight_tokens=in_flight)
    groups = result.config.groups
    assert sorted(layer for group in groups for layer in group.layers) == sorted(layers)
    assert len({group.name for group in groups}) == len(groups)
    assert len(result.tensor_page_bytes) == max(len(group.layers) for group in groups)
    for group in groups:
        for layer, tensor_bytes in zip(group.layers, result.tensor_page_bytes, strict=False):
            assert result.layer_specs[layer].page_bytes == tensor_bytes
            assert len(groups) == 1 or result.layer_specs[layer] == group.spec
    assert all(0 <= waste < result.bytes_per_block for waste in result.padding_bytes_per_block)
    by_memory = plan_cache(
        layers, memory_bytes=result.memory_bytes, max_model_len=length, max_in_flight_tokens=in_flight
    )
    assert by_memory == result


class TestErrors:
    def test_a_request_that_lacks_the_null_block_does_not_fit(self) -> None:
        with pytest.raises(PlanningError, match=r"131072 tokens needs 8192 blocks.*\n.*to 131056 \(estimated\)"):
            plan(LLAMA_3_8B, memory=16 * GIB)

    def test_one_block_more_passes(self) -> None:
        result = plan_cache(LLAMA_3_8B, num_blocks=8193, max_model_len=131_072, max_in_flight_tokens=IN_FLIGHT)
        assert result.memory_bytes == 16 * GIB + 2_097_152

    def test_half_the_memory_holds_half_the_length(self) -> None:
        with pytest.raises(PlanningError, match=r"to 65520 \(estimated\), or give the cache 17181966336 bytes"):
            plan(LLAMA_3_8B, memory=8 * GIB)

    @pytest.mark.parametrize("layers", [GEMMA_3_27B, JAMBA_MINI, GPT_OSS_20B, LLAMA_4_SCOUT])
    def test_the_estimate_is_the_longest_length_that_passes(self, layers: Layers) -> None:
        memory = 8 * GIB
        with pytest.raises(PlanningError, match="estimated") as error:
            plan(layers, 1 << 21, memory)
        estimate = int(str(error.value).partition("max_model_len to ")[2].split()[0])
        assert plan(layers, estimate, memory).max_model_len == estimate
        with pytest.raises(PlanningError):
            plan(layers, estimate + 1, memory)

    def test_the_memory_that_the_error_names_is_enough_and_no_less_is(self) -> None:
        with pytest.raises(PlanningError) as error:
            plan(GEMMA_3_27B, memory=GIB)
        named = int(str(error.value).partition("give the cache ")[2].split()[0])
        assert plan(GEMMA_3_27B, memory=named).num_blocks == 6 * 1089 + 8192 + 1
        with pytest.raises(PlanningError):
            plan(GEMMA_3_27B, memory=named - 1)

    def test_no_length_fits(self) -> None:
        layers = interleave(8, 8, full(), JAMBA_STATE)
        with pytest.raises(PlanningError, match="No shorter request fits"):
            plan_cache(layers, num_blocks=3, max_model_len=100, max_in_flight_tokens=16)

    @pytest.mark.parametrize("memory", [-1, 0, 2_097_152, 2 * 2_097_152 - 1])
    def test_nothing_is_left_beside_the_null_block(self, memory: int) -> None:
        with pytest.raises(PlanningError, match=f"no memory for the cache.*{memory} bytes.*takes 2097152 bytes"):
            plan(LLAMA_3_8B, memory=memory)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"memory_bytes": GIB}, "exactly one"),
            ({"num_blocks": None}, "exactly one"),
            ({"num_blocks": 1}, "no memory for the cache.*num_blocks = 1"),
            ({"max_model_len": 0}, "max_model_len must be at least 1, found 0"),
            ({"max_in_flight_tokens": 0}, "max_in_flight_tokens must be at least 1"),
            ({"page_multiple": 0}, "page_multiple must be at least 1"),
            ({"context_parallel": 0}, "context_parallel must be at least 1"),
            ({"max_encoder_tokens": 0}, "max_encoder_tokens must be at least 1"),
            ({"draft_layers": ["eagle"]}, "draft_layers names layers without a spec: eagle"),
        ],
    )
    def test_arguments_that_make_no_sense(self, options: dict[str, object], message: str) -> None:
        good = {"num_blocks": 100, "max_model_len": 64, "max_in_flight_tokens": 16}
        with pytest.raises(PlanningError, match=message):
            plan_cache({"a": full()}, **{**good, **options})  # type: ignore[arg-type]

    def test_a_model_without_caches(self) -> None:
        with pytest.raises(PlanningError, match="no layer keeps a cache"):
            plan({})

    def test_a_planning_error_is_a_value_error(self) -> None:
        assert issubclass(PlanningError, ValueError)


def test_the_hash_unit_reaches_the_config() -> None:
    layers: Layers = {"a": full(4), "b": window(64, 2)}
    config = plan_cache(layers, num_blocks=1000, max_model_len=64, max_in_flight_tokens=16).config
    assert config.hash_unit == 16
    config = plan_cache(
        layers, num_blocks=1000, max_model_len=64, max_in_flight_tokens=16, hash_block_size=4
    ).config
    assert config.hash_unit == 4


def test_request_blocks_is_what_each_spec_answers_for_its_block_size_over_all_ranks() -> None:
    spec = window(100)
    config = KVCacheConfig((KVCacheGroup("w", spec), KVCacheGroup("f", full())), 1000, context_parallel=2)
    assert request_blocks(config, 1000, 50) == (
        replace(spec, block_size=32).admission_blocks(50, 1000),
        full(block=32).admission_blocks(50, 1000),
    )
