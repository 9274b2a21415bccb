"""Whole models over the stand-ins for FlashAttention kernels, against the torch backend.

In float32, which the stand-ins are told to let pass, so that a wrong mask cannot hide behind rounding. The driver
leaves NaN in every block without an owner, takes dead blocks away at once, and mixes prompts with decoding.
"""

from __future__ import annotations

import sys

import pytest
import torch

import tests.models.backends.fake_flash_attention as flash
from kvhybrid.engine.engine import Engine
from kvhybrid.models.backends.paged import PagedAttention
from kvhybrid.models.base import BackendChoice, HybridModel
from kvhybrid.models.loading import model_from_config
from tests.models.paged_driver import PagedDriver, run_ragged
from tests.models.tiny_models import CONFIGS, random_prompt

PROMPTS = {f"s{length}": random_prompt(length, seed=length) for length in (1, 5, 33, 90)}
FAMILIES = ["bamba", "gemma2", "gemma3_text", "gpt_oss", "jamba", "llama4_text"]
TOLERANCE = 2e-5
"""As a share of the largest logit. Measured maximum: 5.5e-6, Gemma 3; others 3.0e-6"""


@pytest.fixture(autouse=True)
def _kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PagedAttention, "devices", None)
    monkeypatch.setattr(PagedAttention, "dtypes", frozenset({torch.float32}))
    monkeypatch.setattr(flash, "HALVES", (torch.float32,))
    for fake in (flash.flash_attention2, flash.flash_attention3):
        module = fake(flash.Seen())
        monkeypatch.setitem(sys.modules, module.__name__, module)


def tiny(family: str, attention: str) -> HybridModel:
    config = {**CONFIGS[family], "model_type": family}
    if family == "jamba":
        config["num_attention_heads"], config["num_key_value_heads"] = 3, 1  # heads of 16
    return model_from_config(config, backends=BackendChoice(attention=attention))


@pytest.mark.parametrize("family", FAMILIES)
def test_family_equals_itself_on_torch(family: str) -> None:
    expected, found = (
        run_ragged(PagedDriver(tiny(family, name), seed=3), PROMPTS, (1, 1, 4, 13, 50))
        for name in ("torch", "flash_attention3")
    )
    for prompt, logits in expected.items():
        assert logits.std() > 0.01
        difference = (found[prompt] - logits).abs().max() / logits.abs().max()
        assert difference < TOLERANCE


@pytest.mark.parametrize("family", ["bamba", "jamba"])
def test_hits_end_inside_the_large_blocks_that_flash_attention2_wants(family: str) -> None:
    """Blocks of 256 tokens, hits of 16: the second prompt shares 320 tokens with the first."""
    shared = random_prompt(320, seed=1)
    prompts = [[*shared, *random_prompt(length, seed=length)] for length in (5, 30)]
    engine = Engine(
        tiny(family, "flash_attention2"), block_size=256, hash_block_size=16, num_blocks=40, max_model_len=512
    )
    first = engine.generate(prompts[:1], 4)
    second = engine.generate(prompts[1:], 4)
    assert {group.tokens_hit for group in engine.stats().groups} == {320}
    alone = Engine(tiny(family, "flash_attention2"), block_size=256, num_blocks=40, max_model_len=512)
    assert alone.generate(prompts, 4) == first + second


def test_smaller_blocks_are_refused_before_anything_is_planned() -> None:
    with pytest.raises(ValueError, match="block_size must be a positive multiple of 256 for this model's kernels"):
        Engine(tiny("gemma3_text", "flash_attention2"), block_size=16)
