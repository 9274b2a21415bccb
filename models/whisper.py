"""Whisper: an audio encoder and a text decoder.

Source: Radford et al., Robust Speech Recognition via Large-Scale Weak Supervision (arXiv:2212.04356), and its
Hugging Face config.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from kvhybrid.models.backends.cross import CrossNeed
from kvhybrid.models.base import BackendChoice, EncoderInput, ForwardBatch
from kvhybrid.models.config import activation, count, flag
from kvhybrid.models.decoder_config import MOST_LAYERS, DecoderConfig
from kvhybrid.models.encoder_decoder import EncoderDecoder
from kvhybrid.models.layers.activation import Activation
from kvhybrid.models.layers.attention import Attention
from kvhybrid.models.layers.bidirectional import BidirectionalAttention, EncoderHeads
from kvhybrid.models.layers.cross_attention import CrossAttention
from kvhybrid.models.layers.plans import Plans

FRAMES_PER_TOKEN = 2
"""The second convolution's stride."""

RENAMED = {".out_proj.": ".o_proj.", ".fc1.": ".mlp.fc1.", ".fc2.": ".mlp.fc2.", "proj_out.": "lm_head."}
"""Parts of weight names in checkpoints, and their names here."""


@dataclass(frozen=True, kw_only=True)
class WhisperConfig(DecoderConfig):
    vocab_size: int = count(51_865)
    num_mel_bins: int = count(80)
    hidden_size: int = count(384, key="d_model")
    encoder_layers: int = count(4, most=MOST_LAYERS)
    encoder_attention_heads: int = count(6)
    encoder_ffn_dim: int = count(1536)
    max_source_positions: int = count(1500)
    """Encoder tokens of every input; the caller pads shorter audio with silence."""
    num_hidden_layers: int = count(4, key="decoder_layers")
    num_attention_heads: int = count(6, key="decoder_attention_heads")
    num_key_value_heads: None = None
    head_dim: None = None
    decoder_ffn_dim: int = count(1536)
    max_position_embeddings: int = count(448, key="max_target_positions")
    hidden_act: Activation = activation("gelu", key="activation_function")
    tie_word_embeddings: bool = flag(True)
    rms_norm_eps: float = 1e-5
    """Epsilon of all norms. Not read from the config."""

    def __post_init__(self) -> None:
        for part in ("encoder", "decoder"):
            heads = self.encoder_attention_heads if part == "encoder" else self.num_attention_heads
            if self.hidden_size % heads:
                raise ValueError(
                    f"d_model = {self.hidden_size} must be a multiple of {part}_attention_heads = {heads}"
                )
        super().__post_init__()

    @property
    def ropes(self) -> list[None]:
        """No rotation: positions are learned."""
        return [None] * self.num_hidden_layers


class FeedForward(nn.Module):
    """``fc2(act(fc1(x)))``, with biases."""

    def __init__(self, width: int, inner: int, act: Activation) -> None:
        super().__init__()
        self.act = act
        self.fc1 = nn.Linear(width, inner)
        self.fc2 = nn.Linear(inner, width)

    def forward(self, x_TM: Tensor) -> Tensor:
        out_TM: Tensor = self.fc2(self.act(self.fc1(x_TM)))
        return out_TM


class WhisperEncoderLayer(nn.Module):
    """Bidirectional attention and feed-forward layer, each after a norm."""

    def __init__(self, config: WhisperConfig) -> None:
        super().__init__()
        width, heads = config.hidden_size, config.encoder_attention_heads
        head_size = width // heads
        self.self_attn_layer_norm = nn.LayerNorm(width)
        self.self_attn = BidirectionalAttention(
            EncoderHeads(heads, heads, head_size, head_size**-0.5), width, bias=True
        )
        self.final_layer_norm = nn.LayerNorm(width)
        self.mlp = FeedForward(width, config.encoder_ffn_dim, config.hidden_act)

    def forward(self, x_TM: Tensor) -> Tensor:
        x_TM = x_TM + self.self_attn(self.self_attn_layer_norm(x_TM))
        out_TM: Tensor = x_TM + self.mlp(self.final_layer_norm(x_TM))
        if out_TM.dtype == torch.float16:
            # Some checkpoints overflow: as in transformers, clamp to a thousand below the largest finite number.
            most = torch.finfo(out_TM.dtype).max - 1000
            out_TM = out_TM.clamp(-most, most)
        return out_TM


class WhisperEncoder(nn.Module):
    """Two convolutions, learned positions and layers."""

    def __init__(self, config: WhisperConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.conv1 = nn.Conv1d(config.num_mel_bins, width, kernel_size=3, padding=1)
        self.conv2 = nn.Conv1d(width, width, kernel_size=3, padding=1, stride=FRAMES_PER_TOKEN)
        self.embed_positions = nn.Embedding(config.max_source_positions, width)
        self.layers = nn.ModuleList(WhisperEncoderLayer(config) for _ in range(config.encoder_layers))
        self.layer_norm = nn.LayerNorm(width)

    def fill(self, generator: torch.Generator) -> None:
        for conv in (self.conv1, self.conv2):
            conv.weight.normal_(0.0, (3 * conv.in_channels) ** -0.5, generator=generator)
            if conv.bias is not None:
                conv.bias.zero_()

    def forward(self, features: Tensor) -> Tensor:
        """``states_TM`` of log-mel features ``[mel bins, frames]``."""
        x = functional.gelu(self.conv1(features.to(self.conv1.weight.dtype)))
        x_TM = functional.gelu(self.conv2(x)).T + self.embed_positions.weight
        for layer in self.layers:
            x_TM = layer(x_TM)
        out_TM: Tensor = self.layer_norm(x_TM)
        return out_TM


class WhisperLayer(nn.Module):
    """Self-attention, cross-attention and feed-forward layer, each after a norm."""

    def __init__(self, config: WhisperConfig, index: int, backends: BackendChoice) -> None:
        super().__init__()
        width, need = config.hidden_size, config.attention_need(index)
        cross = CrossNeed(
            f"layers.{index}.encoder_attn", need.num_heads, need.num_kv_heads, need.head_size, need.scale
        )
        self.self_attn_layer_norm = nn.LayerNorm(width)
        self.self_attn = Attention(need, width, backend=backends.attention, bias=True)
        self.encoder_attn_layer_norm = nn.LayerNorm(width)
        self.encoder_attn = CrossAttention(cross, width, width, backend=backends.cross, bias=True)
        self.final_layer_norm = nn.LayerNorm(width)
        self.mlp = FeedForward(width, config.decoder_ffn_dim, config.hidden_act)

    def forward(self, x_TM: Tensor, plans: Plans, rotation: None) -> Tensor:
        x_TM = x_TM + self.self_attn(self.self_attn_layer_norm(x_TM), plans)
        x_TM = x_TM + self.encoder_attn(self.encoder_attn_layer_norm(x_TM), plans)
        out_TM: Tensor = x_TM + self.mlp(self.final_layer_norm(x_TM))
        return out_TM


class Whisper(EncoderDecoder):
    """Whisper for transcription. Suppressing tokens that a task must not sample is up to the caller."""

    learned_positions = True
    config: WhisperConfig
    config_class = WhisperConfig
    layer_class = WhisperLayer
    norm_class = nn.LayerNorm

    def add_inputs(self) -> None:
        self.encoder = WhisperEncoder(self.config)
        self.max_encoder_tokens = self.config.max_source_positions
        super().add_inputs()
        self.embed_positions = nn.Embedding(self.max_model_len, self.config.hidden_size)

    def embed(self, batch: ForwardBatch) -> Tensor:
        x_TM: Tensor = super().embed(batch) + self.embed_positions(batch.positions_T)
        return x_TM

    def arrange(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """Renames weights, and adds a zero bias for the key projections, which have none in checkpoints."""
        ours = {}
        for name, weight in weights.items():
            for theirs, part in RENAMED.items():
                name = name.replace(theirs, part)
            ours["norm." + name.removeprefix("layer_norm.") if name.startswith("layer_norm.") else name] = weight
            if name.endswith(".k_proj.weight"):
                ours[name.removesuffix("weight") + "bias"] = weight.new_zeros(len(weight))
        return ours

    def read_encoder_input(self, found: Any) -> EncoderInput:
        """A float tensor of log-mel features, ``[mel bins, frames]``, padded to the model's fixed length."""
        shape = (self.config.num_mel_bins, FRAMES_PER_TOKEN * self.config.max_source_positions)
        accepted = f"a float tensor of log-mel features [mel bins, frames] = {list(shape)}"
        if not isinstance(found, Tensor) or not found.is_floating_point():
            what = f"a tensor of {found.dtype}" if isinstance(found, Tensor) else type(found).__name__
            raise ValueError(f"encoder_input must be {accepted}, found {what}")
        if found.shape != shape:
            raise ValueError(f"encoder_input must be {accepted}, found {list(found.shape)}")
        if not found.isfinite().all():
            raise ValueError(f"encoder_input must be {accepted}, found values that are not finite")
        # A copy, since the caller may reuse the buffer before the encoder runs and its digest is part of the keys.
        return EncoderInput(found.detach().clone(), self.config.max_source_positions)
