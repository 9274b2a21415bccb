"""Builds the ragged batch of a forward pass from a step's schedule."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvhybrid.cache.manager import KVCacheManager
from kvhybrid.managers.arrays import IntArray
from kvhybrid.models.base import ForwardBatch, GroupBatch
from kvhybrid.scheduling.base import ScheduledRequest

Int64Array = NDArray[np.int64]


def build_batch(
    scheduled: Sequence[ScheduledRequest], cache: KVCacheManager, device: torch.device | str
) -> ForwardBatch:
    """Concatenate the scheduled tokens, in the order of ``scheduled``, with one block table per group.

    Logits are computed for the last row of every request that samples. All tensors are int64 on ``device``.
    """
    starts_S = np.fromiter((item.start for item in scheduled), np.int64, len(scheduled))
    lengths_S = np.fromiter((item.num_tokens for item in scheduled), np.int64, len(scheduled))
    query_starts = np.concatenate(([0], np.cumsum(lengths_S)))
    num_tokens = int(query_starts[-1])
    tokens = chain.from_iterable(
        item.request.token_ids[item.start : item.start + item.num_tokens] for item in scheduled
    )
    rows_T = np.repeat(np.arange(len(scheduled)), lengths_S)
    positions_T = np.arange(num_tokens) - (query_starts[:-1] - starts_S)[rows_T]
    samples_S = np.fromiter((item.samples for item in scheduled), np.bool_, len(scheduled))
    tables = _block_tables(scheduled, cache)
    group_of_layer: dict[str, GroupBatch] = {}
    encoder_lens: tuple[int, ...] = ()
    for group, block_size, table_SN in zip(cache.config.groups, cache.config.block_sizes, tables, strict=True):
        if group.spec.source == "encoder":
            slots_T = np.zeros(0, np.int64)
            encoder_lens = tuple(item.request.num_encoder_tokens for item in scheduled)
        else:
            slots_T = table_SN[rows_T, positions_T // block_size] * block_size + positions_T % block_size
        batch = GroupBatch(block_size, _to_tensor(table_SN, device), _to_tensor(slots_T, device))
        group_of_layer.update(dict.fromkeys(group.layers, batch))
    return ForwardBatch(
        token_ids_T=_to_tensor(np.fromiter(tokens, np.int64, num_tokens), device),
        positions_T=_to_tensor(positions_T, device),
        query_starts=tuple(query_starts.tolist()),
        context_lens=tuple(starts_S.tolist()),
        logit_rows=_to_tensor((query_starts[1:] - 1)[samples_S], device),
        group_of_layer=group_of_layer,
        encoder_lens=encoder_lens,
    )


def _block_tables(scheduled: Sequence[ScheduledRequest], cache: KVCacheManager) -> list[Int64Array]:
    """One block table per group."""
    ids_of = [cache.get_block_ids(item.request.request_id) for item in scheduled]
    return [block_table(rows) for rows in zip(*ids_of, strict=True)]


def block_table(rows: Sequence[IntArray]) -> Int64Array:
    """``[S, N]``; shorter rows are padded with null blocks."""
    table_SN = np.zeros((len(rows), max(map(len, rows))), np.int64)
    for index, row in enumerate(rows):
        table_SN[index, : len(row)] = row
    return table_SN


def _to_tensor(array: Int64Array, device: torch.device | str) -> Tensor:
    return torch.from_numpy(array).to(device)
