"""The parts that encoder-decoder families share: an encoder, and decoder layers that read its output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from kvhybrid.models.base import EncoderBatch, EncoderInput
from kvhybrid.models.decoder import Decoder
from kvhybrid.models.layers.cross_attention import CrossAttention


class EncoderDecoder(Decoder):
    """A `Decoder` with an encoder. A family also sets `max_encoder_tokens` and `encoder`, and validates encoder
    inputs."""

    encoder: nn.Module
    """Maps the content of one input to ``states_TM`` in the encoder's width."""

    @torch.no_grad()
    def encode(self, batch: EncoderBatch) -> None:
        # One input at a time: their lengths differ, and a step rarely admits many.
        states_TM = torch.cat([self.encoder(given.content) for given in batch.inputs])
        for layer in self.modules():
            if isinstance(layer, CrossAttention):
                layer.write(states_TM, batch.group_of_layer[layer.name])


def token_input(found: Any, vocab_size: int) -> EncoderInput:
    """An encoder input from a list of token ids below ``vocab_size``. Raises ValueError for anything else."""
    accepted = f"a list of token ids in [0, {vocab_size})"
    if not isinstance(found, Sequence) or isinstance(found, str) or not len(found):
        what = "an empty list" if isinstance(found, Sequence) and not len(found) else type(found).__name__
        raise ValueError(f"encoder_input must be {accepted}, found {what}")
    try:
        tokens = [int(token) for token in found]
    except (TypeError, ValueError):
        raise ValueError(f"encoder_input must be {accepted}, found {found[0]!r} among them") from None
    if not 0 <= min(tokens) <= max(tokens) < vocab_size:
        raise ValueError(f"encoder_input must be {accepted}, found {min(tokens)} to {max(tokens)}")
    return EncoderInput(torch.tensor(tokens), len(tokens))
