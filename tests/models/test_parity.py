"""Every family gives transformers' logits and tokens, however the prompt is cut and batched."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from transformers import PreTrainedModel

from kvhybrid.models.base import HybridModel
from kvhybrid.models.loading import load_model
from tests.models.paged_driver import PagedDriver, run_greedily, run_ragged
from tests.models.tiny_models import CONFIGS, full_logits, generated, random_prompt, tiny

TOLERANCE = 1e-4
"""Largest difference of a logit, in float32. Measured maxima: whole prompt 5.8e-6, token by token 1.4e-5, random
chunks 7.0e-6, ragged batch 1.1e-5, long prompt 1.4e-5 (the states' families: Jamba and Bamba)."""


@dataclass(frozen=True)
class Pair:
    oracle: PreTrainedModel
    ours: HybridModel


@pytest.fixture(scope="module", params=sorted(CONFIGS))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    oracle = tiny(request.param)
    folder = tmp_path_factory.mktemp(request.param)
    oracle.save_pretrained(folder, safe_serialization=True)
    return Pair(oracle, load_model(folder))


def largest_difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    assert expected.std() > 0.3, "an oracle with flat logits tests nothing"
    return float((found - expected).abs().max())


def test_whole_prompt(pair: Pair) -> None:
    prompt = random_prompt(61, seed=1)
    found = PagedDriver(pair.ours).step({"a": prompt})["a"]
    assert largest_difference(found, full_logits(pair.oracle, prompt)) < TOLERANCE


def test_token_by_token(pair: Pair) -> None:
    prompt = random_prompt(40, seed=2)
    driver = PagedDriver(pair.ours)
    found = torch.cat([driver.step({"a": [token]})["a"] for token in prompt])
    assert largest_difference(found, full_logits(pair.oracle, prompt)) < TOLERANCE


@pytest.mark.parametrize(("block_size", "state_block_size"), [(4, 4), (3, 16), (16, 5)])
def test_random_chunks(pair: Pair, block_size: int, state_block_size: int) -> None:
    prompt = random_prompt(70, seed=block_size)
    driver = PagedDriver(pair.ours, block_size=block_size, state_block_size=state_block_size)
    found = run_ragged(driver, {"a": prompt}, chunk_lengths=(1, 2, 3, 7, 19))["a"]
    assert largest_difference(found, full_logits(pair.oracle, prompt)) < TOLERANCE


@pytest.mark.parametrize("seed", range(3))
def test_ragged_batch_of_eight(pair: Pair, seed: int) -> None:
    lengths = (1, 2, 5, 17, 33, 48, 64, 90)
    prompts = {f"s{n}": random_prompt(n, seed=10 * seed + n) for n in lengths}
    found = run_ragged(PagedDriver(pair.ours, seed=seed), prompts, chunk_lengths=(1, 1, 4, 13, 50))
    difference = max(
        largest_difference(found[name], full_logits(pair.oracle, prompt)) for name, prompt in prompts.items()
    )
    assert difference < TOLERANCE


def test_prompt_longer_than_a_tile_and_than_a_scan_chunk(pair: Pair) -> None:
    prompt = random_prompt(700, seed=3)
    driver = PagedDriver(pair.ours, block_size=16)
    found = torch.cat([driver.step({"a": part})["a"] for part in (prompt[:600], prompt[600:])])
    assert largest_difference(found, full_logits(pair.oracle, prompt)) < TOLERANCE


def test_greedy_tokens_equal_those_of_generate(pair: Pair) -> None:
    prompts = {f"s{n}": random_prompt(n, seed=n) for n in (1, 3, 8, 9, 20, 31, 45, 60)}
    found = run_greedily(PagedDriver(pair.ours), prompts, num_tokens=16)
    assert found == {name: generated(pair.oracle, prompt, 16) for name, prompt in prompts.items()}
    assert len({token for tokens in found.values() for token in tokens}) > 16


def test_blocks_of_a_finished_sequence_serve_the_next(pair: Pair) -> None:
    first, second = random_prompt(50, seed=5), random_prompt(50, seed=6)
    driver = PagedDriver(pair.ours, num_blocks=60)
    driver.step({"a": first})
    driver.finish("a")
    found = driver.step({"b": second})["b"]
    assert largest_difference(found, full_logits(pair.oracle, second)) < TOLERANCE
