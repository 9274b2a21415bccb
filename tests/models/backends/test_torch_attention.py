"""Attention backends: the reference against a dense softmax, and the refusals of the contract."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Hashable
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from kvhybrid.models.backends import attention_backends, mamba_backends
from kvhybrid.models.backends.base import AttentionBackend, AttentionNeed
from kvhybrid.models.backends.torch_attention import TorchAttention
from kvhybrid.models.backends.visibility import Visibility
from kvhybrid.models.base import BackendChoice, ForwardBatch, GroupBatch, LayerCache
from kvhybrid.models.loading import model_from_config
from kvhybrid.specs import ChunkedLocalAttentionSpec, FullAttentionSpec, SlidingWindowSpec
from tests.models.tiny_models import CONFIGS

HEADS, KV_HEADS, HEAD_SIZE, BLOCK = 4, 2, 8, 4
TOLERANCE = 2e-6  # measured maximum: 6.6e-7


def need(visibility: Visibility, soft_cap: float | None = None) -> AttentionNeed:
    return AttentionNeed("layers.7", HEADS, KV_HEADS, HEAD_SIZE, 0.4, visibility, soft_cap)


def dense(q: Tensor, k: Tensor, v: Tensor, what: AttentionNeed, first: int) -> Tensor:
    """Query by query, in float64; ``k`` and ``v`` are the whole sequence, ``q`` its tokens from ``first`` on."""
    out = torch.empty(q.shape, dtype=torch.float64)
    for row, position in enumerate(range(first, len(k))):
        sees = [
            j
            for j in range(position + 1)
            if j < what.visibility.sinks
            or (
                (what.visibility.window is None or position - j < what.visibility.window)
                and (
                    what.visibility.chunk is None
                    or j // what.visibility.chunk == position // what.visibility.chunk
                )
            )
        ]
        for head in range(HEADS):
            kv_head = head // (HEADS // KV_HEADS)
            scores = k[sees, kv_head].double() @ q[row, head].double() * what.scale
            if what.soft_cap is not None:
                scores = what.soft_cap * torch.tanh(scores / what.soft_cap)
            out[row, head] = scores.softmax(0) @ v[sees, kv_head].double()
    return out


VISIBILITIES = [
    Visibility(),
    Visibility(window=1),
    Visibility(window=6),
    Visibility(chunk=6),
    Visibility(window=5, sinks=3),
    Visibility(window=3, sinks=6),
    Visibility(chunk=8, sinks=2),
]


@pytest.mark.parametrize("soft_cap", [None, 1.5])
@pytest.mark.parametrize("visibility", VISIBILITIES, ids=str)
def test_ragged_batch_equals_dense_attention(visibility: Visibility, soft_cap: float | None) -> None:
    generator = torch.Generator().manual_seed(0)
    contexts, lengths = (0, 7, 13, 29, 0, 30, 2), (9, 1, 6, 1, 1, 25, 1)
    what = need(visibility, soft_cap)
    backend = TorchAttention(what)
    pages = {part: torch.full((200, BLOCK, KV_HEADS, HEAD_SIZE), float("nan")) for part in ("k", "v")}
    width = 16
    table_SN = (torch.randperm(199, generator=generator) + 1)[: len(contexts) * width].view(-1, width)
    qs, ks, vs, slots = [], [], [], []
    for s, (context, length) in enumerate(zip(contexts, lengths, strict=True)):
        q = torch.randn(length, HEADS, HEAD_SIZE, generator=generator) * 2
        k, v = (torch.randn(context + length, KV_HEADS, HEAD_SIZE, generator=generator) for _ in "kv")
        positions = torch.arange(context + length)
        blocks, offsets = table_SN[s, positions // BLOCK], positions % BLOCK
        live = [j for seen in visibility.ranges(context, context + 1) for j in seen if j < context]
        pages["k"][blocks[live], offsets[live]] = k[live]
        pages["v"][blocks[live], offsets[live]] = v[live]
        slots.append((blocks * BLOCK + offsets)[context:])
        qs.append(q)
        ks.append(k)
        vs.append(v)
    starts = torch.tensor([0, *lengths]).cumsum(0).tolist()
    group = GroupBatch(BLOCK, table_SN, torch.cat(slots))
    batch = ForwardBatch(torch.zeros(0), torch.zeros(0), tuple(starts), contexts, torch.zeros(0), {})
    new_k, new_v = (
        torch.cat([whole[context:] for whole, context in zip(wholes, contexts, strict=True)])
        for wholes in (ks, vs)
    )
    found = backend.attend(torch.cat(qs), new_k, new_v, pages, backend.plan(batch, group))
    expected = [dense(q, k, v, what, context) for q, k, v, context in zip(qs, ks, vs, contexts, strict=True)]
    difference = float((found - torch.cat(expected)).abs().max())
    assert difference < TOLERANCE


def test_a_sequence_reads_what_another_writes_in_the_same_batch() -> None:
    """Both hold the first two blocks; the second sequence comes first in the batch and starts behind them."""
    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(2 * BLOCK + 3, n, HEAD_SIZE, generator=generator) for n in (HEADS, KV_HEADS, KV_HEADS))
    pages = {part: torch.full((9, BLOCK, KV_HEADS, HEAD_SIZE), float("nan")) for part in ("k", "v")}
    prefix, rest = slice(0, 2 * BLOCK), slice(2 * BLOCK, None)
    slots = torch.cat(
        [6 * BLOCK + torch.arange(3), 5 * BLOCK + torch.arange(BLOCK), 2 * BLOCK + torch.arange(BLOCK)]
    )
    group = GroupBatch(BLOCK, torch.tensor([[5, 2, 6], [5, 2, 0]]), slots)
    batch = ForwardBatch(torch.zeros(0), torch.zeros(0), (0, 3, 11), (2 * BLOCK, 0), torch.zeros(0), {})
    what = need(Visibility())
    backend = TorchAttention(what)
    new_q, new_k, new_v = (torch.cat([whole[rest], whole[prefix]]) for whole in (q, k, v))
    found = backend.attend(new_q, new_k, new_v, pages, backend.plan(batch, group))
    assert (found[:3] - dense(q[rest], k, v, what, 2 * BLOCK)).abs().max() < TOLERANCE


@pytest.mark.parametrize(
    ("visibility", "spec"),
    [
        (Visibility(), FullAttentionSpec(block_size=4)),
        (Visibility(window=5), SlidingWindowSpec(block_size=4, window=5)),
        (Visibility(chunk=6), ChunkedLocalAttentionSpec(block_size=4, chunk=6)),
    ],
    ids=["full", "window", "chunk"],
)
def test_visibility_is_the_live_set_of_the_spec(visibility: Visibility, spec: Any) -> None:
    positions = torch.arange(40)
    mask = visibility.mask(positions[:, None], positions)
    for p in range(40):
        live = {j for part in spec.live(p) for j in part} | {p}
        assert set(mask[p].nonzero().flatten().tolist()) == live
        assert {j for part in visibility.ranges(p, p + 1) for j in part} == live


class Humble(AttentionBackend):
    """Does full attention only, in blocks of a multiple of 16 tokens, in bfloat16, on CUDA."""

    name: ClassVar[str] = "humble"
    page_multiple: ClassVar[int] = 16
    dtypes: ClassVar[frozenset[torch.dtype]] = frozenset({torch.bfloat16})
    devices: ClassVar[frozenset[str] | None] = frozenset({"cuda"})

    @property
    def plan_key(self) -> Hashable:
        return "humble"

    def plan(self, batch: ForwardBatch, group: GroupBatch) -> None:
        raise AssertionError("never runs")

    def attend(self, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, cache: LayerCache, plan: None) -> Tensor:
        raise AssertionError("never runs")


@pytest.mark.parametrize(
    ("visibility", "soft_cap", "lacking"),
    [
        (Visibility(), 30.0, "a soft-cap"),
        (Visibility(window=4), None, "a window"),
        (Visibility(chunk=4), None, "chunks"),
        (Visibility(window=4, sinks=1), 5.0, "a window and sinks and a soft-cap"),
    ],
)
def test_backend_that_cannot_is_refused_with_both_names(
    visibility: Visibility, soft_cap: float | None, lacking: str
) -> None:
    message = f"layer layers.7 needs {lacking}, which attention backend humble cannot do"
    with pytest.raises(ValueError, match=message):
        Humble(need(visibility, soft_cap))


def test_model_is_refused_when_its_backend_cannot_do_a_soft_cap() -> None:
    attention_backends.register("humble")(Humble)
    config = {**CONFIGS["gemma2"], "model_type": "gemma2", "layer_types": ["full_attention"] * 4}
    with pytest.raises(ValueError, match=r"layers\.0\.self_attn needs a soft-cap.* humble"):
        model_from_config(config, backends=BackendChoice(attention="humble"))
    config["attn_logit_softcapping"] = None
    assert model_from_config(config, backends=BackendChoice(attention="humble")).page_multiple == 16


@pytest.mark.parametrize(
    ("block_size", "dtype", "message"),
    [
        (16, torch.float32, "cannot keep 'k' as torch.float32; accepted: torch.bfloat16"),
        (16, torch.bfloat16, "humble runs on cuda, its pages lie on cpu"),
    ],
)
def test_pages_that_a_backend_cannot_use_are_refused(block_size: int, dtype: torch.dtype, message: str) -> None:
    page = torch.zeros(3, block_size, KV_HEADS, HEAD_SIZE, dtype=dtype)
    with pytest.raises(ValueError, match=message):
        Humble(need(Visibility())).check_cache("layers.7", {"k": page, "v": page})


def test_block_size_that_is_no_page_multiple_is_refused() -> None:
    class OnCpu(Humble):
        devices: ClassVar[frozenset[str] | None] = None

    page = torch.zeros(3, 24, KV_HEADS, HEAD_SIZE, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="multiple of 16 tokens, found 24"):
        OnCpu(need(Visibility())).check_cache("layers.7", {"k": page, "v": page})


def test_binding_without_a_layer_names_it() -> None:
    model = model_from_config({**CONFIGS["gemma2"], "model_type": "gemma2"})
    with pytest.raises(ValueError, match=r"layers\.0\.self_attn"):
        model.bind_cache({})


def test_unknown_backends_are_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"unknown attention backend 'flush'; accepted: .*torch"):
        attention_backends.get("flush")
    with pytest.raises(ValueError, match=r"unknown mamba backend 'python'; accepted: .*torch"):
        mamba_backends.get("python")
    with pytest.raises(ValueError, match="'torch' is taken"):
        attention_backends.register("torch")(Humble)


def test_a_backend_is_imported_only_when_it_is_chosen() -> None:
    program = (
        "import sys, kvhybrid.models.loading, kvhybrid.models.gemma, kvhybrid.models.jamba\n"
        "chosen = [name for name in sys.modules if name.startswith('kvhybrid.models.backends.torch_')]\n"
        "assert not chosen, chosen\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
