"""Whether a type's code continues from a state with several tokens at once."""

from __future__ import annotations

import pytest

from kvhybrid.models.transformers.model import TransformersModel
from kvhybrid.models.transformers.resuming import RESUMING
from tests.models.transformers.tiny_decoders import TYPES, decoder, engine_on, logits_difference, random_tokens

pytestmark = pytest.mark.usefixtures("one_thread")

STARTING_AGAIN = ("jamba", "recurrent_gemma")
TOLERANCE = 1e-3
SHORT = ("bamba", "lfm2", "qwen3_next")


def difference(model_type: str, *, one_by_one: bool) -> float:
    """The largest difference of a logit after a prompt in chunks of 5."""
    model = decoder(model_type)
    engine = engine_on(model, max_batched_tokens=5, enable_prefix_caching=False)
    assert isinstance(engine.model, TransformersModel)
    engine.model.one_by_one = one_by_one
    return logits_difference(model, engine, random_tokens(13, seed=0))


@pytest.mark.parametrize(
    "model_type",
    [pytest.param(name, marks=() if name in SHORT else pytest.mark.long) for name in sorted(RESUMING)],
)
def test_what_is_said_to_continue_continues(model_type: str) -> None:
    assert difference(model_type, one_by_one=False) < TOLERANCE


@pytest.mark.parametrize("model_type", STARTING_AGAIN)
def test_what_starts_again_is_computed_token_by_token(model_type: str) -> None:
    assert engine_on(decoder(model_type)).model.one_by_one
    assert difference(model_type, one_by_one=False) > 10 * TOLERANCE
    assert difference(model_type, one_by_one=True) < TOLERANCE


@pytest.mark.parametrize("model_type", ["llama", "llama4_text"])
def test_without_states_nothing_has_to_continue(model_type: str) -> None:
    assert not engine_on(decoder(model_type)).model.one_by_one


@pytest.mark.long
def test_every_type_with_states_is_sorted() -> None:
    stateful = set()
    for model_type in TYPES:
        engine = engine_on(decoder(model_type))
        if any(group.spec.state for group in engine.plan.config.groups):
            stateful.add(model_type)
    assert stateful == RESUMING | {*STARTING_AGAIN}
