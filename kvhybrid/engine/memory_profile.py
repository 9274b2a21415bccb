"""The memory profile: how much of a device a model's largest batch leaves for the cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from kvhybrid.engine.engine import Engine
from kvhybrid.models.base import HybridModel
from kvhybrid.planning import PlanningError, plan_cache
from kvhybrid.planning.gpu import left_for_cache

MOST_BLOCKS = 1 << 30
"""A pool that every request fits in."""


class DeviceMemory(Protocol):
    """The memory of one device, in bytes."""

    @property
    def total(self) -> int: ...

    def free(self) -> int:
        """What no process uses."""
        ...

    def allocated(self) -> int:
        """What this process's tensors take."""
        ...

    def outside(self) -> int:
        """What is neither free nor held by torch in this process: the driver's context, other processes."""
        ...

    def restart_peak(self) -> None: ...

    def peak(self) -> int:
        """The most that this process's tensors took at once since `restart_peak`."""
        ...


class CudaMemory:
    """`DeviceMemory` of a CUDA device, from its driver and from torch's allocator."""

    def __init__(self, device: torch.device | str) -> None:
        self._device = torch.device(device)

    @property
    def total(self) -> int:
        return int(torch.cuda.mem_get_info(self._device)[1])

    def free(self) -> int:
        torch.cuda.empty_cache()
        return int(torch.cuda.mem_get_info(self._device)[0])

    def allocated(self) -> int:
        return int(torch.cuda.memory_allocated(self._device))

    def outside(self) -> int:
        return self.total - self.free() - int(torch.cuda.memory_reserved(self._device))

    def restart_peak(self) -> None:
        torch.cuda.reset_peak_memory_stats(self._device)

    def peak(self) -> int:
        torch.cuda.synchronize(self._device)
        return int(torch.cuda.max_memory_allocated(self._device))


@dataclass(frozen=True)
class MemoryProfile:
    """What a model takes on a device without a cache, in bytes."""

    total: int
    """The whole device."""
    free: int
    """What was free before the model was moved there."""
    outside: int
    """The driver's context and other processes."""
    weights: int
    activations: int
    """The most that a step of the largest batch takes in addition to weights and cache."""

    def cache_bytes(self, utilization: float, reserve: int = 0) -> int:
        """Bytes for the cache: total × ``utilization`` − outside − weights − activations − ``reserve``.

        Raises `PlanningError` if nothing is left, or if other processes use a part of total × ``utilization``.
        """
        wanted = int(self.total * utilization)
        if wanted > self.free:
            raise PlanningError(
                f"pool.utilization={utilization} asks for {wanted:,} bytes of the device's {self.total:,}, and "
                f"{self.free:,} are free; lower it, or end other processes there"
            )
        taken = {
            "outside of torch": self.outside,
            "weights": self.weights,
            "activations": self.activations,
            "reserve": reserve,
        }
        try:
            return left_for_cache(self.total, utilization, taken)
        except PlanningError as error:
            raise PlanningError(f"{error}; raise pool.utilization or lower scheduler.max_batched_tokens") from None


def profile_memory(
    model: HybridModel,
    device: torch.device | str,
    *,
    max_batched_tokens: int = 512,
    max_num_seqs: int = 16,
    max_model_len: int | None = None,
    block_size: int = 16,
    memory: DeviceMemory | None = None,
) -> MemoryProfile:
    """Move ``model`` to ``device`` and run the largest steps there, each with a cache that just holds it.

    The steps compute ``max_batched_tokens`` tokens: of one request, and of ``max_num_seqs`` requests of equal
    length. The limits are those of the `Engine` to be sized. ``memory`` is by default that of a CUDA device.

    Raises `PlanningError` for an encoder-decoder model: its largest step also depends on the encoder inputs.
    """
    if model.max_encoder_tokens:
        raise PlanningError(f"{type(model).__name__} has an encoder: give the memory of its cache in bytes")
    memory = memory or CudaMemory(device)
    free = memory.free()
    model = model.to(device).eval()
    weights = memory.allocated()
    longest = max_model_len or model.max_model_len
    activations = 0
    for num_requests in sorted({1, min(max_num_seqs, max_batched_tokens)}):
        length = max(min(max_batched_tokens // num_requests, longest - 1), 1)
        engine = _engine(model, device, num_requests, length, longest, block_size)
        memory.restart_peak()
        engine.step()
        activations = max(activations, memory.peak() - weights - engine.pool.num_bytes)
    return MemoryProfile(memory.total, free, memory.outside(), weights, activations)


def _engine(
    model: HybridModel, device: torch.device | str, num_requests: int, length: int, longest: int, block_size: int
) -> Engine:
    """An engine with ``num_requests`` prompts of ``length`` tokens to compute.

    Its pool has room for just these and one of ``longest`` tokens, which sizes the block tables.
    """
    specs = model.layer_specs(block_size, next(model.parameters()).dtype)
    tokens = num_requests * length
    blocks = [
        sum(
            plan_cache(
                specs,
                num_blocks=MOST_BLOCKS,
                max_model_len=max_model_len,
                max_in_flight_tokens=tokens,
                page_multiple=block_size,
            ).blocks_per_request
        )
        for max_model_len in (length + 1, longest)
    ]
    engine = Engine(
        model,
        block_size=block_size,
        num_blocks=1 + num_requests * blocks[0] + blocks[1],
        max_batched_tokens=tokens,
        max_num_seqs=num_requests,
        max_model_len=longest,
        enable_prefix_caching=False,
        device=device,
    )
    for number in range(num_requests):
        engine.add_request([number % model.vocab_size] * length, max_new_tokens=1)
    return engine
