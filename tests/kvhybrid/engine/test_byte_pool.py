"""The byte pool: its size, its views and its copies."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from kvhybrid.engine.byte_pool import BytePool
from kvhybrid.planning import CachePlan, plan_cache
from kvhybrid.specs import (
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    PagePart,
    SlidingWindowSpec,
    SuffixSpec,
)

FULL = FullAttentionSpec(block_size=4, num_kv_heads=2, head_size=8, head_size_v=4, dtype="bfloat16")
WINDOW = SlidingWindowSpec(block_size=4, num_kv_heads=2, head_size=4, dtype="bfloat16", window=8)
STATE = MambaSpec(block_size=4, shapes=((6, 3), (6, 5)), dtypes=("float32", "bfloat16"), names=("ssm", "conv"))


def plan_of(num_blocks: int = 7, **layers: KVCacheSpec) -> CachePlan:
    return plan_cache(layers, num_blocks=num_blocks, max_model_len=8, max_in_flight_tokens=8, page_multiple=1)


def hybrid() -> CachePlan:
    return plan_of(a0=FULL, m0=STATE, m1=STATE, w0=WINDOW, w1=WINDOW, a1=FULL)


def test_the_pool_takes_the_bytes_of_its_plan_and_no_more() -> None:
    plan = hybrid()
    pool = BytePool(plan)
    assert pool.num_bytes == plan.memory_bytes == plan.num_blocks * plan.bytes_per_block
    assert [tuple(tensor.shape) for tensor in pool.tensors] == [
        (plan.num_blocks, page_bytes) for page_bytes in plan.tensor_page_bytes
    ]


def test_a_view_has_the_shape_and_type_of_its_page_part() -> None:
    plan = hybrid()
    views = BytePool(plan).views()
    assert set(views) == {"a0", "m0", "m1", "a1", "w0", "w1"}
    for layer, cache in views.items():
        parts = plan.layer_specs[layer].page_parts()
        assert list(cache) == [part.name for part in parts]
        for part in parts:
            assert cache[part.name].shape == (plan.num_blocks, *part.shape)
            assert cache[part.name].dtype is getattr(torch, part.dtype)


def test_views_share_the_pool_and_the_parts_of_a_page_do_not_overlap() -> None:
    pool = BytePool(hybrid())
    for layer, cache in pool.views().items():
        for value, view in enumerate(cache.values(), start=1):
            view[3] = value
        for value, view in enumerate(cache.values(), start=1):
            assert bool((view[3] == value).all()), layer
            assert bool((view[2] == 0).all()), layer
            assert bool((view[4] == 0).all()), layer
        for tensor in pool.tensors:
            tensor.zero_()
        assert all(bool((view == 0).all()) for view in cache.values())


def test_layer_i_of_every_group_lies_in_tensor_i() -> None:
    plan = hybrid()
    pool = BytePool(plan)
    views = pool.views()
    for group in plan.config.groups:
        for index, layer in enumerate(group.layers):
            pages = pool.tensors[index]
            for view in views[layer].values():
                assert view.untyped_storage().data_ptr() == pages.untyped_storage().data_ptr()


def test_one_uniform_type_may_have_pages_of_several_sizes() -> None:
    wide = FullAttentionSpec(block_size=4, num_kv_heads=4, head_size=8, dtype="bfloat16")
    plan = plan_of(wide=wide, narrow=FULL)
    pool = BytePool(plan)
    assert len(set(plan.tensor_page_bytes)) == 2
    assert pool.num_bytes == plan.memory_bytes
    assert pool.views()["narrow"]["v"].shape == (plan.num_blocks, 4, 2, 4)


def test_a_copy_moves_the_pages_of_every_tensor() -> None:
    pool = BytePool(hybrid())
    for tensor in pool.tensors:
        tensor.copy_(torch.arange(tensor.shape[0], dtype=torch.uint8)[:, None].expand_as(tensor))
    pool.copy_blocks([(1, 5), (2, 6)])
    for tensor in pool.tensors:
        assert tensor[:, 0].tolist() == [0, 1, 2, 3, 4, 1, 2]
        assert bool((tensor == tensor[:, :1]).all())


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        ([(1, 2), (2, 3)], [0, 1, 1, 1, 4]),
        ([(2, 3), (1, 2)], [0, 1, 1, 2, 4]),
        ([(1, 3), (2, 3)], [0, 1, 2, 2, 4]),
        ([(1, 2), (1, 3), (3, 4)], [0, 1, 1, 1, 1]),
        ([], [0, 1, 2, 3, 4]),
    ],
)
def test_copies_run_in_order(pairs: list[tuple[int, int]], expected: list[int]) -> None:
    pool = BytePool(plan_of(num_blocks=5, a0=FULL))
    for tensor in pool.tensors:
        tensor.copy_(torch.arange(5, dtype=torch.uint8)[:, None].expand_as(tensor))
    pool.copy_blocks(pairs)
    assert pool.tensors[0][:, 0].tolist() == expected


@dataclass(frozen=True, kw_only=True)
class OddSpec(SuffixSpec):
    """Three bytes in front of float32 values: the second part cannot be read in place."""

    def first(self, p: int) -> int:
        return 0

    def page_parts(self) -> tuple[PagePart, ...]:
        return (PagePart("flags", (3,), "uint8"), PagePart("values", (2,), "float32"))


def test_a_part_that_is_not_aligned_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"OddSpec: page part 'values' .* starts at byte 3"):
        BytePool(plan_of(odd=OddSpec(block_size=4))).views()
