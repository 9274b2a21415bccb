"""Long sequences cut into chunks that are computed side by side, for the recurrent backends in plain torch."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from kvhybrid.models.backends.torch_mamba import Plan as StepPlan

CHUNK = 64
"""Tokens. Inside a chunk the work grows with its square, between chunks states are carried one by one."""


@dataclass(frozen=True)
class Chunks:
    """The sequences of more than one token, cut into Z chunks of at most J tokens.

    First come the first chunks of all sequences, then the second ones, and so on, always the longest sequence
    first. So the states that go on lie in front at every turn, and no index is needed to carry them.
    """

    sequences: Tensor
    """The S' sequences that are cut, the longest first."""
    rows_ZJ: Tensor
    """The batch's row of each token; behind a chunk's end its last one again."""
    active_ZJ: Tensor
    turns: tuple[slice, ...]
    """The first chunks, the second ones, …: the i-th of each takes over from the i-th of the ones before."""


@dataclass(frozen=True)
class ChunkPlan:
    steps: StepPlan
    """Where states lie, and the sequences of one token."""
    chunks: Chunks | None
    """None where every sequence has one token."""


def cut(query_starts: tuple[int, ...], device: torch.device) -> Chunks | None:
    """The chunks of a batch, or None where no sequence is long enough."""
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
