"""Encoder inputs of requests: validated when the request is queued, encoded when it is admitted."""

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
    """The validated input of one request, or None for a model without an encoder.

    Raises ValueError if it is missing, unexpected, not of the type that the model accepts, or has more than
    ``most_tokens`` encoder tokens.
    """
    if not model.max_encoder_tokens:
        if found is not None:
            raise ValueError(f"request {request_id!r}: encoder_input was given, and this model has no encoder")
        return None
    if found is None:
        raise ValueError(f"request {request_id!r}: this model has an encoder and needs an encoder_input")
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
    """One input per prompt, all None if no inputs are given. Raises ValueError if the numbers differ."""
    if encoder_inputs is None:
        return [None] * num_prompts
    if len(encoder_inputs) != num_prompts:
        raise ValueError(f"{num_prompts} prompts need as many encoder inputs, found {len(encoder_inputs)}")
    return encoder_inputs


def salt_with(given: EncoderInput, cache_salt: str | None) -> str:
    """A salt that is shared only by requests with the same encoder input and ``cache_salt``.

    Every decoder layer after the first cross attention depends on the encoder input, so requests with equal
    decoder tokens but different inputs have different keys and values.
    """
    content = given.content.detach().cpu().contiguous()
    digest = sha256(f"{content.dtype} {tuple(content.shape)} ".encode())
    digest.update(content.view(torch.uint8).numpy().tobytes())
    return f"encoder {digest.hexdigest()} {cache_salt or ''}"


def encoder_batch(admitted: Sequence[Request], cache: KVCacheManager, device: torch.device | str) -> EncoderBatch:
    """The encoder inputs of the requests admitted in this step."""
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
