"""Shared by the kernels of recurrent layers: the location of states, and the causal convolution.

The convolution uses the kernels of the package causal-conv1d.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from kvhybrid.models.backends.kernels import load_kernels, require_parameters
from kvhybrid.models.base import ForwardBatch, GroupBatch, LayerCache


@dataclass(frozen=True)
class Span:
    """A sequence with more than one new token."""

    sequence: int
    rows: slice
    source_1: Tensor | None
    """The block that has its state; None for a new sequence."""
    target_1: Tensor


@dataclass(frozen=True)
class StatePlan:
    """All indices are int64, since 32-bit offsets overflow in a pool of many GiB."""

    source_S: Tensor
    target_S: Tensor
    fresh_S: Tensor
    """Whether each sequence is new; the source pages of new sequences are garbage."""
    single_sequences: Tensor
    single_rows: Tensor
    """Rows of the sequences with one new token."""
    single_targets: Tensor
    moved: tuple[Tensor, Tensor, Tensor] | None
    """Source, target and ``fresh`` of the single tokens whose state is not in the target page yet."""
    spans: tuple[Span, ...]


def state_plan(batch: ForwardBatch, group: GroupBatch) -> StatePlan:
    table_SN, size = group.block_table_SN, group.block_size
    lengths = [stop - start for start, stop in pairwise(batch.query_starts)]
    contexts = batch.context_lens
    ends = [context + length for context, length in zip(contexts, lengths, strict=True)]
    first = [max(context - 1, 0) // size for context in contexts]
    last = [(end - 1) // size for end in ends]
    everyone = range(batch.num_seqs)

    def index(values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=table_SN.device)

    sources_S, targets_S = (table_SN[index(everyone), index(columns)] for columns in (first, last))
    fresh_S = index(contexts) == 0
    singles = [s for s in everyone if lengths[s] == 1]
    moved = index([s for s in singles if contexts[s] == 0 or first[s] != last[s]])
    return StatePlan(
        source_S=sources_S,
        target_S=targets_S,
        fresh_S=fresh_S,
        single_sequences=index(singles),
        single_rows=index([batch.query_starts[s] for s in singles]),
        single_targets=targets_S[index(singles)],
        moved=(sources_S[moved], targets_S[moved], fresh_S[moved]) if len(moved) else None,
        spans=tuple(
            Span(
                s,
                slice(*batch.query_starts[s : s + 2]),
                sources_S[s : s + 1] if contexts[s] else None,
                targets_S[s : s + 1],
            )
            for s in everyone
            if lengths[s] > 1
        ),
    )


def zero_where(state: Tensor, fresh: Tensor) -> Tensor:
    """``state`` with zeros for fresh sequences."""
    return state.masked_fill(fresh.view(-1, *[1] * (state.dim() - 1)), 0.0)


def settle_singles(pages: Tensor, plan: StatePlan) -> None:
    """Copy the initial states of single tokens to their target pages, where a kernel then updates them."""
    if plan.moved is not None:
        sources, targets, fresh = plan.moved
        pages[targets] = zero_where(pages[sources], fresh)


def shape_faults(channels: int, conv_width: int) -> list[str]:
    """A layer's requirements that these kernels do not support."""
    faults = []
    if channels % 8:
        faults.append(f"{channels} channels, no multiple of 8")
    if not 2 <= conv_width <= 4:
        faults.append(f"a convolution over {conv_width} tokens, not 2 to 4")
    return faults


def load_state_kernels(backend: str, module: str, scan: str) -> tuple[Any, Any]:
    """mamba-ssm's state update, and the kernel called ``scan`` in ``module``."""

    def load(place: str, name: str) -> Any:
        (kernel,) = load_kernels(
            backend, place, (name,), package="mamba-ssm", install="pip install 'kvhybrid[gpu]'"
        )
        return kernel

    update = load("mamba_ssm.ops.triton.selective_state_update", "selective_state_update")
    require_parameters(backend, update, ("state_batch_indices",), package="mamba-ssm")
    return update, load(module, scan)


class CausalConvolution:
    """Sequences of one token take one call together, longer ones one call each.

    States are copied out of their pages and back, since the kernels index with 32 bits. For prompts, they also
    require the channels of the initial state to be contiguous, whereas in a page the tokens of a channel are.
    """

    def __init__(self, backend: str) -> None:
        self._prefill, self._update = load_kernels(
            backend,
            "causal_conv1d",
            ("causal_conv1d_fn", "causal_conv1d_update"),
            package="causal-conv1d",
            install="pip install 'kvhybrid[gpu]'",
        )

    def __call__(
        self, x_TC: Tensor, weight_CW: Tensor, bias_C: Tensor | None, cache: LayerCache, plan: StatePlan
    ) -> Tensor:
        pages_PCW, x_TC = cache["conv"], x_TC.contiguous()
        state_SCW = zero_where(pages_PCW[plan.source_S], plan.fresh_S).to(x_TC.dtype)
        out_TC = torch.empty_like(x_TC)
        if len(plan.single_rows):
            singles_SCW = state_SCW[plan.single_sequences]
            out_TC[plan.single_rows] = self._update(x_TC[plan.single_rows], singles_SCW, weight_CW, bias_C)
            state_SCW[plan.single_sequences] = singles_SCW
        for span in plan.spans:
            state_1CW = state_SCW[span.sequence].t().contiguous().t()[None]
            out_1CL, after_1CW = self._prefill(
                x_TC[span.rows].t()[None],
                weight_CW,
                bias_C,
                initial_states=state_1CW,
                return_final_states=True,
            )
            out_TC[span.rows] = out_1CL[0].t()
            state_SCW[span.sequence] = after_1CW[0]
        pages_PCW[plan.target_S] = state_SCW.to(pages_PCW.dtype)
        return out_TC
