"""Small configs of transformers' decoders that keep more than one kind, and real models of them on a CPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

WINDOW, FULL, STATE = "sliding_attention", "full_attention", "linear_attention"

SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "sliding_window": 6,
    "attention_chunk_size": 6,
    "attention_window_size": 6,
    "max_position_embeddings": 128,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_topk": 2,
    "moe_intermediate_size": 16,
    "q_lora_rank": 16,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
"""Sizes that every type gets whose config has the key."""

THREE_TO_ONE = {"layer_types": [WINDOW, WINDOW, WINDOW, FULL] * 2}
ONE_GROUP = {"n_group": 1, "topk_group": 1}
LATENT = {**ONE_GROUP, "num_key_value_heads": 4, "kv_lora_rank": 24, "qk_rope_head_dim": 8, "index_n_heads": 2}
MAMBA2 = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8}
DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}

HYBRIDS: dict[str, dict[str, Any]] = {
    "afmoe": {},
    "bailing_hybrid": {**ONE_GROUP, "num_key_value_heads": 4, "num_experts": 16},
    "bamba": {**MAMBA2, "attn_layer_indices": [2, 5]},
    "beam": ONE_GROUP,
    "cohere2": {},
    "cohere2_moe": {},
    "cohere_compass_text": {
        **THREE_TO_ONE,
        "rope_parameters": {kind: {"rope_type": "default", "rope_theta": 1e4} for kind in (WINDOW, FULL)},
    },
    "cwm": {},
    "deepseek_v32": LATENT,
    "dory": {"n_input_layers": 2, "n_output_layers": 2, "sliding_window": 32},
    "dots3_note_text": LATENT,
    "exaone4": {},
    "exaone_moe": {},
    "falcon_h1": {**MAMBA2, "mamba_d_ssm": 64},
    "flint": {},
    "gemma2": {},
    "gemma3_text": {},
    "gemma3n_text": {
        "num_hidden_layers": 10,
        "num_kv_shared_layers": 5,
        "vocab_size_per_layer_input": 64,
        "hidden_size_per_layer_input": 8,
        "laurel_rank": 4,
    },
    "gemma4_text": {"vocab_size_per_layer_input": 64, "hidden_size_per_layer_input": 8, "global_head_dim": 24},
    "gemma4_unified_text": {"global_head_dim": 24},
    "gpt_oss": {},
    "granite_swa": {},
    "granitemoe_swa": {},
    "granitemoehybrid": {**MAMBA2, "layer_types": [STATE, STATE, FULL, STATE] * 2},
    "hy_v4": {},
    "inkling2_loop_text": {"num_hidden_layers": 12, "loop_layer_index_start": 6, "loop_layer_index_end": 12},
    "inkling2_text": {},
    "inkling_text": {},
    "jamba": {},
    "kimi_linear": {
        "num_key_value_heads": 4,
        "num_experts": 16,
        "num_expert_group": 1,
        "topk_group": 1,
        "kv_lora_rank": 24,
        "linear_num_heads": 4,
        "linear_head_dim": 8,
    },
    "kolibri1": {},
    "laguna": THREE_TO_ONE,
    "lara_mini": {},
    "lfm2": {"full_attn_idxs": [2, 5]},
    "lfm2_moe": {"layer_types": ["conv", "conv", FULL, "conv"] * 2},
    "lfm3": {},
    "llama4_text": {},
    "mellum": THREE_TO_ONE,
    "mimo_v2_flash": {},
    "minimax": {},
    "minimax_m3_vl_text": {"layer_types": [FULL] * 2 + ["minimax_m3_sparse"] * 6},
    "ministral": THREE_TO_ONE,
    "modernbert-decoder": {"local_attention": 12},
    "nemotron_h": {},
    "olmo3": {},
    "olmo_hybrid": DELTA,
    "qwen2": {"use_sliding_window": True, "max_window_layers": 4},
    "qwen3": {"use_sliding_window": True, "max_window_layers": 4},
    "qwen3_5_moe_text": DELTA,
    "qwen3_5_text": DELTA,
    "qwen3_next": DELTA,
    "recurrent_gemma": {},
    "smollm3": {"use_sliding_window": True},
    "vaultgemma": {},
    "zamba": {},
    "zamba2": {"layers_block_type": [STATE, STATE, STATE, "hybrid"] * 2, "mamba_d_state": 8},
    "zaya": {"num_experts_per_tok": 1},
}
"""Types with more than one kind of layer, and what their small config needs beside `SIZES`."""

LATENT_ONLY = {**ONE_GROUP, "num_key_value_heads": 4, "kv_lora_rank": 24, "qk_rope_head_dim": 8, "head_dim": 8}

OTHERS: dict[str, dict[str, Any]] = {
    "axk1": LATENT_ONLY,
    "axk2": LATENT_ONLY,
    "codegen": {"rotary_dim": 8},
    "deepseek_v2": LATENT_ONLY,
    "deepseek_v3": LATENT_ONLY,
    "dots1": {"n_group": 1, "topk_group": 1, "n_shared_experts": 1, "routed_scaling_factor": 1.0},
    "glm4_moe_lite": LATENT_ONLY,
    "glm_moe_dsa": LATENT,
    "gpt_neo": {"attention_types": [[["global", "local"], 4]], "num_layers": 8, "window_size": 6},
    "gptj": {"rotary_dim": 8},
    "helium": {"head_dim": 8},
    "longcat_flash": LATENT_ONLY,
    "mamba2": {"num_heads": 4, "n_groups": 1},
    "minicpm3": LATENT_ONLY,
    "sarvam_mla": LATENT_ONLY,
    "youtu": LATENT_ONLY,
}
"""What the small config of other types needs beside `SIZES`."""

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "deepseek_v4": ({}, "compressed_kv"),
    "qwen4_exp_text": (
        {
            "indexer_n_heads": 2,
            "indexer_kv_heads": 1,
            "indexer_head_dim": 16,
            "indexer_budget": 8,
            "indexer_compress_ratio": 2,
        },
        "torch.nonzero",
    ),
}
"""Types that planning refuses, with their small config and a part of the reason."""


def tiny_config(model_type: str, extra: dict[str, Any]) -> Any:
    """The default config of ``model_type``, made small."""
    kind = CONFIG_MAPPING[model_type]
    known = {*kind().to_dict(), *kind.attribute_map}
    return kind(**{**{key: value for key, value in SIZES.items() if key in known}, **extra})


def tiny_model(config: Any, dtype: torch.dtype = torch.float32) -> nn.Module:
    """A model of ``config`` on the CPU. All weights are random: some types start with gates that are shut."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="eager").eval()
    assert isinstance(model, nn.Module)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight), alpha=0.05)
    return model
