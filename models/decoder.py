"""What the decoder families share: cached layers behind an embedding, and a head that may be tied to it."""

from __future__ import annotations

from collections.abc import Mapping
from math import lcm

import torch
from torch import Tensor, nn

from kvhybrid.models.base import HybridModel, LayerCache
from kvhybrid.models.layers.attention import Attention
from kvhybrid.models.layers.cached import bind_cache, cached_layers
from kvhybrid.models.layers.shared_attention import SharedAttention
from kvhybrid.specs import KVCacheSpec


class Decoder(HybridModel):
    """A family sets `embed_tokens`, `lm_head` (None where it is tied) and its layers."""

    embed_tokens: nn.Embedding
    lm_head: nn.Linear | None

    def attention_page_multiple(self) -> int:
        """The tokens of which every attention block must be a multiple, for the backends in use."""
        kinds = (Attention, SharedAttention)
        return lcm(*(layer.backend.page_multiple for layer in self.modules() if isinstance(layer, kinds)))

    def layer_specs(self, block_size: int, dtype: torch.dtype) -> dict[str, KVCacheSpec]:
        return {name: layer.spec(block_size, dtype) for name, layer in cached_layers(self).items()}

    def bind_cache(self, caches: Mapping[str, LayerCache]) -> None:
        bind_cache(self, caches)

    def logits(self, x_RM: Tensor) -> Tensor:
        """``logits_RV`` of normed hidden states."""
        head = self.embed_tokens if self.lm_head is None else self.lm_head
        return nn.functional.linear(x_RM, head.weight)
