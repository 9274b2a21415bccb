"""Pages: the bytes of one block of one layer, and arguments that a spec refuses."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest

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
    SuffixSpec,
)
from kvhybrid.specs.dtypes import BYTES, dtype_bytes

ATTENTION: list[tuple[type[AttentionSpec], dict[str, Any]]] = [
    (FullAttentionSpec, {}),
    (SlidingWindowSpec, {"window": 8}),
    (ChunkedLocalAttentionSpec, {"chunk": 8}),
    (CrossAttentionSpec, {}),
]


@pytest.mark.parametrize(("kind", "more"), ATTENTION)
def test_an_attention_page_is_heads_times_tokens_times_both_heads_sizes(
    kind: type[AttentionSpec], more: dict[str, Any]
) -> None:
    spec = kind(block_size=16, num_kv_heads=8, head_size=128, dtype="bfloat16", **more)
    assert spec.page_bytes == 8 * 16 * (128 + 128) * 2 == 65_536
    assert [part.name for part in spec.page_parts()] == ["k", "v"]
    assert replace(spec, head_size_v=64).page_bytes == 8 * 16 * (128 + 64) * 2
    assert replace(spec, dtype="float8_e4m3fn").page_bytes == 32_768


def test_a_value_head_of_size_zero_takes_no_bytes() -> None:
    assert FullAttentionSpec(block_size=4, head_size=8, head_size_v=0).page_bytes == 4 * 8 * 2


def test_a_state_page_does_not_grow_with_its_block() -> None:
    spec = MambaSpec(block_size=16, shapes=((8192, 3), (8192, 16)), dtypes=("bfloat16", "bfloat16"))
    assert spec.page_bytes == replace(spec, block_size=1024).page_bytes == 311_296


def test_a_state_may_mix_dtypes_and_names_its_parts() -> None:
    spec = MambaSpec(block_size=4, shapes=((6, 3), (6, 2)), dtypes=("bfloat16", "float32"))
    assert spec.page_bytes == 6 * 3 * 2 + 6 * 2 * 4
    assert [part.name for part in spec.page_parts()] == ["state0", "state1"]
    assert replace(spec, names=("conv", "ssm")).page_parts() == (
        PagePart("conv", (6, 3), "bfloat16"),
        PagePart("ssm", (6, 2), "float32"),
    )


@pytest.mark.parametrize("cls", [MambaSpec, PrivateStateSpec])
@pytest.mark.parametrize("wrong", [{"dtypes": ("float32", "float32")}, {"names": ("a", "b")}, {"shapes": ()}])
def test_a_state_needs_as_many_shapes_as_dtypes_and_names(cls: type[MambaSpec], wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=rf"{cls.__name__}: \d shapes, \d dtypes and \d names"):
        cls(block_size=4, **wrong)


def test_padding_replaces_the_page_size_and_leaves_the_parts() -> None:
    spec = FullAttentionSpec(block_size=16)
    padded = replace(spec, padded_page_bytes=100)
    assert (padded.page_bytes, padded.unpadded_page_bytes) == (100, spec.page_bytes)
    assert padded.page_parts() == spec.page_parts()
    assert replace(spec, padded_page_bytes=spec.page_bytes).page_bytes == spec.page_bytes


@pytest.mark.parametrize("spec", [FullAttentionSpec(block_size=16), MambaSpec(block_size=1, shapes=((16,),))])
def test_padding_cannot_be_less_than_the_page(spec: KVCacheSpec) -> None:
    with pytest.raises(ValueError, match=r"padded_page_bytes 63 is less than the 64 bytes"):
        replace(spec, padded_page_bytes=63)


@pytest.mark.parametrize(("kind", "more"), [*ATTENTION, (MambaSpec, {}), (PrivateStateSpec, {})])
@pytest.mark.parametrize("size", [0, -16])
def test_a_block_has_at_least_one_token(kind: type[KVCacheSpec], more: dict[str, Any], size: int) -> None:
    with pytest.raises(ValueError, match=f"{kind.__name__}: block_size must be at least 1, found {size}"):
        kind(block_size=size, **more)


def test_a_window_and_a_chunk_have_at_least_one_token() -> None:
    with pytest.raises(ValueError, match="window must be at least 1, found 0"):
        SlidingWindowSpec(block_size=4, window=0)
    with pytest.raises(ValueError, match="chunk must be at least 1, found -1"):
        ChunkedLocalAttentionSpec(block_size=4, chunk=-1)


def test_an_unknown_dtype_is_named_with_those_accepted() -> None:
    with pytest.raises(ValueError, match="unknown dtype 'int7'; accepted: float32, bfloat16"):
        _ = FullAttentionSpec(block_size=4, dtype="int7").page_bytes


def test_dtypes_have_torch_s_names_and_sizes() -> None:
    import torch

    for name in BYTES:
        assert dtype_bytes(name) == getattr(torch, name).itemsize


def test_specs_are_values() -> None:
    spec = SlidingWindowSpec(block_size=4, window=8)
    assert spec == SlidingWindowSpec(block_size=4, window=8)
    assert len({spec, SlidingWindowSpec(block_size=4, window=8), replace(spec, window=9)}) == 2
    with pytest.raises(FrozenInstanceError):
        spec.window = 9  # type: ignore[misc]


def test_a_spec_without_answers_says_so() -> None:
    with pytest.raises(NotImplementedError):
        KVCacheSpec(block_size=4).live(1)
    with pytest.raises(NotImplementedError):
        KVCacheSpec(block_size=4).page_parts()
    with pytest.raises(NotImplementedError):
        SuffixSpec(block_size=4).live(1)
