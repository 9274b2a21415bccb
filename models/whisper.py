"""Whisper: a decoder of text over an encoder of sound.

Source: Radford et al., Robust Speech Recognition via Large-Scale Weak Supervision (arXiv:2212.04356), and its
Hugging Face config.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from kvhybrid.models.backends.base import AttentionNeed
from kvhybrid.models.backends.cross import CrossNeed
from kvhybrid.models.backends.visibility import Visibility
from kvhybrid.models.base import BackendChoice, EncoderInput, ForwardBatch
from kvhybrid.models.encoder_decoder import EncoderDecoder
from kvhybrid.models.layers.activation import Activation, activation
from kvhybrid.models.layers.attention import Attention
from kvhybrid.models.layers.bidirectional import BidirectionalAttention, EncoderHeads
from kvhybrid.models.layers.cross_attention import CrossAttention
from kvhybrid.models.layers.plans import Plans

FRAMES_PER_TOKEN = 2
"""The second convolution's stride."""

RENAMED = {".out_proj.": ".o_proj.", ".fc1.": ".mlp.fc1.", ".fc2.": ".mlp.fc2.", "proj_out.": "lm_head."}
"""Parts of the weights' names in checkpoints, and ours."""


@dataclass(frozen=True)
class WhisperConfig:
    """What the forward pass needs to know."""

    vocab_size: int
    mel_bins: int
    width: int
    encoder_layers: int
    encoder_heads: int
    encoder_inner: int
    encoder_len: int
    """Encoder tokens of every input: shorter sound is padded with silence before it comes here."""
    decoder_layers: int
    decoder_heads: int
    decoder_inner: int
    decoder_len: int
    act: Activation
    tied: bool

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> WhisperConfig:
        """From the dict of a ``config.json``; keys that it leaves out have the family's defaults."""
        width = config.get("d_model", 384)
        heads = {key: config.get(f"{key}_attention_heads", 6) for key in ("encoder", "decoder")}
        for key, count in heads.items():
            if width % count:
                raise ValueError(f"d_model = {width} must be a multiple of {key}_attention_heads = {count}")
        return cls(
            vocab_size=config.get("vocab_size", 51_865),
            mel_bins=config.get("num_mel_bins", 80),
            width=width,
            encoder_layers=config.get("encoder_layers", 4),
            encoder_heads=heads["encoder"],
            encoder_inner=config.get("encoder_ffn_dim", 1536),
            encoder_len=config.get("max_source_positions", 1500),
            decoder_layers=config.get("decoder_layers", 4),
            decoder_heads=heads["decoder"],
            decoder_inner=config.get("decoder_ffn_dim", 1536),
            decoder_len=config.get("max_target_positions", 448),
            act=activation(config.get("activation_function", "gelu")),
            tied=config.get("tie_word_embeddings", True),
        )


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
    """Attention to both sides and feed-forward, each behind a norm."""

    def __init__(self, config: WhisperConfig) -> None:
        super().__init__()
        head_size = config.width // config.encoder_heads
        heads = EncoderHeads(config.encoder_heads, config.encoder_heads, head_size, head_size**-0.5)
        self.self_attn_layer_norm = nn.LayerNorm(config.width)
        self.self_attn = BidirectionalAttention(heads, config.width, bias=True)
        self.final_layer_norm = nn.LayerNorm(config.width)
        self.mlp = FeedForward(config.width, config.encoder_inner, config.act)

    def forward(self, x_TM: Tensor) -> Tensor:
        x_TM = x_TM + self.self_attn(self.self_attn_layer_norm(x_TM))
        out_TM: Tensor = x_TM + self.mlp(self.final_layer_norm(x_TM))
        if out_TM.dtype == torch.float16:
            # Some checkpoints overflow: as in transformers, a thousand below the largest finite number.
            most = torch.finfo(out_TM.dtype).max - 1000
            out_TM = out_TM.clamp(-most, most)
        return out_TM


class WhisperEncoder(nn.Module):
    """Two convolutions, learned positions and layers."""

    def __init__(self, config: WhisperConfig) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(config.mel_bins, config.width, kernel_size=3, padding=1)
        self.conv2 = nn.Conv1d(config.width, config.width, kernel_size=3, padding=1, stride=FRAMES_PER_TOKEN)
        self.embed_positions = nn.Embedding(config.encoder_len, config.width)
        self.layers = nn.ModuleList(WhisperEncoderLayer(config) for _ in range(config.encoder_layers))
        self.layer_norm = nn.LayerNorm(config.width)

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
    """Attention to the text so far, to the sound, and feed-forward, each behind a norm."""

    def __init__(self, config: WhisperConfig, index: int, backends: BackendChoice) -> None:
        super().__init__()
        width, heads = config.width, config.decoder_heads
        head_size = width // heads
        scale = head_size**-0.5
        self.self_attn_layer_norm = nn.LayerNorm(width)
        self.self_attn = Attention(
            AttentionNeed(
                layer=f"layers.{index}.self_attn",
                num_heads=heads,
                num_kv_heads=heads,
                head_size=head_size,
                scale=scale,
                visibility=Visibility(),
            ),
            width,
            backend=backends.attention,
            bias=True,
        )
        self.encoder_attn_layer_norm = nn.LayerNorm(width)
        self.encoder_attn = CrossAttention(
            CrossNeed(f"layers.{index}.encoder_attn", heads, heads, head_size, scale),
            width,
            width,
            backend=backends.cross,
            bias=True,
        )
        self.final_layer_norm = nn.LayerNorm(width)
        self.mlp = FeedForward(width, config.decoder_inner, config.act)

    def forward(self, x_TM: Tensor, plans: Plans) -> Tensor:
        x_TM = x_TM + self.self_attn(self.self_attn_layer_norm(x_TM), plans)
        x_TM = x_TM + self.encoder_attn(self.encoder_attn_layer_norm(x_TM), plans)
        out_TM: Tensor = x_TM + self.mlp(self.final_layer_norm(x_TM))
        return out_TM


class Whisper(EncoderDecoder):
    """Whisper for transcription. Which tokens a task must not sample is the caller's business."""

    model_types = ("whisper",)
    learned_positions = True

    def __init__(self, config: WhisperConfig, backends: BackendChoice) -> None:
        super().__init__()
        self.config = config
        self.vocab_size = config.vocab_size
        self.max_model_len = config.decoder_len
        self.max_encoder_tokens = config.encoder_len
        self.encoder = WhisperEncoder(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.width)
        self.embed_positions = nn.Embedding(config.decoder_len, config.width)
        self.layers = nn.ModuleList(
            WhisperLayer(config, index, backends) for index in range(config.decoder_layers)
        )
        self.layer_norm = nn.LayerNorm(config.width)
        self.lm_head = None if config.tied else nn.Linear(config.width, config.vocab_size, bias=False)
        self.page_multiple = self.attention_page_multiple()

    @classmethod
    def from_config(cls, config: Mapping[str, Any], backends: BackendChoice | None = None) -> Whisper:
        return cls(WhisperConfig.read(config), backends or BackendChoice())

    @classmethod
    def map_weights(cls, config: Mapping[str, Any], weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Gives the keys, which have no bias, one of zeros, so that all projections are alike."""
        mapped = {}
        for name, weight in weights.items():
            ours = name.removeprefix("model.").removeprefix("decoder.")
            for theirs, part in RENAMED.items():
                ours = ours.replace(theirs, part)
            mapped[ours] = weight
            if ours.endswith(".k_proj.weight"):
                mapped[ours.removesuffix("weight") + "bias"] = weight.new_zeros(len(weight))
        if WhisperConfig.read(config).tied:
            mapped.pop("lm_head.weight", None)
        return mapped

    def read_encoder_input(self, found: Any) -> EncoderInput:
        """A float tensor of log-mel features, ``[mel bins, frames]``, padded to the length of the model."""
        shape = (self.config.mel_bins, FRAMES_PER_TOKEN * self.config.encoder_len)
        accepted = f"a float tensor of log-mel features [mel bins, frames] = {list(shape)}"
        if not isinstance(found, Tensor) or not found.is_floating_point():
            what = f"a tensor of {found.dtype}" if isinstance(found, Tensor) else type(found).__name__
            raise ValueError(f"encoder_input must be {accepted}, found {what}")
        if found.shape != shape:
            raise ValueError(f"encoder_input must be {accepted}, found {list(found.shape)}")
        if not found.isfinite().all():
            raise ValueError(f"encoder_input must be {accepted}, found values that are not finite")
        # A copy: the caller may fill its buffer anew before the encoder runs, and its digest is in the keys.
        return EncoderInput(found.detach().clone(), self.config.encoder_len)

    def encoder_states(self, content: Tensor) -> Tensor:
        states_TM: Tensor = self.encoder(content)
        return states_TM

    @torch.no_grad()
    def forward(self, batch: ForwardBatch) -> Tensor:
        plans = Plans(batch)
        x_TM = self.embed_tokens(batch.token_ids_T) + self.embed_positions(batch.positions_T)
        for layer in self.layers:
            x_TM = layer(x_TM, plans)
        return self.logits(self.layer_norm(x_TM[batch.logit_rows]))
