"""Tiny transformers models with random weights: the oracles."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

GEMMA = {
    "vocab_size": 131,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 1024,
    "sliding_window": 8,
    "query_pre_attn_scalar": 24,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "bamba": {
        "vocab_size": 131,
        "hidden_size": 48,
        "intermediate_size": 64,
        "num_hidden_layers": 5,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "attn_layer_indices": [1, 3],
        "mamba_n_heads": 6,
        "mamba_d_head": 16,
        "mamba_n_groups": 2,
        "mamba_d_state": 8,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "tie_word_embeddings": False,
        "max_position_embeddings": 1024,
    },
    "gemma2": {
        **GEMMA,
        "num_hidden_layers": 4,
        "attn_logit_softcapping": 5.0,
        "final_logit_softcapping": 8.0,
    },
    "gemma3_text": {
        **GEMMA,
        "num_hidden_layers": 5,
        "layer_types": [*["sliding_attention"] * 2, "full_attention", "sliding_attention", "full_attention"],
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0},
            "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 50_000.0},
        },
    },
    "gemma3n_text": {
        **{key: value for key, value in GEMMA.items() if key != "query_pre_attn_scalar"},
        "intermediate_size": [80, 80, 64, 80, 72, 80, 80],
        "num_hidden_layers": 7,
        "layer_types": [
            *["sliding_attention", "full_attention"] * 2,
            *["sliding_attention"] * 2,
            "full_attention",
        ],
        "num_kv_shared_layers": 3,
        "vocab_size_per_layer_input": 101,
        "hidden_size_per_layer_input": 12,
        "laurel_rank": 8,
        "activation_sparsity_pattern": [0.9, 0.0, 0.5, 0.0, 0.9, 0.0, 0.0],
        "final_logit_softcapping": 8.0,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0},
            "full_attention": {"rope_type": "default", "rope_theta": 50_000.0},
        },
    },
    "granitemoehybrid": {
        "vocab_size": 131,
        "hidden_size": 48,
        "intermediate_size": 40,
        "shared_intermediate_size": 56,
        "num_hidden_layers": 5,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "layer_types": [*["linear_attention"] * 2, "full_attention", "linear_attention", "full_attention"],
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "embedding_multiplier": 1.5,
        "residual_multiplier": 0.7,
        "attention_multiplier": 0.3,
        "logits_scaling": 0.8,
        "mamba_n_heads": 6,
        "mamba_n_groups": 2,
        "mamba_d_state": 8,
        "tie_word_embeddings": False,
        "max_position_embeddings": 1024,
    },
    "gpt_oss": {
        "vocab_size": 131,
        "hidden_size": 48,
        "intermediate_size": 40,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "sliding_window": 8,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "swiglu_limit": 1.5,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1000.0,
            "factor": 8.0,
            "beta_fast": 8.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 128,
        },
        "tie_word_embeddings": False,
        "max_position_embeddings": 1024,
    },
    "jamba": {
        "vocab_size": 131,
        "hidden_size": 48,
        "intermediate_size": 64,
        "num_hidden_layers": 6,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "attn_layer_period": 3,
        "attn_layer_offset": 1,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "mamba_d_state": 8,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "mamba_dt_rank": 6,
        "max_position_embeddings": 1024,
    },
    "llama4_text": {
        "vocab_size": 131,
        "hidden_size": 48,
        "intermediate_size": 40,
        "intermediate_size_mlp": 72,
        "num_hidden_layers": 5,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "no_rope_layers": [1, 1, 0, 1, 0],
        "attention_chunk_size": 8,
        "interleave_moe_layer_step": 2,
        "num_local_experts": 4,
        "num_experts_per_tok": 1,
        "floor_scale": 5,
        "attn_scale": 0.3,
        "tie_word_embeddings": False,
        "max_position_embeddings": 1024,
    },
    "qwen3_next": {
        "vocab_size": 131,
        "hidden_size": 48,
        "intermediate_size": 64,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 40,
        "num_hidden_layers": 5,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "layer_types": [*["linear_attention"] * 2, "full_attention", "linear_attention", "full_attention"],
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 12,
        "linear_conv_kernel_dim": 4,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "mlp_only_layers": [1],
        # With 1e-6 the norm behind a state blows up the rounding of a query that happens to find next to nothing:
        # a change of one rounding in the oracle's weights moves its logits by 2.6e-4.
        "rms_norm_eps": 1e-4,
        "tie_word_embeddings": False,
        "max_position_embeddings": 1024,
    },
}
CLASSES = {
    "granitemoehybrid": ("GraniteMoeHybridConfig", "GraniteMoeHybridForCausalLM"),
    "bamba": ("BambaConfig", "BambaForCausalLM"),
    "gemma2": ("Gemma2Config", "Gemma2ForCausalLM"),
    "gemma3_text": ("Gemma3TextConfig", "Gemma3ForCausalLM"),
    "gemma3n_text": ("Gemma3nTextConfig", "Gemma3nForCausalLM"),
    "gpt_oss": ("GptOssConfig", "GptOssForCausalLM"),
    "jamba": ("JambaConfig", "JambaForCausalLM"),
    "llama4_text": ("Llama4TextConfig", "Llama4ForCausalLM"),
    "qwen3_next": ("Qwen3NextConfig", "Qwen3NextForCausalLM"),
}


def tiny(model_type: str, seed: int = 0, **overrides: Any) -> PreTrainedModel:
    """A model of the family with every weight random, norms and biases included."""
    config_name, model_name = CLASSES[model_type]
    config = getattr(transformers, config_name)(**{**CONFIGS[model_type], **overrides})
    config._attn_implementation = "eager"
    with torch.random.fork_rng(devices=[]):
        # `randomised` adds to what transformers draws for vectors, such as gpt-oss's sinks and router biases.
        torch.manual_seed(seed)
        model = getattr(transformers, model_name)(config)
    return randomised(model, seed)


@torch.no_grad()
def randomised(model: PreTrainedModel, seed: int = 0) -> PreTrainedModel:
    generator = torch.Generator().manual_seed(seed)
    # Where embeddings are tied, large ones make a token repeat itself for ever; the last norm makes up for it.
    tied = model.config.get_text_config().tie_word_embeddings
    embedding_scale = 0.1 if tied else model.config.hidden_size**0.5
    for name, weight in model.named_parameters():
        if name.endswith("A_log"):
            weight.copy_(torch.rand(weight.shape, generator=generator) * 3)
        elif weight.dim() == 1:
            weight.add_(0.2 * torch.randn(weight.shape, generator=generator))
            if tied and name.endswith("model.norm.weight"):
                weight.add_(9.0)
            if name.endswith("linear_attn.dt_bias"):
                weight.sub_(4.0)  # as they come, states forget all but a token or two
        else:
            scale = embedding_scale if "embed_tokens" in name else 1.0
            # Larger outputs make Jamba, which has no norm behind its layers, amplify a change of one rounding
            # in its weights to 4e-5 in its logits: no oracle.
            scale *= 0.5 if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj")) else 1.0
            weight.copy_(torch.randn(weight.shape, generator=generator) * scale * weight.shape[-1] ** -0.5)
    model.generation_config.eos_token_id = None
    return model.eval()


@torch.no_grad()
def full_logits(model: PreTrainedModel, prompt: list[int]) -> torch.Tensor:
    """Logits of every token of one prompt, in one forward pass without a cache."""
    logits: torch.Tensor = model(torch.tensor([prompt]), use_cache=False).logits[0]
    return logits


@torch.no_grad()
def generated(model: PreTrainedModel, prompt: list[int], num_tokens: int) -> list[int]:
    """Greedy tokens by transformers' own ``generate``."""
    tokens = torch.tensor([prompt])
    out = model.generate(
        tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=num_tokens, do_sample=False
    )
    new: list[int] = out[0, len(prompt) :].tolist()
    return new


def random_prompt(length: int, seed: int, vocab_size: int = 131) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    prompt: list[int] = torch.randint(1, vocab_size, (length,), generator=generator).tolist()
    return prompt
