"""The contract of this folder: a model family, and the ragged batch that its forward pass takes.

Shape suffixes, here and in every file below:
T tokens of the batch, S sequences, N entries of a block table, P pool blocks, B tokens per block,
H query heads, K key/value heads, D head size, M model width, F feed-forward width, V vocabulary,
C channels of a recurrent layer, W conv width, R recurrent state size, E experts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from kvhybrid.specs import KVCacheSpec


@dataclass(frozen=True)
class GroupBatch:
    """Where one cache group keeps the batch's tokens."""

    block_size: int
    block_table_SN: Tensor
    """int64; row s lists the blocks of sequence s, 0 (the null block) where nothing is kept."""
    slot_mapping_T: Tensor
    """int64; block · block_size + offset of every token in the batch. Token groups write here. Empty for a group
    of encoder tokens in a `ForwardBatch`, which only reads them."""


@dataclass(frozen=True)
class ForwardBatch:
    """One ragged batch: the new tokens of several sequences, end to end."""

    token_ids_T: Tensor
    positions_T: Tensor
    query_starts: tuple[int, ...]
    """S + 1 offsets into the T tokens: sequence s is [query_starts[s], query_starts[s + 1])."""
    context_lens: tuple[int, ...]
    """Tokens of each sequence that were computed before this batch."""
    logit_rows: Tensor
    """Rows of the T tokens whose logits are wanted."""
    group_of_layer: Mapping[str, GroupBatch]
    """For every layer that has a spec, the group that its cache belongs to."""
    encoder_lens: tuple[int, ...] = ()
    """Encoder tokens of each sequence; empty for a model without an encoder."""

    @property
    def num_seqs(self) -> int:
        return len(self.context_lens)


@dataclass(frozen=True)
class EncoderInput:
    """What the encoder reads for one request, checked."""

    content: Tensor
    num_tokens: int
    """Encoder tokens that the decoder reads."""


@dataclass(frozen=True)
class EncoderBatch:
    """The inputs of the sequences whose encoder tokens are not in the cache yet."""

    inputs: tuple[EncoderInput, ...]
    group_of_layer: Mapping[str, GroupBatch]
    """For every layer that reads the encoder, its group. Tokens are those of the encoder, end to end."""


@dataclass(frozen=True)
class BackendChoice:
    """Which kernel backends a model's layers run on, by the names they are registered under.

    ``auto`` takes, layer by layer, the fastest that is installed and fits; see `kvhybrid.models.backends.auto`.
    """

    attention: str = "torch"
    cross: str = "torch"
    gated_delta: str = "torch"
    mamba: str = "torch"


LayerCache = dict[str, Tensor]
"""A layer's part of the byte pool: one tensor per page part, by name, each ``[P, *part.shape]``."""


class HybridModel(nn.Module):
    """A model whose layers keep different things.

    A family is one file: config to per-layer specs, the weights' names, and the forward pass.
    """

    vocab_size: int
    max_model_len: int
    learned_positions: bool = False
    """Positions are looked up in a table of `max_model_len` rows, so that nothing can be longer."""
    max_encoder_tokens: int = 0
    """Most encoder tokens of a request; 0 for a model without an encoder."""
    page_multiple: int = 1
    """Tokens: the block size of every attention layer must be a multiple; its backend needs that."""

    @classmethod
    def from_config(cls, config: Mapping[str, Any], backends: BackendChoice | None = None) -> HybridModel:
        """Build the model, its weights not yet filled, from the dict of a Hugging Face ``config.json``.

        A backend that cannot do what a layer needs raises ValueError with both names.
        """
        raise NotImplementedError

    def map_weights(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The weights of a checkpoint under the names of this model's parameters, and in their layout.

        Loading refuses what is missing, left over or of another shape.
        """
        raise NotImplementedError

    def layer_specs(self, block_size: int, dtype: torch.dtype) -> dict[str, KVCacheSpec]:
        """What every layer keeps. A layer that reuses another's cache is not listed."""
        raise NotImplementedError

    def bind_cache(self, caches: Mapping[str, LayerCache]) -> None:
        """Take the layers' views of the byte pool; they stay the same for the model's life."""
        raise NotImplementedError

    def forward(self, batch: ForwardBatch) -> Tensor:
        """Write the batch's tokens into the cache and return ``logits_RV`` for ``batch.logit_rows``."""
        raise NotImplementedError

    def read_encoder_input(self, found: Any) -> EncoderInput:
        """Check what the encoder is to read for one request. ValueError says what was found and is accepted."""
        raise NotImplementedError

    def encode(self, batch: EncoderBatch) -> None:
        """Run the encoder and write what the decoder's layers read of it into the cache.

        A sequence's decoder tokens come in a `ForwardBatch` only after that.
        """
        raise NotImplementedError
