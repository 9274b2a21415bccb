"""Whose code computes several tokens of a prompt correctly from a state that is not empty.

A prompt is computed in several steps: after a hit, and wherever a chunk of prefill ends. With one token, every
type continues from its state. With several tokens, gated delta nets, lightning attention, Mamba-2 and convolutions
do too, but the scan of Jamba and the blocks of RecurrentGemma start from an empty state.
"""

from __future__ import annotations

RESUMING = frozenset(
    {
        "bailing_hybrid",
        "bamba",
        "falcon_h1",
        "granitemoehybrid",
        "inkling2_loop_text",
        "inkling2_text",
        "inkling_text",
        "kimi_linear",
        "lara_mini",
        "lfm2",
        "lfm2_moe",
        "lfm3",
        "minimax",
        "nemotron_h",
        "olmo_hybrid",
        "qwen3_5_moe_text",
        "qwen3_5_text",
        "qwen3_next",
        "zamba",
        "zamba2",
        "zaya",
    }
)
"""The types with states that were found to continue; see ``tests/models/transformers/test_resuming.py``."""


def resumes(model_type: str) -> bool:
    """Whether a step of several tokens continues from the state before it. For a type that was not tested, the
    answer is no: computed one by one, its tokens are right either way."""
    return model_type in RESUMING
