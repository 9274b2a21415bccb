"""The reference attention backend in plain torch, for any device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from kvhybrid.models.backends.base import AttentionBackend
from kvhybrid.models.backends.visibility import Visibility
from kvhybrid.models.base import ForwardBatch, GroupBatch, LayerCache

QUERIES_PER_TILE = 256
"""Bounds the size of a long prompt's mask, and lets a window gather only the keys that a tile's queries see."""

TOKENS_PER_GATHER = 4096
"""Tokens that sequences of one new token gather together. More would exceed the processor's cache, and be freed to
the system and allocated again in every layer."""


@dataclass(frozen=True)
class Tile:
    """Consecutive queries of one sequence, and the keys that they see together."""

    rows: slice
    """Rows of the queries in the batch."""
    blocks_N: Tensor
    keys: slice | Tensor
    """Which of the ``N · B`` gathered tokens are keys; the others may be garbage."""
    mask_QL: Tensor | None
    """None if the mask is the causal triangle from position 0."""


@dataclass(frozen=True)
class SingleTokens:
    """Sequences with one new token each and live sets of similar length, padded to the longest."""

    rows_S: Tensor
    blocks_X: Tensor
    """The ``X = S · N`` blocks to gather, sequence by sequence."""
    visible_SL: Tensor
    """Which of the ``L = N · B`` gathered tokens a query sees; the others are padding or garbage."""
    hidden_Y: Tensor
    """Indices of those Y others among all ``S · L``."""


@dataclass(frozen=True)
class Plan:
    blocks_T: Tensor
    offsets_T: Tensor
    tiles: tuple[Tile, ...]
    singles: tuple[SingleTokens, ...]


class TorchAttention(AttentionBackend):
    """Gathers the blocks that the queries see and uses torch's attention. It has neither soft-cap nor sink logits,
    so scores with these are computed explicitly."""

    name: ClassVar[str] = "torch"
    dtypes: ClassVar[frozenset[torch.dtype]] = frozenset({torch.float32, torch.bfloat16, torch.float16})
    windows: ClassVar[bool] = True
    chunks: ClassVar[bool] = True
    sinks: ClassVar[bool] = True
    soft_caps: ClassVar[bool] = True
    sink_logits: ClassVar[bool] = True
    shared_caches: ClassVar[bool] = True

    def plan(self, batch: ForwardBatch, group: GroupBatch) -> Plan:
        starts, contexts = batch.query_starts, batch.context_lens
        lengths = [stop - start for start, stop in pairwise(starts)]
        visibility = self.need.visibility
        tiles = [
            tile
            for s, length in enumerate(lengths)
            if length > 1
            for tile in _tiles(visibility, group, s, starts[s], contexts[s], length)
        ]
        single = [s for s, length in enumerate(lengths) if length == 1]
        return Plan(
            blocks_T=group.slot_mapping_T // group.block_size,
            offsets_T=group.slot_mapping_T % group.block_size,
            tiles=tuple(tiles),
            singles=tuple(
                _single_tokens(visibility, group, batch, members)
                for members in _similar(visibility, contexts, single, group.block_size)
            ),
        )

    def attend(self, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, cache: LayerCache, plan: Plan) -> Tensor:
        _write(k_TKD, v_TKD, cache, plan)
        return self._read(q_THD, None, cache, plan)

    def attend_with_sinks(
        self, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, sinks_H: Tensor, cache: LayerCache, plan: Plan
    ) -> Tensor:
        _write(k_TKD, v_TKD, cache, plan)
        return self._read(q_THD, sinks_H.view(self.need.num_kv_heads, -1), cache, plan)

    def read(self, q_THD: Tensor, cache: LayerCache, plan: Plan) -> Tensor:
        return self._read(q_THD, None, cache, plan)

    def _read(self, q_THD: Tensor, sinks_KG: Tensor | None, cache: LayerCache, plan: Plan) -> Tensor:
        keys_PBKD, values_PBKD = cache["k"], cache["v"]
        out_THD = q_THD.new_empty(*q_THD.shape[:2], values_PBKD.shape[-1])
        for tile in plan.tiles:
            out_THD[tile.rows] = self._tile(q_THD[tile.rows], keys_PBKD, values_PBKD, sinks_KG, tile)
        for singles in plan.singles:
            q_SHD = q_THD[singles.rows_S]
            out_THD[singles.rows_S] = self._singles(q_SHD, keys_PBKD, values_PBKD, sinks_KG, singles)
        return out_THD

    def _tile(
        self, q_QHD: Tensor, keys_PBKD: Tensor, values_PBKD: Tensor, sinks_KG: Tensor | None, tile: Tile
    ) -> Tensor:
        kv_heads = self.need.num_kv_heads
        group = self.need.num_heads // kv_heads
        q_KGQD = q_QHD.view(-1, kv_heads, group, q_QHD.shape[-1]).permute(1, 2, 0, 3)
        k_KGLD, v_KGLD = (
            pages.index_select(0, tile.blocks_N)
            .flatten(0, 1)[tile.keys]
            .to(q_QHD.dtype)
            .transpose(0, 1)
            .unsqueeze(1)
            .expand(-1, group, -1, -1)
            for pages in (keys_PBKD, values_PBKD)
        )
        sinks_KG1 = None if sinks_KG is None else sinks_KG[:, :, None]
        read_KGQD = self._attention(q_KGQD, k_KGLD, v_KGLD, tile.mask_QL, sinks_KG1)
        return read_KGQD.permute(2, 0, 1, 3).flatten(1, 2)

    def _singles(
        self,
        q_SHD: Tensor,
        keys_PBKD: Tensor,
        values_PBKD: Tensor,
        sinks_KG: Tensor | None,
        singles: SingleTokens,
    ) -> Tensor:
        # Query heads that share a key head see the same keys, so they are put on the axis of a prompt's queries.
        q_SKGD = q_SHD.view(len(q_SHD), self.need.num_kv_heads, -1, q_SHD.shape[-1])
        # Garbage may be NaN, which a weight of zero does not cancel, so it is overwritten.
        k_SKLD, v_SKLD = (
            pages.index_select(0, singles.blocks_X)
            .flatten(0, 1)
            .index_fill_(0, singles.hidden_Y, 0.0)
            .view(*singles.visible_SL.shape, *pages.shape[2:])
            .to(q_SHD.dtype)
            .transpose(1, 2)
            for pages in (keys_PBKD, values_PBKD)
        )
        visible_S11L = singles.visible_SL[:, None, None]
        read_SKGD = self._attention(q_SKGD, k_SKLD, v_SKLD, visible_S11L, sinks_KG)
        return read_SKGD.flatten(1, 2)

    def _attention(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, sinks: Tensor | None) -> Tensor:
        """``sinks`` has one logit per row of scores, in a shape that broadcasts."""
        cap = self.need.soft_cap
        if cap is None and sinks is None:
            return functional.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, is_causal=mask is None, scale=self.need.scale
            )
        scores = (q @ k.transpose(-1, -2)).float() * self.need.scale
        if cap is not None:
            scores = torch.tanh(scores / cap) * cap
        if mask is None:
            mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill_(~mask, float("-inf"))
        if sinks is None:
            return scores.softmax(-1).to(v.dtype) @ v
        # A sink has no value: its column is removed after the softmax.
        sink = sinks.float().unsqueeze(-1).expand(*scores.shape[:-1], 1)
        return torch.cat((scores, sink), dim=-1).softmax(-1)[..., :-1].to(v.dtype) @ v


def _write(k_TKD: Tensor, v_TKD: Tensor, cache: LayerCache, plan: Plan) -> None:
    keys_PBKD, values_PBKD = cache["k"], cache["v"]
    keys_PBKD[plan.blocks_T, plan.offsets_T] = k_TKD.to(keys_PBKD.dtype)
    values_PBKD[plan.blocks_T, plan.offsets_T] = v_TKD.to(values_PBKD.dtype)


def _tiles(
    visibility: Visibility, group: GroupBatch, s: int, row: int, context: int, length: int
) -> Iterator[Tile]:
    """The tiles of sequence ``s``, whose ``length`` queries start at ``row`` and position ``context``."""
    table_N, size = group.block_table_SN[s], group.block_size
    for start in range(context, context + length, QUERIES_PER_TILE):
        stop = min(start + QUERIES_PER_TILE, context + length)
        blocks, keys, positions = [], [], []
        gathered = 0
        for seen in visibility.ranges(start, stop):
            first, last = seen.start // size, -(-seen.stop // size)
            blocks.append(table_N[first:last])
            offset = gathered - first * size
            keys.append(range(seen.start + offset, seen.stop + offset))
            positions.append(torch.arange(seen.start, seen.stop, device=table_N.device))
            gathered += (last - first) * size
        positions_L = torch.cat(positions)
        mask_QL = visibility.mask(torch.arange(start, stop, device=table_N.device)[:, None], positions_L)
        triangle = start == 0 and visibility.first(stop - 1) == 0
        yield Tile(
            rows=slice(row + start - context, row + stop - context),
            blocks_N=torch.cat(blocks),
            keys=slice(keys[0].start, keys[0].stop)
            if len(keys) == 1
            else torch.cat([torch.arange(k.start, k.stop, device=table_N.device) for k in keys]),
            mask_QL=None if triangle else mask_QL,
        )


def _similar(
    visibility: Visibility, contexts: tuple[int, ...], members: list[int], block_size: int
) -> Iterator[list[int]]:
    """Split sequences into parts such that padding each part to its longest sequence at most doubles the gathered
    blocks, and no part of several sequences gathers more than `TOKENS_PER_GATHER`."""

    def num_blocks(s: int) -> int:
        seen = visibility.ranges(contexts[s], contexts[s] + 1)
        return sum(-(-part.stop // block_size) - part.start // block_size for part in seen)

    part: list[int] = []
    limit = 0
    for size, s in sorted((num_blocks(s), s) for s in members):
        if part and (size > limit or (len(part) + 1) * size * block_size > TOKENS_PER_GATHER):
            yield part
            part = []
        if not part:
            limit = 2 * size
        part.append(s)
    if part:
        yield part


def _single_tokens(
    visibility: Visibility, group: GroupBatch, batch: ForwardBatch, members: list[int]
) -> SingleTokens:
    table_SN, size = group.block_table_SN, group.block_size
    contexts = [batch.context_lens[s] for s in members]
    seen = [visibility.ranges(context, context + 1) for context in contexts]
    first = [parts[-1].start // size for parts in seen]
    # Sinks are in the first blocks; if the window still includes these, they are gathered with it.
    sinks = [
        min(-(-parts[0].stop // size), lowest) if len(parts) > 1 else 0
        for parts, lowest in zip(seen, first, strict=True)
    ]
    counts = [
        sink + context // size + 1 - lowest for sink, context, lowest in zip(sinks, contexts, first, strict=True)
    ]
    # Computed from lengths, which are on the host; only the result is copied to the device.
    first_S1, sinks_S1, counts_S1, queries_S1 = torch.tensor([first, sinks, counts, contexts])[:, :, None]
    j_N = torch.arange(max(counts))
    index_SN = torch.where(j_N < sinks_S1, j_N, j_N - sinks_S1 + first_S1).clamp(max=table_SN.shape[1] - 1)
    positions_SNB = index_SN[:, :, None] * size + torch.arange(size)
    visible_SNB = visibility.mask(queries_S1[:, :, None], positions_SNB) & (j_N < counts_S1)[:, :, None]
    entries_SN = torch.tensor(members)[:, None] * table_SN.shape[1] + index_SN
    rows_S, entries_X, visible_SL, hidden_Y = (
        host.to(table_SN.device)
        for host in (
            torch.tensor([batch.query_starts[s] for s in members]),
            entries_SN.flatten(),
            visible_SNB.flatten(1),
            (~visible_SNB).flatten().nonzero()[:, 0],
        )
    )
    return SingleTokens(rows_S, table_SN.flatten()[entries_X], visible_SL, hidden_Y)
