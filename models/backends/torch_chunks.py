"""Splits long sequences into chunks that are computed in parallel, for the recurrent backends in plain torch."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from kvhybrid.models.backends.torch_mamba import Plan as StepPlan

CHUNK = 64
"""Tokens. Work inside a chunk grows with the square of its length; between chunks, states are passed serially."""


@dataclass(frozen=True)
class Chunks:
    """The sequences of more than one token, split into Z chunks of at most J tokens.

    The first chunks of all sequences come first, then the second chunks, and so on, the longest sequence always
    first. So the sequences that continue are always a prefix, and passing on their states needs no index.
    """

    sequences: Tensor
    """The S' sequences that are split, the longest first."""
    rows_ZJ: Tensor
    """Row of each token in the batch; after the end of a chunk, its last row is repeated."""
    active_ZJ: Tensor
    turns: tuple[slice, ...]
    """The first chunks, the second chunks, …: chunk i of each continues chunk i of the previous ones."""


@dataclass(frozen=True)
class ChunkPlan:
    steps: StepPlan
    """Locations of states, and the sequences of one token."""
    chunks: Chunks | None
    """None if every sequence has one token."""


def cut(query_starts: tuple[int, ...], device: torch.device) -> Chunks | None:
    """The chunks of a batch, or None if no sequence is long enough."""
    spans = [(s, start, stop) for s, (start, stop) in enumerate(pairwise(query_starts)) if stop - start > 1]
    if not spans:
        return None
    spans.sort(key=lambda span: span[1] - span[2])
    begins: list[int] = []
    ends: list[int] = []
    turns: list[slice] = []
    for offset in range(0, spans[0][2] - spans[0][1], CHUNK):
        before = len(begins)
        for _, start, stop in spans:
            if start + offset < stop:
                begins.append(start + offset)
                ends.append(min(start + offset + CHUNK, stop))
        turns.append(slice(before, len(begins)))
    longest = max(end - begin for begin, end in zip(begins, ends, strict=True))
    begins_Z1, ends_Z1 = (torch.tensor(rows, device=device)[:, None] for rows in (begins, ends))
    rows_ZJ = begins_Z1 + torch.arange(longest, device=device)
    return Chunks(
        sequences=torch.tensor([s for s, _, _ in spans], device=device),
        rows_ZJ=torch.minimum(rows_ZJ, ends_Z1 - 1),
        active_ZJ=rows_ZJ < ends_Z1,
        turns=tuple(turns),
    )
