"""The reference Mamba-2 backend against the recurrence, token by token in float64."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from kvhybrid.models.backends import mamba2_backends
from kvhybrid.models.backends.mamba2 import Mamba2Need
from kvhybrid.models.backends.torch_chunks import CHUNK
from kvhybrid.models.backends.torch_mamba2 import TorchMamba2
from kvhybrid.models.base import ForwardBatch, GroupBatch, LayerCache

HEADS, HEAD_SIZE, GROUPS, STATE, WIDTH, BLOCK = 6, 5, 2, 4, 4, 8
NEED = Mamba2Need("layers.0", HEADS, HEAD_SIZE, GROUPS, STATE, WIDTH)
TOLERANCE = 2e-6
"""As a share of the largest element. Measured maxima: outputs 2.4e-7, states 4.9e-7, continuations 1.3e-7."""


@dataclass(frozen=True)
class Inputs:
    x: Tensor
    dt: Tensor
    A: Tensor
    B: Tensor
    C: Tensor

    @classmethod
    def random(cls, length: int, seed: int, dt_scale: float = 1.0) -> Inputs:
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator)

        return cls(
            x=normal(length, HEADS, HEAD_SIZE),
            dt=torch.nn.functional.softplus(normal(length, HEADS)) * dt_scale,
            A=-normal(HEADS).exp(),
            B=normal(length, GROUPS, STATE),
            C=normal(length, GROUPS, STATE),
        )

    def part(self, start: int, stop: int) -> Inputs:
        rows = slice(start, stop)
        return Inputs(self.x[rows], self.dt[rows], self.A, self.B[rows], self.C[rows])


def recurrence(inputs: Inputs) -> tuple[Tensor, Tensor]:
    """Outputs and the last state."""
    h = torch.zeros(HEADS, HEAD_SIZE, STATE, dtype=torch.float64)
    outputs = []
    for x, dt, B, C in zip(
        inputs.x.double(), inputs.dt.double(), inputs.B.double(), inputs.C.double(), strict=True
    ):
        outputs.append(torch.empty(HEADS, HEAD_SIZE, dtype=torch.float64))
        for head in range(HEADS):
            group = head // (HEADS // GROUPS)
            decay = torch.exp(dt[head] * inputs.A[head].double())
            h[head] = decay * h[head] + dt[head] * torch.outer(x[head], B[group])
            outputs[-1][head] = h[head] @ C[group]
    return torch.stack(outputs), h


def new_cache() -> LayerCache:
    return {
        "conv": torch.full((64, NEED.channels, WIDTH - 1), float("nan")),
        "ssm": torch.full((64, HEADS, HEAD_SIZE, STATE), float("nan")),
    }


def batch_of(lengths: list[int], contexts: tuple[int, ...], table: Tensor) -> tuple[ForwardBatch, GroupBatch]:
    starts = tuple(torch.tensor([0, *lengths]).cumsum(0).tolist())
    batch = ForwardBatch(torch.zeros(0), torch.zeros(0), starts, contexts, torch.zeros(0), {})
    return batch, GroupBatch(BLOCK, table, torch.zeros(0, dtype=torch.int64))


def scan(cache: LayerCache, parts: list[Inputs], contexts: tuple[int, ...], table: Tensor) -> Tensor:
    """One batch of several sequences."""
    backend = TorchMamba2(NEED)
    plan = backend.plan(*batch_of([len(part.x) for part in parts], contexts, table))
    x, dt, B, C = (torch.cat([getattr(part, name) for part in parts]) for name in ("x", "dt", "B", "C"))
    return backend.scan(x, dt, parts[0].A, B, C, cache, plan)


def assert_close(found: Tensor, expected: Tensor) -> None:
    difference = float((found - expected).abs().max() / expected.abs().max())
    assert difference < TOLERANCE


@pytest.mark.parametrize("length", [1, 2, 3, CHUNK - 1, CHUNK, CHUNK + 1, 300])
@pytest.mark.parametrize("dt_scale", [1e-3, 1.0, 100.0])
def test_scan_equals_the_recurrence(length: int, dt_scale: float) -> None:
    """Steps of 100 take every decay to zero; their sum over a chunk would overflow if it were inverted."""
    inputs = Inputs.random(length, seed=length, dt_scale=dt_scale)
    cache = new_cache()
    table = torch.arange(1, 64)[None]
    found = scan(cache, [inputs], (0,), table)
    expected, state = recurrence(inputs)
    assert_close(found, expected)
    assert_close(cache["ssm"][table[0, (length - 1) // BLOCK]], state)


def test_small_steps_behind_large_ones_keep_their_size() -> None:
    """The log decays of a chunk add up to −60,000 or so, next to which float32 has no room for 0.001."""
    inputs = Inputs.random(CHUNK, seed=7)
    dt = torch.where(torch.arange(CHUNK)[:, None] < CHUNK // 2, 2000.0, 0.001).expand(-1, HEADS)
    inputs = Inputs(inputs.x, dt, -torch.ones(HEADS), inputs.B, inputs.C)
    late = CHUNK // 2 + 4
    found = scan(new_cache(), [inputs], (0,), torch.arange(1, 64)[None])
    expected, _ = recurrence(inputs)
    assert_close(found[late:], expected[late:])


def test_ragged_continuations_resume_from_their_states() -> None:
    """Three sequences; each batch mixes one-token steps with long ones, of one, two and three chunks, in one block
    and across blocks."""
    whole = [Inputs.random(length, seed=length) for length in (160, 61, 150)]
    whole = [Inputs(w.x, w.dt, whole[0].A, w.B, w.C) for w in whole]
    cache = new_cache()
    table = torch.randperm(63, generator=torch.Generator().manual_seed(0)).view(3, 21) + 1
    cuts = [(0, 5, 6, 7, 140, 160), (0, 1, 2, 3, 51, 61), (0, 33, 34, 38, 120, 150)]
    outputs: list[list[Tensor]] = [[], [], []]
    for step in range(5):
        contexts = tuple(cut[step] for cut in cuts)
        parts = [w.part(cut[step], cut[step + 1]) for w, cut in zip(whole, cuts, strict=True)]
        found = scan(cache, parts, contexts, table)
        for s, output in enumerate(found.split([len(part.x) for part in parts])):
            outputs[s].append(output)
    for s, inputs in enumerate(whole):
        expected, state = recurrence(inputs)
        assert_close(torch.cat(outputs[s]), expected)
        assert_close(cache["ssm"][table[s, (len(inputs.x) - 1) // BLOCK]], state)


def test_states_before_the_target_block_stay_as_they_are() -> None:
    """What was kept at a block's end can still be resumed from after the sequence has gone on."""
    inputs = Inputs.random(24, seed=1)
    cache = new_cache()
    table = torch.tensor([[9, 4, 7]])
    scan(cache, [inputs.part(0, BLOCK)], (0,), table)
    kept = cache["ssm"][9].clone()
    first = scan(cache, [inputs.part(BLOCK, 24)], (BLOCK,), table)
    assert torch.equal(cache["ssm"][9], kept)
    again = scan(cache, [inputs.part(BLOCK, 24)], (BLOCK,), torch.tensor([[9, 5, 6]]))
    assert torch.equal(first, again)


def test_convolution_sees_across_batches() -> None:
    generator = torch.Generator().manual_seed(3)
    channels = NEED.channels
    x = torch.randn(2, 20, channels, generator=generator)
    weight = torch.randn(channels, WIDTH, generator=generator)
    expected = torch.nn.functional.conv1d(x.transpose(1, 2), weight[:, None], padding=WIDTH - 1, groups=channels)[
        :, :, :20
    ].transpose(1, 2)
    cache, backend = new_cache(), TorchMamba2(NEED)
    table = torch.tensor([[3, 1, 2], [20, 21, 22]])
    for spans in ([(0, 1), (0, 9)], [(1, 3), (9, 10)], [(3, 20), (10, 20)]):
        contexts = tuple(start for start, _ in spans)
        plan = backend.plan(*batch_of([stop - start for start, stop in spans], contexts, table))
        new, wanted = (
            torch.cat([of[s, start:stop] for s, (start, stop) in enumerate(spans)]) for of in (x, expected)
        )
        found = backend.convolve(new, weight, None, cache, plan)
        assert (found - wanted).abs().max() < 2e-6  # measured maximum: 4.8e-7


def test_what_the_backend_cannot_do_is_refused() -> None:
    with pytest.raises(ValueError, match="accepted: auto, mamba_ssm, torch"):
        mamba2_backends.get("fast")
    with pytest.raises(ValueError, match=r"layers\.3: 6 heads cannot be divided evenly among 4 groups"):
        TorchMamba2(Mamba2Need("layers.3", 6, HEAD_SIZE, 4, STATE, WIDTH))
