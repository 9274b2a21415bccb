"""Stand-ins for the kernels of the FlashAttention family, with the real signatures, in plain torch.

They insist on what the kernels insist on (element types, strides, page sizes, int32 tables), and are as careless
as kernels that load whole tiles: what lies in a page behind the last key gets a weight of 0 and is not skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

HALVES = (torch.float16, torch.bfloat16)


class Window(NamedTuple):
    left: int | None
    right: int | None


@dataclass
class Seen:
    """What the stand-ins were called with."""

    kernels: list[str] = field(default_factory=list)
    key_pages: list[int] = field(default_factory=list)
    """Addresses: a copy of the pool would have another."""


def int32(name: str, tensor: Tensor, *shape: int) -> None:
    assert tensor.dtype == torch.int32, f"{name} must be int32, found {tensor.dtype}"
    assert tensor.is_contiguous(), f"{name} must be contiguous"
    assert tuple(tensor.shape) == shape, f"{name} must be {shape}, found {tuple(tensor.shape)}"


def check_pages(q: Tensor, k: Tensor, v: Tensor, table: Tensor, num_keys: Tensor, multiple: int) -> None:
    """The page table of every run, and pages of 16-byte steps."""
    assert q.dtype in HALVES, f"only halves, found {q.dtype}"
    assert q.dtype == k.dtype == v.dtype
    assert q.stride(-1) == k.stride(-1) == v.stride(-1) == 1
    assert k.shape == v.shape
    num_pages, size, kv_heads, head_size = k.shape
    assert size % multiple == 0, f"pages must be multiples of {multiple}, found {size}"
    assert q.shape[-1] == head_size <= 256
    assert head_size % 8 == 0
    assert q.shape[-2] % kv_heads == 0
    for pages in (k, v):
        assert pages.data_ptr() % 16 == 0
        assert all(stride * pages.element_size() % 16 == 0 for stride in pages.stride()[:-1])
    int32("page table", table, len(num_keys), table.shape[1])
    int32("numbers of keys", num_keys, len(num_keys))
    assert (num_keys > 0).all()
    assert (num_keys <= table.shape[1] * size).all(), "the table is too short for the keys"
    assert ((table >= 0) & (table < num_pages)).all()


def attend(
    q: Tensor, k: Tensor, v: Tensor, table: Tensor, num_keys: int, scale: float, window: Window, cap: float
) -> tuple[Tensor, Tensor]:
    """One run, causal and aligned to its end: ``out [n, H, D]`` and ``lse [H, n]``."""
    blocks = table[: -(-num_keys // k.shape[1])].long()
    keys, values = (pages[blocks].flatten(0, 1).float() for pages in (k, v))
    shared = q.shape[1] // k.shape[2]
    keys, values = (part.repeat_interleave(shared, dim=1) for part in (keys, values))
    scores = torch.einsum("qhd,lhd->hql", q.float(), keys) * scale
    if cap:
        scores = cap * torch.tanh(scores / cap)
    positions = torch.arange(num_keys - len(q), num_keys)[:, None]
    others = torch.arange(len(keys))
    seen = others <= positions
    if window.left is not None and window.left >= 0:
        seen &= others >= positions - window.left
    # The masked scores are overwritten, but what they weigh is still multiplied.
    scores = torch.where(seen, scores, -torch.inf)
    out = torch.einsum("hql,lhd->qhd", scores.softmax(-1), values)
    return out.to(q.dtype), scores.logsumexp(-1)


def attend_runs(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    table: Tensor,
    starts: Tensor,
    num_keys: Tensor,
    scale: float | None,
    window: tuple[int | None, int | None],
    cap: float,
) -> tuple[Tensor, Tensor]:
    assert scale is not None
    assert window in ((-1, -1), (-1, 0), (None, None)) or window[1] == 0
    runs = [
        attend(q[start:stop], k, v, row, int(count), scale, Window(*window), cap)
        for (start, stop), row, count in zip(pairwise(starts.tolist()), table, num_keys, strict=True)
    ]
    return torch.cat([out for out, _ in runs]), torch.cat([lse for _, lse in runs], dim=1)


def check_starts(name: str, starts: Tensor, total: int | None, longest: int | None) -> None:
    int32(name, starts, len(starts))
    lengths = starts.diff()
    assert int(starts[0]) == 0
    assert (lengths > 0).all()
    assert total is None or int(starts[-1]) == total
    assert longest is None or int(lengths.max()) == longest


def flash_attention2(seen: Seen) -> ModuleType:
    """The module flash_attn, as of 2.7.4 and 2.8.3."""

    def flash_attn_varlen_func(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, softmax_scale=None,
        causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None, deterministic=False,
        return_attn_probs=False, block_table=None,
    ):  # fmt: skip
        seen.kernels.append("flash_attn_varlen_func")
        seen.key_pages.append(k.data_ptr())
        assert causal
        assert dropout_p == 0.0
        assert q.dim() == 3
        check_starts("cu_seqlens_q", cu_seqlens_q, len(q), max_seqlen_q)
        check_starts("cu_seqlens_k", cu_seqlens_k, None, max_seqlen_k)
        num_keys = cu_seqlens_k.diff()
        check_pages(q, k, v, block_table, num_keys, 256)
        out, lse = attend_runs(q, k, v, block_table, cu_seqlens_q, num_keys, softmax_scale, window_size, softcap)
        return (out, lse, None) if return_attn_probs else out

    def flash_attn_with_kvcache(
        q, k_cache, v_cache, k=None, v=None, rotary_cos=None, rotary_sin=None, cache_seqlens=None,
        cache_batch_idx=None, cache_leftpad=None, block_table=None, softmax_scale=None, causal=False,
        window_size=(-1, -1), softcap=0.0, rotary_interleaved=True, alibi_slopes=None, num_splits=0,
        return_softmax_lse=False,
    ):  # fmt: skip
        seen.kernels.append("flash_attn_with_kvcache")
        seen.key_pages.append(k_cache.data_ptr())
        assert causal
        assert k is None
        assert v is None
        batch, length, _, _ = q.shape
        check_pages(q, k_cache, v_cache, block_table, cache_seqlens, 256)
        starts = torch.arange(batch + 1) * length
        out, lse = attend_runs(
            q.flatten(0, 1), k_cache, v_cache, block_table, starts, cache_seqlens, softmax_scale, window_size,
            softcap,
        )  # fmt: skip
        lse = lse.view(-1, batch, length).transpose(0, 1)
        out = out.unflatten(0, (batch, length))
        return (out, lse) if return_softmax_lse else out

    return module("flash_attn", flash_attn_varlen_func, flash_attn_with_kvcache)


def flash_attention3(seen: Seen) -> ModuleType:
    """The module flash_attn_interface, as of the repository's folder hopper in 2026."""

    def flash_attn_with_kvcache(
        q, k_cache, v_cache, k=None, v=None, qv=None, rotary_cos=None, rotary_sin=None, cache_seqlens=None,
        cache_batch_idx=None, cache_leftpad=None, page_table=None, cu_seqlens_q=None, cu_seqlens_k_new=None,
        max_seqlen_q=None, rotary_seqlens=None, q_descale=None, k_descale=None, v_descale=None,
        softmax_scale=None, causal=False, window_size=(-1, -1), attention_chunk=0, softcap=0.0,
        rotary_interleaved=True, scheduler_metadata=None, num_splits=0, pack_gqa=None, sm_margin=0,
        return_softmax_lse=False,
    ):  # fmt: skip
        seen.kernels.append("flash_attn_with_kvcache")
        seen.key_pages.append(k_cache.data_ptr())
        assert causal
        assert k is None
        assert v is None
        check_starts("cu_seqlens_q", cu_seqlens_q, len(q), max_seqlen_q)
        check_pages(q, k_cache, v_cache, page_table, cache_seqlens, 1)
        out, lse = attend_runs(
            q, k_cache, v_cache, page_table, cu_seqlens_q, cache_seqlens, softmax_scale, window_size, softcap
        )
        return (out, lse, None, None) if return_softmax_lse else out

    return module("flash_attn_interface", flash_attn_with_kvcache)


def flash_attention4(seen: Seen) -> ModuleType:
    """The module flash_attn.cute, as of flash-attn-4 4.0.0b36."""

    def flash_attn_varlen_func(
        q, k, v, qv=None, cu_seqlens_q=None, cu_seqlens_k=None, max_seqlen_q=None, max_seqlen_k=None,
        min_seqlen_k=None, seqused_q=None, seqused_k=None, gather_kv_indices=None, page_table=None,
        softmax_scale=None, causal=False, window_size=(None, None), learnable_sink=None, softcap=0.0,
        num_splits=1, pack_gqa=None, deterministic=False, score_mod=None, score_mod_bwd=None, mask_mod=None,
        block_sparse_tensors=None, aux_tensors=None, aux_scalars=None, return_lse=False,
        scheduler_metadata=None, seqlen_k_per_split=None, disable_scheduler_metadata=False,
        gather_bwd_recompute_p=False, gather_bwd_token_chunk=None,
    ):  # fmt: skip
        seen.kernels.append("flash_attn_varlen_func")
        seen.key_pages.append(k.data_ptr())
        assert causal
        assert cu_seqlens_k is None, "a page table does not go with cu_seqlens_k"
        check_starts("cu_seqlens_q", cu_seqlens_q, len(q), max_seqlen_q)
        check_pages(q, k, v, page_table, seqused_k, 1)
        assert max_seqlen_k == int(seqused_k.max())
        assert q.shape[-1] % 16 == 0, "pages do not go with heads that the kernel pads"
        out, lse = attend_runs(q, k, v, page_table, cu_seqlens_q, seqused_k, softmax_scale, window_size, softcap)
        return out, lse if return_lse else None

    return module("flash_attn.cute", flash_attn_varlen_func)


def torch_varlen(seen: Seen) -> ModuleType:
    """The module torch.nn.attention.varlen, as of torch 2.13."""

    class AuxRequest(NamedTuple):
        lse: bool = False

    def varlen_attn(
        query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, return_aux=None, scale=None,
        window_size=(-1, -1), enable_gqa=False, seqused_k=None, block_table=None, num_splits=None,
    ):  # fmt: skip
        seen.kernels.append("varlen_attn")
        seen.key_pages.append(key.data_ptr())
        assert window_size[1] == 0, "not causal"
        assert enable_gqa or query.shape[1] == key.shape[2]
        check_starts("cu_seq_q", cu_seq_q, len(query), max_q)
        check_starts("cu_seq_k", cu_seq_k, None, max_k)
        check_pages(query, key, value, block_table, seqused_k, 256)
        assert torch.equal(cu_seq_k.diff(), seqused_k)
        out, lse = attend_runs(query, key, value, block_table, cu_seq_q, seqused_k, scale, window_size, 0.0)
        return (out, lse) if return_aux is not None and return_aux.lse else out

    made = module("torch.nn.attention.varlen", varlen_attn)
    made.AuxRequest = AuxRequest  # type: ignore[attr-defined]
    return made


def module(name: str, *functions: Callable[..., Any]) -> ModuleType:
    made = ModuleType(name)
    for function in functions:
        setattr(made, function.__name__, function)
    return made
