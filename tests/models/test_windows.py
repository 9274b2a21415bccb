"""Windows that are changed after training: what a layer sees, and what it keeps."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kvhybrid.models.base import HybridModel
from kvhybrid.models.loading import model_from_hf
from kvhybrid.models.windows import change_windows
from kvhybrid.specs import FullAttentionSpec, SinkWindowSpec, SlidingWindowSpec
from tests.models.paged_driver import PagedDriver
from tests.models.tiny_models import full_logits, random_prompt, tiny

PROMPT = random_prompt(30, seed=0)
TOLERANCE = 1e-4  # measured maximum: 2.7e-6


def logits(model: HybridModel) -> torch.Tensor:
    return PagedDriver(model).step({"a": PROMPT})["a"]


@pytest.mark.parametrize("model_type", ["gemma2", "gemma3_text", "gpt_oss"])
def test_a_smaller_window_is_that_of_a_model_built_with_it(model_type: str) -> None:
    oracle = tiny(model_type, sliding_window=4)
    model = model_from_hf(tiny(model_type, sliding_window=12))
    change_windows(model, 4)
    assert float((logits(model) - full_logits(oracle, PROMPT)).abs().max()) < TOLERANCE


def test_sinks_that_reach_the_window_leave_nothing_out() -> None:
    """Window and sinks together cover the prompt, so the window layers see all of it."""
    oracle = tiny("gemma3_text", sliding_window=100)
    model = model_from_hf(tiny("gemma3_text", sliding_window=10))
    change_windows(model, sinks=20)
    assert float((logits(model) - full_logits(oracle, PROMPT)).abs().max()) < TOLERANCE


def specs(model: HybridModel) -> set[Any]:
    return {
        (type(spec), getattr(spec, "window", None), getattr(spec, "sinks", None))
        for spec in model.layer_specs(4, torch.float32).values()
    }


def test_what_is_kept_follows_what_is_seen() -> None:
    model = model_from_hf(tiny("gemma3_text", sliding_window=12))
    change_windows(model, 8)
    assert specs(model) == {(SlidingWindowSpec, 8, None), (FullAttentionSpec, None, None)}
    change_windows(model, sinks=3)
    assert specs(model) == {(SinkWindowSpec, 8, 3), (FullAttentionSpec, None, None)}


def test_a_model_without_windows_is_refused() -> None:
    with pytest.raises(ValueError, match=r"the model has no window layers"):
        change_windows(model_from_hf(tiny("jamba")), 4)
