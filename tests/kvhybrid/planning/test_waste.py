"""The waste of a uniform cache: the figures of Jenga (arXiv 2503.18292), from numbers of layers alone."""

from __future__ import annotations

import pytest

from kvhybrid.planning.waste import uniform_waste
from kvhybrid.specs import CrossAttentionSpec, FullAttentionSpec, KVCacheSpec, MambaSpec, SlidingWindowSpec

K = 1024
FULL = FullAttentionSpec(block_size=16, num_kv_heads=8, head_size=128)
CROSS = CrossAttentionSpec(block_size=16, num_kv_heads=8, head_size=128)


def window(tokens: int) -> KVCacheSpec:
    return SlidingWindowSpec(block_size=16, num_kv_heads=8, head_size=128, window=tokens)


def test_llama_3_2_vision_keeps_text_and_image_in_every_layer() -> None:
    """32 layers read 43 tokens of text, 8 read 6,193 of an image."""
    waste = uniform_waste([FULL] * 32 + [CROSS] * 8, 43, encoder_tokens=6193)
    assert waste == pytest.approx(1 - (32 * 43 + 8 * 6193) / (40 * 6236))
    assert f"{waste:.1%}" == "79.6%"


def test_ministral_keeps_128k_tokens_where_27_of_36_layers_read_32k() -> None:
    assert uniform_waste([window(32 * K)] * 27 + [FULL] * 9, 128 * K) == 0.5625


def test_gemma_2_keeps_8k_tokens_where_half_of_the_layers_read_4k() -> None:
    assert uniform_waste([window(4 * K)] * 21 + [FULL] * 21, 8 * K) == 0.25


def test_a_request_within_the_window_wastes_nothing() -> None:
    assert uniform_waste([window(4 * K), FULL], 4 * K) == 0
    assert uniform_waste([window(4 * K), FULL], 4 * K + 1) > 0


def test_a_layer_counts_by_its_bytes_and_a_state_wastes_nothing() -> None:
    wide = FullAttentionSpec(block_size=16, num_kv_heads=24, head_size=128)
    assert uniform_waste([window(K)], 2 * K) == 0.5
    assert uniform_waste([window(K), wide], 2 * K) == 0.125
    state = MambaSpec(block_size=16, shapes=((8, 4),), dtypes=("float32",))
    assert uniform_waste([state], 2 * K) == 0
