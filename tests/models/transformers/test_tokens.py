"""Through our pages, a decoder of transformers generates the tokens that it generates by itself."""

from __future__ import annotations

from math import lcm

import pytest

from kvhybrid.engine.engine import Engine
from tests.models.transformers.tiny_decoders import (
    TYPES,
    decoder,
    engine_on,
    greedy,
    logits_difference,
    prompts_with_shared_prefixes,
    random_tokens,
)

pytestmark = pytest.mark.usefixtures("one_thread")

SHORT = ("lfm2", "llama", "llama4_text", "minimax", "recurrent_gemma")
"""Tokens, windows, chunks and states of several kinds; the others are tested with ``-m long``."""

NEW_TOKENS = 3
TOLERANCE = 1e-3
"""Largest difference of a logit from one pass without a cache, in standard deviations of the logits."""

ALL = [pytest.param(name, marks=() if name in SHORT else pytest.mark.long) for name in TYPES]


def tokens_hit(engine: Engine) -> int:
    return engine.stats().groups[0].tokens_hit


def hit_unit(engine: Engine) -> int:
    """Where a hit may end: where every group ends a block."""
    return lcm(*engine.plan.config.block_sizes)


@pytest.mark.parametrize("model_type", ALL)
def test_ragged_prompts_get_the_tokens_of_transformers(model_type: str) -> None:
    """With and without caching, a second time from the cache, and in chunks of 3 and 16."""
    model = decoder(model_type)
    size = hit_unit(engine_on(model))
    shared = size if size > 8 else 2 * size
    prompts = prompts_with_shared_prefixes(shared)
    expected = greedy(model, prompts, NEW_TOKENS)
    assert len({*map(tuple, expected)}) > 2, "an oracle that always says the same tests nothing"
    limits = {"max_model_len": shared + 16, "num_blocks": 400}

    cached = engine_on(model, max_batched_tokens=16, **limits)
    assert cached.generate(prompts, NEW_TOKENS) == expected
    before = tokens_hit(cached)
    assert cached.generate(prompts, NEW_TOKENS) == expected
    assert tokens_hit(cached) - before >= 6 * shared
    assert logits_difference(model, cached, prompts[7]) < TOLERANCE

    uncached = engine_on(model, max_batched_tokens=16, enable_prefix_caching=False, **limits)
    assert uncached.generate(prompts, NEW_TOKENS) == expected
    assert tokens_hit(uncached) == 0

    chunked = engine_on(model, max_batched_tokens=3, **limits)
    some = [0, 2, 5]
    assert chunked.generate([prompts[i] for i in some], NEW_TOKENS) == [expected[i] for i in some]
    assert chunked.generate([prompts[7]], NEW_TOKENS) == [expected[7]]
    assert tokens_hit(chunked) >= shared


@pytest.mark.parametrize("model_type", ALL)
def test_preempted_requests_get_the_tokens_of_transformers(model_type: str) -> None:
    """Requests that fill one block each grow together into a second one, for which there is no room."""
    model = decoder(model_type)
    size = hit_unit(engine_on(model))
    prompts = [random_tokens(size - 2 + i % 2, seed=i) for i in range(3)]
    limits = {"max_model_len": size + 6, "max_batched_tokens": 4 * size, "enable_prefix_caching": False}
    roomy = engine_on(model, **limits)
    tight = engine_on(model, **{**limits, "num_blocks": 1 + sum(roomy.plan.blocks_per_request)})
    assert tight.generate(prompts, 6) == greedy(model, prompts, 6)
    assert tight.scheduler.num_preemptions > 0
