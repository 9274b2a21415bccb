"""Tiny encoder-decoder models of transformers with random weights, and what they give: the oracles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import GenerationMixin, PreTrainedModel

from kvhybrid.models.whisper import FRAMES_PER_TOKEN

VOCAB = 131
START = 1
"""The token that every decoder prompt begins with."""

STACK = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 1024,
    "sliding_window": 8,
    "query_pre_attn_scalar": 24,
    "attn_logit_softcapping": 5.0,
    "final_logit_softcapping": 8.0,
}
WHISPER = {
    "vocab_size": VOCAB,
    "num_mel_bins": 10,
    "d_model": 48,
    "encoder_layers": 2,
    "encoder_attention_heads": 3,
    "encoder_ffn_dim": 72,
    "max_source_positions": 23,
    "decoder_layers": 3,
    "decoder_attention_heads": 4,
    "decoder_ffn_dim": 80,
    "max_target_positions": 128,
    "decoder_start_token_id": START,
    "pad_token_id": 0,
    "bos_token_id": START,
    "eos_token_id": None,
}


def tiny_t5gemma(
    seed: int = 0,
    encoder: Mapping[str, Any] | None = None,
    decoder: Mapping[str, Any] | None = None,
    **overrides: Any,
) -> PreTrainedModel:
    """``encoder`` and ``decoder`` change one stack, ``overrides`` both."""
    tied = overrides.pop("tie_word_embeddings", True)
    stacks = [
        transformers.T5GemmaModuleConfig(**{**STACK, **overrides, **(change or {})}, bos_token_id=START)
        for change in (encoder, decoder)
    ]
    config = transformers.T5GemmaConfig(
        encoder=stacks[0], decoder=stacks[1], vocab_size=VOCAB, tie_word_embeddings=tied
    )
    config._attn_implementation = "eager"
    return randomised(transformers.T5GemmaForConditionalGeneration(config), seed, embedding_scale=0.4)


def tiny_whisper(seed: int = 0, **overrides: Any) -> PreTrainedModel:
    config = transformers.WhisperConfig(**{**WHISPER, **overrides})
    config._attn_implementation = "eager"
    return randomised(transformers.WhisperForConditionalGeneration(config), seed, embedding_scale=3.0)


@torch.no_grad()
def randomised(model: PreTrainedModel, seed: int, embedding_scale: float) -> PreTrainedModel:
    """Every weight random, biases and norms included; queries large, so that attention picks."""
    generator = torch.Generator().manual_seed(seed)
    tied = model.config.tie_word_embeddings
    for name, weight in model.named_parameters():
        if weight.dim() == 1:
            weight.add_(0.2 * torch.randn(weight.shape, generator=generator))
            continue
        scale = weight[0].numel() ** -0.5
        if "embed_tokens" in name:
            # Without large ones the next token hardly depends on the last; as a head they would be too large.
            scale = 1.5 * scale if tied else embedding_scale
        elif "embed_positions" in name:
            scale = 0.9
        elif "q_proj" in name:
            scale *= 6.0
        weight.copy_(torch.randn(weight.shape, generator=generator) * scale)
    model.generation_config.eos_token_id = None
    return model.eval()


def encoder_tokens(length: int, seed: int) -> list[int]:
    """Token ids for a T5Gemma encoder."""
    generator = torch.Generator().manual_seed(1000 + seed)
    tokens: list[int] = torch.randint(1, VOCAB, (length,), generator=generator).tolist()
    return tokens


def features(seed: int, model: Mapping[str, Any] = WHISPER) -> Tensor:
    """Log-mel features for a Whisper encoder."""
    generator = torch.Generator().manual_seed(2000 + seed)
    frames = FRAMES_PER_TOKEN * model["max_source_positions"]
    return torch.randn(model["num_mel_bins"], frames, generator=generator)


def decoder_prompt(length: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    tokens: list[int] = torch.randint(2, VOCAB, (length - 1,), generator=generator).tolist()
    return [START, *tokens]


def encoder_arguments(given: list[int] | Tensor) -> dict[str, Tensor]:
    """The encoder's input as transformers' models take it."""
    if isinstance(given, Tensor):
        return {"input_features": given[None]}
    ids = torch.tensor([given])
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


@torch.no_grad()
def full_logits(model: PreTrainedModel, given: list[int] | Tensor, prompt: list[int]) -> Tensor:
    """Logits of every token of a decoder prompt, in one forward pass without a cache."""
    ids = torch.tensor([prompt])
    logits: Tensor = model(
        **encoder_arguments(given),
        decoder_input_ids=ids,
        decoder_attention_mask=torch.ones_like(ids),
        use_cache=False,
    ).logits[0]
    return logits


@torch.no_grad()
def generated(model: PreTrainedModel, given: list[int] | Tensor, prompt: list[int], num_tokens: int) -> list[int]:
    """Greedy tokens by transformers' own ``generate``, without what Whisper's adds for long sound."""
    ids = torch.tensor([prompt])
    out = GenerationMixin.generate(
        model,
        **encoder_arguments(given),
        decoder_input_ids=ids,
        decoder_attention_mask=torch.ones_like(ids),
        max_new_tokens=num_tokens,
        do_sample=False,
    )
    assert out[0, : len(prompt)].tolist() == prompt
    new: list[int] = out[0, len(prompt) :].tolist()
    return new
