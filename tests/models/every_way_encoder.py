"""Every way to cut and batch the prompts of an encoder-decoder model, and to batch its encoder inputs."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from transformers import PreTrainedModel

from kvhybrid.models.base import HybridModel
from tests.models.encoder_driver import EncoderDriver
from tests.models.every_way import RAGGED
from tests.models.paged_driver import run_ragged
from tests.models.tiny_encoder_decoders import decoder_prompt, full_logits

Given = list[int] | Tensor
PROMPTS = {f"s{length}": decoder_prompt(length, seed=length) for length in RAGGED}


def differences(
    ours: HybridModel, oracle: PreTrainedModel, encoder_input: Callable[[int], Given]
) -> dict[str, float]:
    """The largest difference of a logit from the oracle's, way by way. ``encoder_input`` gives the i-th one."""
    given = {name: encoder_input(i) for i, name in enumerate(PROMPTS)}
    expected = {name: full_logits(oracle, given[name], prompt) for name, prompt in PROMPTS.items()}
    assert expected["s90"].std() > 0.3, "an oracle with flat logits tests nothing"
    other = full_logits(oracle, given["s64"], PROMPTS["s90"])
    assert (other - expected["s90"]).abs().max() > 0.3, "an oracle that hardly hears its encoder tests nothing"

    def driver(*names: str, block_size: int = 4) -> EncoderDriver:
        driver = EncoderDriver(ours, block_size=block_size)
        driver.encode({name: given[name] for name in names})
        return driver

    def token_by_token(driver: EncoderDriver, name: str) -> Tensor:
        return torch.cat([driver.step({name: [token]})[name] for token in PROMPTS[name]])

    found: dict[str, dict[str, Tensor]] = {
        "whole": driver("s90").step({"s90": PROMPTS["s90"]}),
        "token by token": {"s48": token_by_token(driver("s48"), "s48")},
        "random chunks": run_ragged(
            driver("s90", block_size=3), {"s90": PROMPTS["s90"]}, chunk_lengths=(1, 2, 3, 7, 19)
        ),
        "ragged batch of eight": run_ragged(driver(*PROMPTS), PROMPTS, chunk_lengths=(1, 1, 4, 13, 50)),
        "decoded together": _decoded_together(driver(*PROMPTS)),
    }
    return {
        way: max(float((logits - expected[name]).abs().max()) for name, logits in parts.items())
        for way, parts in found.items()
    }


def _decoded_together(driver: EncoderDriver) -> dict[str, Tensor]:
    """All but the last token of each prompt in one step, and those last tokens in the next."""
    first = driver.step({name: prompt[:-1] for name, prompt in PROMPTS.items() if len(prompt) > 1})
    last = driver.step({name: prompt[-1:] for name, prompt in PROMPTS.items()})
    return {name: torch.cat([*([first[name]] if name in first else []), logits]) for name, logits in last.items()}
