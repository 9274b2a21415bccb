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
    """Where one cache group stores the batch's tokens."""

    block_size: int
    block_table_SN: Tensor
    """int64; row s lists the blocks of sequence s, with 0 (the null block) for blocks that are not kept."""
    slot_mapping_T: Tensor
    """int64; block · block_size + offset of every token in the batch: the slot that it is written to. Empty for a
    group of encoder tokens in a `ForwardBatch`, which only reads them."""


@dataclass(frozen=True)
class ForwardBatch:
    """One ragged batch: the new tokens of several sequences, concatenated."""

    token_ids_T: Tensor
    positions_T: Tensor
    query_starts: tuple[int, ...]
    """S + 1 offsets into the T tokens: sequence s is [query_starts[s], query_starts[s + 1])."""
    context_lens: tuple[int, ...]
    """Tokens of each sequence that were computed before this batch."""
    logit_rows: Tensor
    """Indices into the T tokens: those whose logits are computed."""
    group_of_layer: Mapping[str, GroupBatch]
    """For every layer that has a spec, the cache group that it belongs to."""
    encoder_lens: tuple[int, ...] = ()
    """Encoder tokens of each sequence; empty for a model without an encoder."""

    @property
    def num_seqs(self) -> int:
        return len(self.context_lens)


@dataclass(frozen=True)
class EncoderInput:
    """The validated encoder input of one request."""

    content: Tensor
    num_tokens: int
    """Tokens that the encoder outputs for it."""


@dataclass(frozen=True)
class EncoderBatch:
    """Encoder inputs of the sequences whose encoder tokens are not in the cache yet."""

    inputs: tuple[EncoderInput, ...]
    group_of_layer: Mapping[str, GroupBatch]
    """The group of every layer that reads the encoder. Its slot mapping covers the concatenated encoder tokens."""


@dataclass(frozen=True)
class BackendChoice:
    """Registered names of the kernel backends that a model's layers run on.

    ``auto`` picks, per layer, the fastest backend that is installed and supports it; see
    `kvhybrid.models.backends.auto`.
    """

    attention: str = "torch"
    cross: str = "torch"
    gated_delta: str = "torch"
    mamba: str = "torch"


LayerCache = dict[str, Tensor]
"""A layer's views of the byte pool: one tensor per page part, by name, each ``[P, *part.shape]``."""


class HybridModel(nn.Module):
    """A model whose layers may have different kinds of cache.

    A family is one file: its config, its per-layer specs, the names of its weights, and its forward pass.
    """

    vocab_size: int
    max_model_len: int
    learned_positions: bool = False
    """Positions have a learned embedding of `max_model_len` rows, which is a hard limit on the length."""
    max_encoder_tokens: int = 0
    """Maximum number of encoder tokens of a request; 0 for a model without an encoder."""
    page_multiple: int = 1
    """The block size of every attention layer must be a multiple of this many tokens, for its backend."""

    @classmethod
    def from_config(cls, config: Mapping[str, Any], backends: BackendChoice | None = None) -> HybridModel:
        """Build the model, with uninitialized weights, from the dict of a Hugging Face ``config.json``.

        Raises ValueError if a backend cannot do what a layer needs; the message names both.
        """
        raise NotImplementedError

    def map_weights(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Convert the weights of a checkpoint to the names and layout of this model's parameters.

        Loading then refuses weights that are missing, unexpected or of the wrong shape.
        """
        raise NotImplementedError

    def layer_specs(self, block_size: int, dtype: torch.dtype) -> dict[str, KVCacheSpec]:
        """The spec of every layer that has a cache. Layers that read another layer's cache are not listed."""
        raise NotImplementedError

    def bind_cache(self, caches: Mapping[str, LayerCache]) -> None:
        """Give each layer its views of the byte pool. They never change afterwards."""
        raise NotImplementedError

    def forward(self, batch: ForwardBatch) -> Tensor:
        """Write the batch's tokens into the cache and return ``logits_RV`` for ``batch.logit_rows``."""
        raise NotImplementedError

    def read_encoder_input(self, found: Any) -> EncoderInput:
        """Validate the encoder input of one request.

        Raises ValueError with what was found and what is accepted.
        """
        raise NotImplementedError

    def encode(self, batch: EncoderBatch) -> None:
        """Run the encoder and write the keys and values for the decoder's layers into the cache.

        Called before the first `ForwardBatch` that contains the sequence.
        """
        raise NotImplementedError
