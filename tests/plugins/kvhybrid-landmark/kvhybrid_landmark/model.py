"""Gemma 3 whose window layers keep landmarks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from kvhybrid.models.backends.base import AttentionNeed
from kvhybrid.models.base import BackendChoice
from kvhybrid.models.gemma import SLIDING, Gemma, GemmaConfig
from kvhybrid.models.layers.attention import Attention
from kvhybrid.models.layers.cached import dtype_name
from kvhybrid.specs import KVCacheSpec
from kvhybrid_landmark.backend import LandmarkVisibility
from kvhybrid_landmark.spec import LandmarkSpec


class LandmarkAttention(Attention):
    """The layer of Gemma with another spec and another backend."""

    visibility: LandmarkVisibility

    def __init__(self, like: Attention, visibility: LandmarkVisibility, width: int) -> None:
        need: AttentionNeed = replace(like.need, visibility=visibility)
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


class LandmarkGemma(Gemma):
    """Reads Gemma 3's config with two more keys, ``landmark`` and ``stride``."""

    model_types = ("landmark_gemma",)

    def __init__(self, config: GemmaConfig, backends: BackendChoice, landmark: int, stride: int) -> None:
        super().__init__(config, backends)
        visibility = LandmarkVisibility(window=config.window, landmark=landmark, stride=stride)
        for layer in self.gemma_layers():
            if layer.kind == SLIDING:
                layer.self_attn = LandmarkAttention(layer.self_attn, visibility, config.width)

    @classmethod
    def from_config(cls, config: Mapping[str, Any], backends: BackendChoice | None = None) -> LandmarkGemma:
        return cls(GemmaConfig.read(config), backends or BackendChoice(), config["landmark"], config["stride"])
