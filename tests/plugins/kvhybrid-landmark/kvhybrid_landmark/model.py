"""Gemma 3 whose window layers keep landmarks."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import nn

from kvhybrid.models.base import BackendChoice
from kvhybrid.models.config import count
from kvhybrid.models.gemma import Gemma3, Gemma3Config, GemmaLayer
from kvhybrid.models.layers.attention import Attention
from kvhybrid.models.layers.cached import dtype_name
from kvhybrid.specs import KVCacheSpec
from kvhybrid_landmark.backend import LandmarkVisibility
from kvhybrid_landmark.spec import LandmarkSpec


@dataclass(frozen=True, kw_only=True)
class LandmarkConfig(Gemma3Config):
    """Gemma 3's keys and two more."""

    landmark: int = count()
    stride: int = count()


class LandmarkAttention(Attention):
    """The layer of Gemma with another spec and another backend."""

    visibility: LandmarkVisibility

    def __init__(self, like: Attention, visibility: LandmarkVisibility, width: int) -> None:
        need = replace(like.need, visibility=visibility)
        super().__init__(need, width, backend="landmark", q_norm=like.q_norm, k_norm=like.k_norm)
        self.visibility = visibility

    def spec(self, block_size: int, dtype: torch.dtype) -> KVCacheSpec:
        assert self.visibility.window is not None
        return LandmarkSpec(
            block_size=block_size,
            num_kv_heads=self.need.num_kv_heads,
            head_size=self.need.head_size,
            dtype=dtype_name(dtype),
            window=self.visibility.window,
            landmark=self.visibility.landmark,
            stride=self.visibility.stride,
        )


class LandmarkLayer(GemmaLayer):
    def __init__(self, config: LandmarkConfig, index: int, backends: BackendChoice) -> None:
        super().__init__(config, index, backends)
        window = self.self_attn.need.visibility.window
        if window is not None:
            seen = LandmarkVisibility(window=window, landmark=config.landmark, stride=config.stride)
            self.self_attn = LandmarkAttention(self.self_attn, seen, config.hidden_size)


class LandmarkGemma(Gemma3):
    """Gemma 3 with landmarks."""

    config: LandmarkConfig
    config_class = LandmarkConfig
    layer_class: type[nn.Module] = LandmarkLayer
