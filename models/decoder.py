"""The parts that all decoder families share: everything around their layers.

A family defines its config, its layer and the mapping of its checkpoint's weights; `Decoder` does the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import lcm
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from kvhybrid.models.base import BackendChoice, ForwardBatch, HybridModel, LayerCache
from kvhybrid.models.decoder_config import DecoderConfig
from kvhybrid.models.layers.attention import Attention
from kvhybrid.models.layers.cached import bind_cache, cached_layers
from kvhybrid.models.layers.norm import RMSNorm
from kvhybrid.models.layers.plans import Plans
from kvhybrid.models.layers.rope import Rotation
from kvhybrid.models.layers.shared_attention import SharedAttention
from kvhybrid.specs import KVCacheSpec

PREFIXES = ("model.", "language_model.", "decoder.")
"""Prefixes of a text model's weight names in checkpoints; a name may have several."""


class Decoder(HybridModel):
    """Embedding, layers, final norm, and an output head that may be tied to the embedding.

    A family sets the class variables. Its layers are called with hidden states ``x_TM``, the `Plans` of the batch,
    and the layer's `Rotation` or None; they return ``x_TM``.
    """

    config_class: ClassVar[type[DecoderConfig]]
    layer_class: ClassVar[type[nn.Module]]
    """Constructed with the config, the layer's index and a `BackendChoice`."""
    norm_class: ClassVar[type[nn.Module]] = RMSNorm
    embedding_class: ClassVar[type[nn.Embedding]] = nn.Embedding
    other_parts: ClassVar[tuple[str, ...]] = ()
    """Prefixes of weights that belong to other parts of a multimodal checkpoint; these are dropped."""

    def __init__(self, config: DecoderConfig, backends: BackendChoice) -> None:
        super().__init__()
        self.config = config
        self.vocab_size = config.vocab_size
        self.max_model_len = config.max_position_embeddings
        self.ropes = tuple(config.ropes)
        self.add_inputs()
        self.layers = nn.ModuleList(
            self.layer_class(config, index, backends) for index in range(config.num_hidden_layers)
        )
        self.norm = self.norm_class(config.hidden_size, config.rms_norm_eps)
        self.lm_head = None if config.tie_word_embeddings else self._new_head()
        attention = [layer for layer in self.modules() if isinstance(layer, (Attention, SharedAttention))]
        self.page_multiple = lcm(*(layer.backend.page_multiple for layer in attention))

    @classmethod
    def from_config(cls, config: Mapping[str, Any], backends: BackendChoice | None = None) -> Decoder:
        return cls(cls.config_class.read(config), backends or BackendChoice())

    def add_inputs(self) -> None:
        """Create the modules that compute the first layer's input: the embedding and any that a family adds."""
        self.embed_tokens = self.embedding_class(self.config.vocab_size, self.config.hidden_size)

    def _new_head(self) -> nn.Linear:
        return nn.Linear(self.config.hidden_size, self.config.vocab_size, bias=False)

    def map_weights(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Strips prefixes, drops the weights of other parts, and passes the rest to `arrange`.

        If the config ties the head to the embedding but ``weights`` has a different head, the model gets a
        separate head.
        """
        text = {_without_prefixes(name): weight for name, weight in weights.items()}
        ours = self.arrange({name: text[name] for name in text if not name.startswith(self.other_parts)})
        if self.lm_head is None and (head := ours.pop("lm_head.weight", None)) is not None:
            embedding = ours.setdefault("embed_tokens.weight", head)
            if head.shape != embedding.shape or not torch.equal(head, embedding.to(head)):
                ours["lm_head.weight"] = head
                self.lm_head = self._new_head()
        return ours

    def arrange(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """Rename the text model's weights to this family's modules and convert their layout."""
        return weights

    def layer_specs(self, block_size: int, dtype: torch.dtype) -> dict[str, KVCacheSpec]:
        return {name: layer.spec(block_size, dtype) for name, layer in cached_layers(self).items()}

    def bind_cache(self, caches: Mapping[str, LayerCache]) -> None:
        bind_cache(self, caches)

    @torch.no_grad()
    def forward(self, batch: ForwardBatch) -> Tensor:
        x_TM = self.embed(batch)
        return self.logits(self.norm(self.run_layers(x_TM, batch)))

    def embed(self, batch: ForwardBatch) -> Tensor:
        """The first layer's input, ``x_TM``."""
        x_TM: Tensor = self.embed_tokens(batch.token_ids_T)
        return x_TM

    def run_layers(self, x_TM: Tensor, batch: ForwardBatch) -> Tensor:
        """The last layer's output in the rows ``batch.logit_rows``, ``x_RM``."""
        plans = Plans(batch)
        for layer, rotation in zip(self.layers, self.rotations(batch, x_TM.dtype), strict=True):
            x_TM = layer(x_TM, plans, rotation)
        return x_TM[batch.logit_rows]

    def rotations(self, batch: ForwardBatch, dtype: torch.dtype) -> list[Rotation | None]:
        """The rotation tables of every layer; equal ropes share one table."""
        made = {rope: rope.rotation(batch.positions_T, dtype) for rope in {*self.ropes} if rope is not None}
        return [None if rope is None else made[rope] for rope in self.ropes]

    def logits(self, x_RM: Tensor) -> Tensor:
        """The logits of normalized hidden states, ``logits_RV``."""
        head = self.embed_tokens if self.lm_head is None else self.lm_head
        logits_RV = nn.functional.linear(x_RM, head.weight)
        cap = self.config.final_logit_softcapping
        return logits_RV if cap is None else torch.tanh(logits_RV / cap) * cap


def _without_prefixes(name: str) -> str:
    while (prefix := next(filter(name.startswith, PREFIXES), None)) is not None:
        name = name.removeprefix(prefix)
    return name
