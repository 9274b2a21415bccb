"""What the encoder reads for each request: checked when it is queued, run when it is admitted."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kvhybrid.cache.manager import KVCacheManager
from kvhybrid.cache.request import Request
from kvhybrid.engine.batch import block_table
from kvhybrid.managers.arrays import IntArray
from kvhybrid.models.base import EncoderBatch, EncoderInput, GroupBatch, HybridModel


def read_encoder_input(model: HybridModel, request_id: str, found: Any, most_tokens: int) -> EncoderInput | None:
    """The input of one request, or None for a model without an encoder.

    Raises ValueError where it is missing, not wanted, not of the model's kind, or gives more than
    ``most_tokens``.
    """
    if not model.max_encoder_tokens:
        if found is not None:
            raise ValueError(f"request {request_id!r}: encoder_input was given, and this model has no encoder")
        return None
    if found is None:
        raise ValueError(f"request {request_id!r}: this model reads an encoder; give the request an encoder_input")
    try:
        read = model.read_encoder_input(found)
    except ValueError as error:
        raise ValueError(f"request {request_id!r}: {error}") from error
    if read.num_tokens > most_tokens:
        raise ValueError(
            f"request {request_id!r}: encoder_input gives {read.num_tokens} encoder tokens; max_encoder_tokens is "
            f"{most_tokens}"
        )
    return read


def one_for_each(encoder_inputs: Sequence[Any] | None, num_prompts: int) -> Sequence[Any]:
    """As many inputs as prompts, None for each where none are given. ValueError for another number."""
    if encoder_inputs is None:
        return [None] * num_prompts
    if len(encoder_inputs) != num_prompts:
        raise ValueError(f"{num_prompts} prompts need as many encoder inputs, found {len(encoder_inputs)}")
    return encoder_inputs


def salt_with(given: EncoderInput, cache_salt: str | None) -> str:
    """A salt that only requests of the same encoder input and of the same ``cache_salt`` have.

    Every decoder layer behind the first cross attention depends on what the encoder read, so that equal decoder
    tokens alone do not make equal keys and values.
    """
    content = given.content.detach().cpu().contiguous()
    digest = sha256(f"{content.dtype} {tuple(content.shape)} ".encode())
    digest.update(content.view(torch.uint8).numpy().tobytes())
    return f"encoder {digest.hexdigest()} {cache_salt or ''}"


def encoder_batch(admitted: Sequence[Request], cache: KVCacheManager, device: torch.device | str) -> EncoderBatch:
    """The encoder's part of a step, for the requests that got their first blocks in it."""
    inputs = [request.encoder_input for request in admitted if request.encoder_input is not None]
    rows_of = [cache.get_block_ids(request.request_id) for request in admitted]
    groups = {}
    for g, (group, block_size) in enumerate(zip(cache.config.groups, cache.config.block_sizes, strict=True)):
        if group.spec.source == "encoder":
            batch = _encoder_group([rows[g] for rows in rows_of], inputs, block_size, device)
            groups.update(dict.fromkeys(group.layers, batch))
    moved = (EncoderInput(given.content.to(device), given.num_tokens) for given in inputs)
    return EncoderBatch(tuple(moved), groups)


def _encoder_group(
    rows: Sequence[IntArray],
    inputs: Sequence[EncoderInput],
    block_size: int,
    device: torch.device | str,
) -> GroupBatch:
    table_SN = block_table(rows)
    slots: list[Tensor] = []
    for row, given in zip(table_SN, inputs, strict=True):
        positions = np.arange(given.num_tokens)
        slots.append(torch.from_numpy(row[positions // block_size] * block_size + positions % block_size))
    return GroupBatch(block_size, torch.from_numpy(table_SN).to(device), torch.cat(slots).to(device))
