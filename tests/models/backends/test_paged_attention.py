"""The backends that call FlashAttention kernels, over stand-ins with the real signatures, against torch's.

The stand-ins compute in float32 from float16 pages, the torch backend in float32 from the same numbers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

import pytest
import torch

import tests.models.backends.fake_flash_attention as fakes
from kvhybrid.models.backends import attention_backends
from kvhybrid.models.backends.base import AttentionBackend, AttentionNeed
from kvhybrid.models.backends.torch_attention import TorchAttention
from kvhybrid.models.backends.visibility import Visibility
from kvhybrid.models.base import ForwardBatch, GroupBatch
from tests.models.backends.paged_cases import (
    BATCHES,
    HEAD_SIZE,
    HEADS,
    KV_HEADS,
    VISIBILITIES,
    need,
    scene,
    strided_pages,
)

TOLERANCE = 4e-3  # measured maximum: 1.8e-3, a rounding of float16 between 4 and 8


@dataclass(frozen=True)
class Kernel:
    """A backend, the module that it calls, and the page sizes to try."""

    backend: str
    module: str
    fake: Callable[[fakes.Seen], ModuleType]
    block_size: int
    soft_caps: bool = True


KERNELS = [
    Kernel("flash_attention2", "flash_attn", fakes.flash_attention2, 256),
    Kernel("flash_attention3", "flash_attn_interface", fakes.flash_attention3, 16),
    Kernel("flash_attention4", "flash_attn.cute", fakes.flash_attention4, 48),
    Kernel("torch_varlen", "torch.nn.attention.varlen", fakes.torch_varlen, 256, soft_caps=False),
]


@pytest.fixture(params=KERNELS, ids=lambda kernel: kernel.backend)
def kernel(request: pytest.FixtureRequest) -> Kernel:
    found: Kernel = request.param
    return found


@pytest.fixture
def seen(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> fakes.Seen:
    calls = fakes.Seen()
    monkeypatch.setitem(sys.modules, kernel.module, kernel.fake(calls))
    return calls


def made(kernel: Kernel, what: AttentionNeed) -> AttentionBackend:
    backend: AttentionBackend = attention_backends.get(kernel.backend)(what)
    return backend


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("visibility", VISIBILITIES)
def test_batch_equals_the_torch_backend(kernel: Kernel, seen: fakes.Seen, visibility: str, batch: str) -> None:
    what = need(VISIBILITIES[visibility])
    at = scene(what.visibility, *BATCHES[batch], kernel.block_size)
    backend, oracle = made(kernel, what), TorchAttention(what)
    found = backend.attend(at.q, at.k, at.v, at.halves, backend.plan(at.batch, at.group))
    expected = oracle.attend(at.q.float(), at.k.float(), at.v.float(), at.floats, oracle.plan(at.batch, at.group))
    assert found.dtype == torch.float16
    assert (found - expected).abs().max() < TOLERANCE
    assert set(seen.key_pages) == {at.halves["k"].data_ptr()}, "the pool was copied"


def test_soft_cap_equals_the_torch_backend(kernel: Kernel, seen: fakes.Seen) -> None:
    if not kernel.soft_caps:
        with pytest.raises(ValueError, match=r"layers\.7 needs a soft-cap, which attention backend torch_varlen"):
            made(kernel, need(Visibility(), soft_cap=1.5))
        return
    what = need(Visibility(window=40), soft_cap=1.5)
    at = scene(what.visibility, *BATCHES["mixed"], kernel.block_size)
    backend, oracle = made(kernel, what), TorchAttention(what)
    found = backend.attend(at.q, at.k, at.v, at.halves, backend.plan(at.batch, at.group))
    expected = oracle.attend(at.q.float(), at.k.float(), at.v.float(), at.floats, oracle.plan(at.batch, at.group))
    assert (found - expected).abs().max() < TOLERANCE


@pytest.mark.parametrize("batch", BATCHES)
def test_sink_logits_equal_the_torch_backend(kernel: Kernel, seen: fakes.Seen, batch: str) -> None:
    what = need(Visibility(window=40), sink_logits=True)
    at = scene(what.visibility, *BATCHES[batch], kernel.block_size)
    sinks = torch.tensor([-3.0, 0.5, 2.0, -torch.inf])
    backend, oracle = made(kernel, what), TorchAttention(what)
    found = backend.attend_with_sinks(at.q, at.k, at.v, sinks.half(), at.halves, backend.plan(at.batch, at.group))
    expected = oracle.attend_with_sinks(
        at.q.float(), at.k.float(), at.v.float(), sinks, at.floats, oracle.plan(at.batch, at.group)
    )
    assert (found - expected).abs().max() < TOLERANCE


def test_a_sharing_layer_reads_and_writes_nothing(kernel: Kernel, seen: fakes.Seen) -> None:
    writer, reader = need(Visibility(window=40)), need(Visibility(window=40), shared_cache=True)
    at = scene(writer.visibility, *BATCHES["mixed"], kernel.block_size)
    backend, sharing = made(kernel, writer), made(kernel, reader)
    assert sharing.plan_key == backend.plan_key
    plan = backend.plan(at.batch, at.group)
    found = backend.attend(at.q, at.k, at.v, at.halves, plan)
    before = at.halves["k"].nan_to_num().clone()
    assert torch.equal(sharing.read(at.q, at.halves, plan), found)
    assert torch.equal(at.halves["k"].nan_to_num(), before)


def test_a_sequence_reads_what_another_writes_in_the_same_batch(kernel: Kernel, seen: fakes.Seen) -> None:
    """Both hold the first block; the second sequence comes first in the batch and starts behind it."""
    size, what = kernel.block_size, need(Visibility())
    q, k, v = (torch.randn(size + 3, n, HEAD_SIZE).half() for n in (HEADS, KV_HEADS, KV_HEADS))
    halves = strided_pages(6, size)
    slots = torch.cat([4 * size + torch.arange(3), 5 * size + torch.arange(size)])
    group = GroupBatch(size, torch.tensor([[5, 4], [5, 0]]), slots)
    batch = ForwardBatch(torch.zeros(0), torch.zeros(0), (0, 3, size + 3), (size, 0), torch.zeros(0), {})
    backend = made(kernel, what)
    order = torch.cat([torch.arange(size, size + 3), torch.arange(size)])
    found = backend.attend(q[order], k[order], v[order], halves, backend.plan(batch, group))
    slots = torch.cat([2 * size + torch.arange(size), size + torch.arange(3)])
    whole = GroupBatch(size, torch.tensor([[2, 1]]), slots)
    alone = ForwardBatch(torch.zeros(0), torch.zeros(0), (0, size + 3), (0,), torch.zeros(0), {})
    floats = {name: torch.zeros(3, size, KV_HEADS, HEAD_SIZE) for name in ("k", "v")}
    oracle = TorchAttention(what)
    expected = oracle.attend(q.float(), k.float(), v.float(), floats, oracle.plan(alone, whole))
    assert (found - expected[order]).abs().max() < TOLERANCE


@pytest.mark.parametrize("kernel", [KERNELS[0]], indirect=True, ids=lambda kernel: kernel.backend)
def test_flash_attention2_decodes_with_the_kernel_that_splits_contexts(kernel: Kernel, seen: fakes.Seen) -> None:
    what = need(Visibility())
    for batch, kernels in (
        ("decode", {"flash_attn_with_kvcache"}),
        ("prompts", {"flash_attn_varlen_func"}),
        ("mixed", {"flash_attn_with_kvcache", "flash_attn_varlen_func"}),
    ):
        seen.kernels.clear()
        at, backend = scene(what.visibility, *BATCHES[batch], kernel.block_size), made(kernel, what)
        backend.attend(at.q, at.k, at.v, at.halves, backend.plan(at.batch, at.group))
        assert set(seen.kernels) == kernels


def test_a_window_does_not_hand_over_blocks_that_it_has_left(kernel: Kernel, seen: fakes.Seen) -> None:
    what = need(Visibility(window=40))
    at = scene(what.visibility, (1000,), (1,), kernel.block_size)
    backend = made(kernel, what)
    (part,) = backend.plan(at.batch, at.group).parts
    assert part.table_SN.shape[1] <= 40 // kernel.block_size + 2
    assert (part.table_SN > 0).all()
