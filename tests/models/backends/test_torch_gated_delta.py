"""The reference backend of the gated delta rule against the rule itself, token by token in float64."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from kvhybrid.models.backends.gated_delta import GatedDeltaNeed
from kvhybrid.models.backends.torch_chunks import CHUNK
from kvhybrid.models.backends.torch_gated_delta import TorchGatedDelta
from kvhybrid.models.base import ForwardBatch, GroupBatch, LayerCache

HEADS, KEY_HEADS, KEY, VALUE, WIDTH, BLOCK = 6, 2, 5, 7, 4, 8
NEED = GatedDeltaNeed("layers.0", HEADS, KEY_HEADS, KEY, VALUE, WIDTH)
TOLERANCE = 2e-6
"""As a share of the largest element. Measured maxima: outputs and states 3.8e-7, one key again and again 4.2e-7,
small decays behind large ones 3.4e-7, continuations 2.6e-7."""


@dataclass(frozen=True)
class Inputs:
    q: Tensor
    k: Tensor
    v: Tensor
    log_decay: Tensor
    beta: Tensor

    @classmethod
    def random(cls, length: int, seed: int, decay_scale: float = 0.1) -> Inputs:
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(length, *shape, generator=generator)

        return cls(
            q=torch.nn.functional.normalize(normal(KEY_HEADS, KEY), dim=-1),
            k=torch.nn.functional.normalize(normal(KEY_HEADS, KEY), dim=-1),
            v=normal(HEADS, VALUE),
            log_decay=-torch.nn.functional.softplus(normal(HEADS)) * decay_scale,
            beta=normal(HEADS).sigmoid(),
        )

    @property
    def length(self) -> int:
        return len(self.q)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.q, self.k, self.v, self.log_decay, self.beta

    def part(self, start: int, stop: int) -> Inputs:
        return Inputs(*(tensor[start:stop] for tensor in self.tensors))


def rule(inputs: Inputs) -> tuple[Tensor, Tensor]:
    """Outputs and the last state."""
    h = torch.zeros(HEADS, KEY, VALUE, dtype=torch.float64)
    outputs = []
    for q, k, v, log_decay, beta in zip(*(tensor.double() for tensor in inputs.tensors), strict=True):
        outputs.append(torch.empty(HEADS, VALUE, dtype=torch.float64))
        for head in range(HEADS):
            group = head // (HEADS // KEY_HEADS)
            h[head] *= log_decay[head].exp()
            h[head] += torch.outer(k[group], beta[head] * (v[head] - k[group] @ h[head]))
            outputs[-1][head] = q[group] @ h[head]
    return torch.stack(outputs), h


def new_cache() -> LayerCache:
    return {
        "conv": torch.full((64, NEED.channels, WIDTH - 1), float("nan")),
        "state": torch.full((64, HEADS, KEY, VALUE), float("nan")),
    }


def batch_of(lengths: list[int], contexts: tuple[int, ...], table: Tensor) -> tuple[ForwardBatch, GroupBatch]:
    starts = tuple(torch.tensor([0, *lengths]).cumsum(0).tolist())
    batch = ForwardBatch(torch.zeros(0), torch.zeros(0), starts, contexts, torch.zeros(0), {})
    return batch, GroupBatch(BLOCK, table, torch.zeros(0, dtype=torch.int64))


def scan(cache: LayerCache, parts: list[Inputs], contexts: tuple[int, ...], table: Tensor) -> Tensor:
    """One batch of several sequences."""
    backend = TorchGatedDelta(NEED)
    plan = backend.plan(*batch_of([part.length for part in parts], contexts, table))
    joined = [torch.cat(tensors) for tensors in zip(*(part.tensors for part in parts), strict=True)]
    return backend.scan(*joined, cache, plan)


def assert_close(found: Tensor, expected: Tensor) -> None:
    difference = float((found - expected).abs().max() / expected.abs().max())
    assert difference < TOLERANCE


@pytest.mark.parametrize("length", [1, 2, 3, CHUNK - 1, CHUNK, CHUNK + 1, 300])
@pytest.mark.parametrize("decay_scale", [1e-4, 0.1, 100.0])
def test_whole_and_token_by_token_give_the_rule(length: int, decay_scale: float) -> None:
    """A whole prompt goes by chunks, single tokens by steps. Decays of exp(-100) take all that was kept to zero;
    over a chunk they would overflow if they were inverted."""
    inputs = Inputs.random(length, seed=length, decay_scale=decay_scale)
    table = torch.arange(1, 64)[None]
    expected, state = rule(inputs)
    whole, single = new_cache(), new_cache()
    assert_close(scan(whole, [inputs], (0,), table), expected)
    steps = [scan(single, [inputs.part(n, n + 1)], (n,), table) for n in range(length)]
    assert_close(torch.cat(steps), expected)
    last = table[0, (length - 1) // BLOCK]
    assert_close(whole["state"][last], state)
    assert_close(single["state"][last], state)


@pytest.mark.parametrize("signs", [(1.0,), (1.0, -1.0)])
def test_one_key_again_and_again_holds_the_last_value(signs: tuple[float, ...]) -> None:
    """With beta 1 each token puts its value in the place of the one before: the worst system that a chunk has."""
    inputs = Inputs.random(150, seed=3, decay_scale=0.0)
    sign = torch.tensor(signs).repeat(150 // len(signs))
    one_key = inputs.k[:1] * sign[:, None, None]
    inputs = replace(inputs, k=one_key, q=one_key, beta=torch.ones_like(inputs.beta))
    found = scan(new_cache(), [inputs], (0,), torch.arange(1, 64)[None])
    assert_close(found, inputs.v)


def test_small_decays_behind_large_ones_keep_their_size() -> None:
    """The log decays of a chunk add up to −60,000 or so, next to which float32 has no room for 0.001."""
    inputs = Inputs.random(CHUNK, seed=7)
    steps = torch.where(torch.arange(CHUNK)[:, None] < CHUNK // 2, 2000.0, 0.001).expand(-1, HEADS)
    inputs = replace(inputs, log_decay=-steps)
    late = CHUNK // 2 + 4
    found = scan(new_cache(), [inputs], (0,), torch.arange(1, 64)[None])
    expected, _ = rule(inputs)
    assert_close(found[late:], expected[late:])


def test_ragged_continuations_resume_from_their_states() -> None:
    """Three sequences; each batch mixes one-token steps with long ones, of one, two and three chunks, in one block
    and across blocks."""
    whole = [Inputs.random(length, seed=length) for length in (160, 61, 150)]
    cache = new_cache()
    table = torch.randperm(63, generator=torch.Generator().manual_seed(0)).view(3, 21) + 1
    cuts = [(0, 5, 6, 7, 140, 160), (0, 1, 2, 3, 51, 61), (0, 33, 34, 38, 120, 150)]
    outputs: list[list[Tensor]] = [[], [], []]
    for step in range(5):
        contexts = tuple(cut[step] for cut in cuts)
        parts = [w.part(cut[step], cut[step + 1]) for w, cut in zip(whole, cuts, strict=True)]
        found = scan(cache, parts, contexts, table)
        for s, output in enumerate(found.split([part.length for part in parts])):
            outputs[s].append(output)
    for s, inputs in enumerate(whole):
        expected, state = rule(inputs)
        assert_close(torch.cat(outputs[s]), expected)
        assert_close(cache["state"][table[s, (inputs.length - 1) // BLOCK]], state)


def test_states_before_the_target_block_stay_as_they_are() -> None:
    """What was kept at a block's end can still be resumed from after the sequence has gone on."""
    inputs = Inputs.random(24, seed=1)
    cache = new_cache()
    table = torch.tensor([[9, 4, 7]])
    scan(cache, [inputs.part(0, BLOCK)], (0,), table)
    kept = cache["state"][9].clone()
    first = scan(cache, [inputs.part(BLOCK, 24)], (BLOCK,), table)
    assert torch.equal(cache["state"][9], kept)
    again = scan(cache, [inputs.part(BLOCK, 24)], (BLOCK,), torch.tensor([[9, 5, 6]]))
    assert torch.equal(first, again)


def test_convolution_sees_across_batches() -> None:
    generator = torch.Generator().manual_seed(3)
    channels = NEED.channels
    x = torch.randn(20, channels, generator=generator)
    weight = torch.randn(channels, WIDTH, generator=generator)
    before = torch.nn.functional.pad(x.T[None], (WIDTH - 1, 0))
    expected = torch.nn.functional.conv1d(before, weight[:, None], groups=channels)[0].T
    cache, backend = new_cache(), TorchGatedDelta(NEED)
    table = torch.tensor([[3, 1, 2]])
    for start, stop in ((0, 1), (1, 3), (3, 20)):
        plan = backend.plan(*batch_of([stop - start], (start,), table))
        found = backend.convolve(x[start:stop], weight, cache, plan)
        assert (found - expected[start:stop]).abs().max() < 2e-6  # measured maximum: 4.8e-7


def test_heads_that_cannot_be_shared_out_are_refused() -> None:
    with pytest.raises(ValueError, match=r"layers\.3: 6 value heads cannot be divided evenly among 4 key heads"):
        TorchGatedDelta(GatedDeltaNeed("layers.3", 6, 4, KEY, VALUE, WIDTH))
